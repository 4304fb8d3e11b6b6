"""A run from its creation to its end on the coordinator program: the straight path and each way off it."""

from __future__ import annotations

import pytest
from programs_harness import ProgramChain, RunHarness, make_config, make_model, refused

from psyche_py.coordinator.layout import CheckpointKind, ClientState, RunState
from psyche_py.coordinator.model import Metadata
from psyche_py.coordinator.transition import compute_seed


@pytest.fixture
def run() -> RunHarness:
    return RunHarness(ProgramChain())


def play_epoch(run: RunHarness, num_train_rounds: int) -> None:
    """From the first round to Cooldown: the timer runs out after ``num_train_rounds``."""
    for _ in range(num_train_rounds - 1):
        run.play_round()
        assert run.state is RunState.RoundTrain
    run.chain.advance(200)
    while run.state is RunState.RoundTrain:
        run.play_round()
    assert run.state is RunState.Cooldown


def test_new_run_is_uninitialized(run: RunHarness) -> None:
    run.create()
    account = run.account
    assert (account.run_state, account.run_id, account.client_version) == (0, "run", "test")
    assert (account.next_active, account.step, account.nonce) == (1, 0, 0)
    with refused("Halted"):
        run.tick()


def test_update_and_resume(run: RunHarness) -> None:
    run.create()
    with refused("ConfigSanityCheckFailed"):
        run.own("set_paused", paused=False)
    run.update(config=make_config().to_bytes(), metadata=Metadata(name="A run").to_bytes())
    with refused("ModelSanityCheckFailed"):
        run.own("set_paused", paused=False)
    run.update(model=make_model().to_bytes())
    nonce = run.account.nonce
    run.update(model=make_model().to_bytes())
    assert run.account.nonce == nonce, "an update that changes nothing must not move the nonce"
    run.own("set_paused", paused=False)
    account = run.account
    assert (account.run_state, account.step, account.next_active) == (RunState.WaitingForMembers, 1, 2)
    assert account.metadata.name == "A run"
    with refused("UpdateConfigNotHalted"):
        run.update(config=make_config().to_bytes())
    run.update(metadata=Metadata(name="Renamed").to_bytes())
    with refused("CannotResume"):
        run.own("set_paused", paused=False)


def test_epoch_starts_with_enough_members(run: RunHarness) -> None:
    run.open(2)
    before = run.account
    run.tick()
    assert run.account == before, "extra time has not passed: nothing may change, the nonce neither"
    run.tick(3)
    account = run.account
    assert account.run_state is RunState.Warmup
    assert [client.state for client in account.epoch_clients] == [ClientState.Healthy] * 2
    assert (account.start_timestamp, account.is_first_round) == (run.chain.now, True)


def test_seed_hashes_the_newest_slot_hash(run: RunHarness) -> None:
    run.open(2)
    run.start_training()
    seed = compute_seed(run.chain.now, run.chain.slot, run.chain.get_slot_hash())
    assert run.account.current_round.random_seed == seed


def test_warmup_ends_by_time_or_when_all_are_ready(run: RunHarness) -> None:
    run.open(2)
    run.tick(4)
    first, second = run.account.epoch_clients
    with refused("InvalidWitness"):
        run.act("warmup_witness", run.get_wallet(first), index=second.index)
    with refused("InvalidWitness"):
        run.act("warmup_witness", run.get_wallet(first), index=60_000)
    with refused("SignerNotAClient"):
        run.act("warmup_witness", run.chain.make_wallet("stranger"), index=0)
    run.act("warmup_witness", run.get_wallet(first), index=first.index)
    before = run.account
    run.act("warmup_witness", run.get_wallet(first), index=first.index)
    assert run.account == before, "a repeat changes nothing"
    run.tick(29)
    assert run.state is RunState.Warmup
    run.tick(1)
    assert run.state is RunState.RoundTrain
    run.act("warmup_witness", run.get_wallet(second), index=second.index)


def test_warmup_is_left_when_too_few_remain(run: RunHarness) -> None:
    run.open(2, rate=100)
    run.tick(4)
    run.act("leave_run", run.wallets[0])
    assert run.state is RunState.WaitingForMembers
    assert [entry.earned for entry in run.account.entries] == [0, 0]


def test_witness_rules(run: RunHarness) -> None:
    run.open(4, witness_nodes=2)
    run.start_training()
    first, second = run.get_elected()
    outsiders = [c for c in run.account.epoch_clients if c.index not in (first.index, second.index)]
    with refused("InvalidWitness"):
        run.witness(outsiders[0])
    with refused("InvalidWitness"):
        run.witness(first, step=run.account.step + 1)
    with refused("InvalidWitness"):
        run.act("witness", run.get_wallet(second), **run.make_witness(first))
    with refused("InvalidWitness"):
        run.witness(first, index=40_000)
    with refused("InvalidWitness"):
        run.witness(first, participants=[1, 0, 0, 0])
    with refused("SignerNotAClient"):
        run.act("witness", run.chain.make_wallet("stranger"), **run.make_witness(first))
    run.witness(first, broadcast_bloom=list(range(16)), state_digest=bytes(range(32)))
    with refused("DuplicateWitness"):
        run.witness(first)
    stored = run.account.current_round.witnesses[0]
    assert stored.index == first.index
    assert stored.broadcast_bloom == tuple(range(16))
    assert stored.state_digest == bytes(range(32))


def test_round_ends_at_once_when_complete(run: RunHarness) -> None:
    run.open(3)
    run.start_training()
    started = run.chain.now
    run.play_round()
    account = run.account
    assert (account.run_state, account.step, account.current_round.height) == (RunState.RoundTrain, 2, 1)
    assert account.run_state_start == started + 1
    assert account.current_round.data_index == 8


def test_incomplete_attendance_waits_for_the_witness_timer(run: RunHarness) -> None:
    run.open(3)
    run.start_training()
    run.play_round()
    run.play_round(seen=[0, 1])
    assert run.state is RunState.RoundWitness
    run.tick(4)
    assert run.state is RunState.RoundWitness
    run.tick(1)
    assert (run.state, run.account.current_round.height) == (RunState.RoundTrain, 2)


def test_round_times_out_without_a_witness(run: RunHarness) -> None:
    run.open(3)
    run.start_training()
    run.tick(19)
    assert run.state is RunState.RoundTrain
    run.tick(1)
    assert run.state is RunState.RoundWitness
    run.tick(5)
    account = run.account
    assert account.run_state is RunState.Cooldown
    assert {client.state for client in account.epoch_clients} == {ClientState.Withdrawn}
    run.tick(10)
    assert (run.state, run.account.epoch) == (RunState.WaitingForMembers, 1)
    assert run.account.epoch_start_data_index == 0, "nothing was applied, so the data comes again"


def test_below_quorum_ends_the_epoch(run: RunHarness) -> None:
    run.open(4)
    run.start_training()
    run.play_round()
    run.witness(run.get_elected()[0])
    run.tick(20)
    run.tick(5)
    account = run.account
    assert account.run_state is RunState.Cooldown
    assert {client.state for client in account.epoch_clients} == {ClientState.Healthy}
    run.tick(10)
    assert run.account.epoch_start_data_index == 0


def test_health_check_drops_the_absent(run: RunHarness) -> None:
    run.open(4)
    run.start_training()
    run.play_round()
    user = run.wallets[0]
    with refused("InvalidHealthCheck"):
        run.act("health_check", user, index=3)
    run.play_round(seen=[0, 1, 2])
    run.tick(5)
    assert run.account.current_round.height == 2
    with refused("InvalidHealthCheck"):
        run.act("health_check", user, index=0)
    with refused("InvalidHealthCheck"):
        run.act("health_check", user, index=200)
    run.act("health_check", user, index=3)
    client = run.account.epoch_clients[3]
    assert (client.state, client.exited_height) == (ClientState.Dropped, 2)
    with refused("InvalidHealthCheck"):
        run.act("health_check", user, index=3)
    run.play_round(seen=[0, 1, 2])
    assert run.state is RunState.RoundTrain, "the dropped client was elected and does not attest"
    run.tick(20)
    run.tick(5)
    assert run.account.current_round.clients_len == 3


def test_epoch_ends_with_apply_rounds_and_exact_points(run: RunHarness) -> None:
    run.open(3, rate=100)
    run.start_training()
    play_epoch(run, 4)
    account = run.account
    assert account.current_round.apply_only
    assert account.current_round.batch_size == 0
    assert account.current_round.data_index == 4 * 8
    run.tick(10)
    account = run.account
    assert (account.run_state, account.epoch) == (RunState.WaitingForMembers, 1)
    assert account.epoch_start_data_index == 4 * 8
    assert [entry.earned for entry in account.entries] == [34, 33, 33]
    assert all(client.attested_rounds == 0 for client in account.epoch_clients)
    assert (account.model.checkpoint_kind, account.model.checkpoint_origin) == (
        CheckpointKind.P2P,
        CheckpointKind.Hub,
    )


def test_points_follow_attendance(run: RunHarness) -> None:
    run.open(3, rate=1000)
    run.start_training()
    run.play_round()
    run.play_round(seen=[0, 1])
    run.tick(5)
    play_epoch(run, 1)
    attested = [client.attested_rounds for client in run.account.epoch_clients]
    run.tick(10)
    assert attested == [3, 3, 2]
    assert [entry.earned for entry in run.account.entries] == [375, 375, 250]


def test_a_new_rate_holds_from_the_next_epoch(run: RunHarness) -> None:
    run.open(2, rate=10)
    run.start_training()
    run.own("set_future_epoch_rates", earning_rate_total_shared=50, slashing_rate_per_client=None)
    play_epoch(run, 2)
    run.tick(10)
    assert sum(entry.earned for entry in run.account.entries) == 10
    run.join_all()
    run.start_training()
    play_epoch(run, 2)
    run.tick(10)
    assert sum(entry.earned for entry in run.account.entries) == 60


def test_checkpoint_goes_back_to_its_origin_when_nobody_was_ready_in_a_whole_warm_up(run: RunHarness) -> None:
    run.open(2)
    run.start_training()
    play_epoch(run, 3)
    run.tick(10)
    newcomers = [run.chain.make_wallet(f"newcomer {i}") for i in range(2)]
    run.wallets += newcomers
    for wallet in newcomers:
        run.join(wallet)
    run.tick(4)
    assert run.state is RunState.Warmup
    assert run.account.model.checkpoint_kind is CheckpointKind.P2P
    run.tick(run.account.config.warmup_time)
    assert run.state is RunState.WaitingForMembers
    assert run.account.model.checkpoint_kind is CheckpointKind.Hub


def test_checkpoint_stays_p2p_with_a_donor(run: RunHarness) -> None:
    run.open(2)
    run.start_training()
    play_epoch(run, 3)
    run.tick(10)
    newcomer = run.chain.make_wallet("newcomer")
    run.wallets.append(newcomer)
    run.join(newcomer)
    run.join(run.wallets[1])
    run.tick(4)
    assert run.state is RunState.Warmup
    assert run.account.model.checkpoint_kind is CheckpointKind.P2P


def test_pause_waits_for_the_epoch(run: RunHarness) -> None:
    run.open(2, rate=10)
    run.start_training()
    run.play_round()
    run.own("set_paused", paused=True)
    before = run.account
    run.own("set_paused", paused=True)
    assert run.account == before
    assert (before.run_state, before.is_pause_pending) == (RunState.RoundTrain, True)
    while run.state is RunState.RoundTrain:
        run.play_round()
    run.tick(10)
    account = run.account
    assert (account.run_state, account.is_pause_pending) == (RunState.Paused, False)
    assert account.is_cold_start_epoch
    assert sum(entry.earned for entry in account.entries) == 10, "a pause must not cost anybody its pay"
    assert {client.state for client in account.epoch_clients} == {ClientState.Withdrawn}
    with refused("Halted"):
        run.own("set_paused", paused=True)
    run.own("set_paused", paused=False)
    run.join_all()
    run.tick(4)
    assert run.account.is_cold_start_epoch
    assert run.account.model.checkpoint_kind is CheckpointKind.P2P, "who waited has the model"


def test_pause_outside_of_rounds_is_immediate(run: RunHarness) -> None:
    run.open(2)
    run.tick(4)
    assert run.state is RunState.Warmup
    run.own("set_paused", paused=True)
    assert run.state is RunState.Paused


def test_leaving_in_a_round(run: RunHarness) -> None:
    run.open(3)
    run.start_training()
    run.act("leave_run", run.wallets[2])
    client = run.find_client(run.wallets[2])
    assert (client.state, client.exited_height) == (ClientState.Withdrawn, 0)
    before = run.account
    run.act("leave_run", run.wallets[2])
    assert run.account == before
    with refused("SignerNotAClient"):
        run.act("leave_run", run.chain.make_wallet("stranger"))
    run.play_round()
    run.tick(20)
    run.tick(5)
    assert run.account.current_round.clients_len == 2


def test_run_finishes_at_total_steps(run: RunHarness) -> None:
    run.open(2, total_steps=6)
    run.start_training()
    for _ in range(10):
        if run.state is RunState.RoundTrain:
            run.play_round()
    run.tick(10)
    account = run.account
    assert (account.run_state, account.step) == (RunState.Finished, 6)
    with refused("Halted"):
        run.tick(100)
    with refused("InvalidRunState"):
        run.join(run.wallets[0])
    with refused("UpdateConfigFinished"):
        run.update(metadata=Metadata(name="late").to_bytes())


def test_checkpoint_instruction(run: RunHarness) -> None:
    run.open(2)
    run.start_training()
    repo, revision = b"someone/new".ljust(128, b"\0"), bytes(64)
    with refused("InvalidCheckpoint"):
        run.act("checkpoint", run.wallets[0], kind=3, repo=repo, revision=revision)
    with refused("SignerNotAClient"):
        run.act("checkpoint", run.owner, kind=2, repo=repo, revision=revision)
    run.act("checkpoint", run.wallets[0], kind=2, repo=repo, revision=revision)
    assert run.account.model.checkpoint_repo == "someone/new"
    run.act("leave_run", run.wallets[1])
    with refused("ClientNotInEpoch"):
        run.act("checkpoint", run.wallets[1], kind=2, repo=repo, revision=revision)


def test_free_returns_the_rent(run: RunHarness) -> None:
    run.open(2)
    with refused("CloseCoordinatorNotHalted"):
        run.own("free_coordinator")
    run.own("set_paused", paused=True)
    before = run.chain.svm.get_balance(run.owner.pubkey())
    rent = sum(run.chain.svm.get_balance(key) for key in (run.address, run.instance))
    run.own("free_coordinator")
    assert run.chain.svm.get_balance(run.owner.pubkey()) == before + rent - 5000
    assert run.chain.get_data(run.address) is None
    assert run.chain.get_data(run.instance) is None
