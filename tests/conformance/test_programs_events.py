"""The coordinator tells every transition in its log: no other, none twice, and as the account then stands."""

from __future__ import annotations

import random

import pytest
from histories import Character, generate_events
from program_driver import PROGRAM, ProgramDriver, get_program_signer
from programs_harness import ProgramChain, RunHarness
from rulebook_driver import Driver, rules

from psyche_py.chain.events import Transition, read_events
from psyche_py.coordinator.layout import RunState
from psyche_py.coordinator.state import CoordinatorAccount, read_account
from psyche_py.coordinator.transitions import TRANSITIONS

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="run `make programs` first")
WAYS = {(rule.before, rule.after) for rule in TRANSITIONS}


def expect(run: ProgramDriver, before: CoordinatorAccount, after: CoordinatorAccount) -> list[Transition]:
    """The transition between two accounts, if there was one. From a round to the next is one too."""
    is_next_round = after.run_state is RunState.RoundTrain and (
        after.current_round.height != before.current_round.height
    )
    if after.run_state is before.run_state and not is_next_round:
        return []
    transition = Transition(
        coordinator_account=run.run,
        nonce=after.nonce,
        epoch=after.epoch,
        step=after.step,
        height=after.current_round.height,
        from_state=before.run_state,
        to_state=after.run_state,
        unix_timestamp=after.run_state_start,
    )
    return [transition]


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_are_told(seed: int) -> None:
    rng = random.Random(seed)
    num_clients = rng.choice([2, 3, 4])
    program = ProgramDriver(num_clients + 1)
    driver = Driver(rules.process_init("run", "test"), get_signer=get_program_signer)
    told = 0
    for name, arguments in generate_events(driver, rng, 250, Character(num_clients, is_extreme=False)):
        if name == "free_coordinator":
            break
        before = read_account(program.read())
        refusal = program.apply(name, **arguments)
        driver.apply(name, **arguments)
        expected = expect(program, before, read_account(program.read()))
        found = read_events(program.logs).get_transitions(program.run)
        assert found == expected, (name, refusal)
        assert all((one.from_state, one.to_state) in WAYS for one in found)
        told += len(found)
    assert told > 5


def test_a_run_is_followed_by_its_log_alone() -> None:
    """An epoch that nobody attests, from the first member to the next wait."""
    run = RunHarness(ProgramChain())
    told: list[tuple[str, str]] = []

    def note() -> None:
        found = read_events(run.chain.logs).get_transitions(run.address)
        told.extend((one.from_state.name, one.to_state.name) for one in found)

    run.open(2)
    run.tick(4)
    note()
    for client in run.account.epoch_clients:
        run.act("warmup_witness", run.get_wallet(client), index=client.index)
        note()
    for seconds in (21, 6, 11):
        run.tick(seconds)
        note()
    assert told == [
        ("WaitingForMembers", "Warmup"),
        ("Warmup", "RoundTrain"),
        ("RoundTrain", "RoundWitness"),
        ("RoundWitness", "Cooldown"),
        ("Cooldown", "WaitingForMembers"),
    ]
