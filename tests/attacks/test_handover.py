"""Who decides which model a run goes on with: a quorum of its witnesses alone. On the real program."""

from __future__ import annotations

import pytest
from programs_harness import ProgramChain, RunHarness, refused

from psyche_py.coordinator.layout import CheckpointKind, RunState

TRUE, FALSE = b"\1" * 32, b"\2" * 32


@pytest.fixture
def run() -> RunHarness:
    return RunHarness(ProgramChain())


def play_epoch(run: RunHarness, liars: int) -> None:
    """An epoch of four clients to its end; the first ``liars`` report another model in every round."""
    while run.state is RunState.RoundTrain:
        height = run.account.current_round.height
        run.chain.advance(5)
        for number, client in enumerate(run.account.epoch_clients):
            if run.state is not RunState.RoundTrain or run.account.current_round.height != height:
                break
            digest = FALSE if number < liars else TRUE
            run.witness(client, state_digest=digest)
    while run.state is not RunState.WaitingForMembers:
        run.tick(30)


@pytest.mark.parametrize(("liars", "expected"), [(0, TRUE), (1, TRUE), (2, None), (3, FALSE)])
def test_only_a_quorum_of_witnesses_names_the_model(
    run: RunHarness, liars: int, expected: bytes | None
) -> None:
    run.open(4)
    run.start_training()
    play_epoch(run, liars)
    assert run.account.model_digest == expected


def test_nobody_outside_of_the_epoch_is_ready_for_it(run: RunHarness) -> None:
    """A stranger who could say so would keep a run from giving up a model that is lost; one who could take
    it back would make a run forget its model."""
    run.open(4)
    run.start_training()
    play_epoch(run, 0)
    newcomers = [run.chain.make_wallet(f"newcomer {i}") for i in range(2)]
    for wallet in newcomers:
        run.join(wallet)
    run.tick(4)
    assert run.state is RunState.Warmup
    with refused("InvalidWitness"):
        run.act("warmup_witness", run.wallets[0], index=0)
    run.act("warmup_witness", newcomers[0], index=0)
    run.tick(run.account.config.warmup_time)
    assert run.state is RunState.RoundTrain
    assert run.account.model_digest == TRUE
    assert run.account.model.checkpoint_kind is CheckpointKind.P2P


def test_warm_ups_that_are_called_off_cost_no_model(run: RunHarness) -> None:
    """Newcomers who join and leave again and again do not push the run to its old checkpoint."""
    run.open(4)
    run.start_training()
    play_epoch(run, 0)
    newcomers = [run.chain.make_wallet(f"newcomer {i}") for i in range(2)]
    for _ in range(3):
        for wallet in newcomers:
            run.join(wallet)
        run.tick(4)
        assert run.state is RunState.Warmup
        for wallet in newcomers:
            run.act("leave_run", wallet)
        assert run.state is RunState.WaitingForMembers
        assert run.account.model_digest == TRUE
        assert run.account.model.checkpoint_kind is CheckpointKind.P2P
