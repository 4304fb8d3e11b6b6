"""What must hold after any event of any history."""

from __future__ import annotations

import random

import pytest
from histories import Character, generate_events
from rulebook_driver import Driver, count_healthy, rules

from psyche_py.coordinator.assignment import compute_assignment
from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.coordinator.state import CoordinatorAccount, read_account

SEEDS = range(16)
ROUND_STATES = (RunState.RoundTrain, RunState.RoundWitness)


class Watch:
    """Follows a history and checks it after every event."""

    def __init__(self, account: CoordinatorAccount) -> None:
        self.before = account
        self.taken: list[tuple[int, int, int]] = []  # (height, first, end) of this epoch's batches
        self.points = 0

    def check(self, driver: Driver, error: str | None) -> None:
        before, after = self.before, driver.account
        if error is not None or before.to_bytes() == after.to_bytes():
            assert after is before
            return
        assert after.nonce == before.nonce + 1
        assert read_account(after.to_bytes()).num_healthy == count_healthy(after)
        self._check_points(before, after)
        self._check_data(before, after)
        self.before = after

    def _check_points(self, before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        gained = sum(e.earned for e in after.entries) - sum(e.earned for e in before.entries)
        slashed = [new.slashed - old.slashed for old, new in zip(before.entries, after.entries, strict=False)]
        rate = before.current_rates.slashing_rate_per_client
        assert sum(change > 0 for change in slashed) <= 1
        assert all(change in (0, rate) for change in slashed if change > 0)
        if after.epoch == before.epoch:
            assert gained == 0, "points are settled at the end of an epoch only"
            return
        clients = [client for client in before.epoch_clients if client.state is not ClientState.Ejected]
        attested = sum(client.attested_rounds for client in clients)
        assert gained == (before.current_rates.earning_rate_total_shared if attested else 0)
        assert all(client.attested_rounds == 0 for client in after.epoch_clients)

    def _check_data(self, before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        """No batch twice within an epoch, none skipped between epochs."""
        if after.epoch != before.epoch and self.taken:
            first_unapplied = after.epoch_start_data_index
            applied = [end for height, _, end in self.taken if height <= before.current_round.height - 2]
            assert first_unapplied == (applied[-1] if applied else self.taken[0][1])
            self.taken = []
        is_new_round = after.run_state is RunState.RoundTrain and (
            before.run_state is RunState.Warmup or after.current_round.height != before.current_round.height
        )
        if not is_new_round:
            return
        current = after.current_round
        start = self.taken[-1][2] if self.taken else after.epoch_start_data_index
        assert current.data_index == start
        assignment = compute_assignment(after, current)
        assert sum(last - first + 1 for first, last in assignment.values()) == current.batch_size
        assert (current.batch_size == 0) == current.apply_only
        assert current.clients_len == len(current.healthy_indices) == after.num_healthy
        self.taken.append((current.height, start, start + current.batch_size))


def play(seed: int, num: int = 300) -> None:
    rng = random.Random(seed)
    num_clients = rng.choice([2, 3, 4, 6])
    driver = Driver(rules.process_init("run", "test"))
    watch = Watch(driver.account)
    for name, arguments in generate_events(driver, rng, num, Character(num_clients, is_extreme=False)):
        error = driver.apply(name, **arguments)
        if driver.is_closed:
            return
        watch.check(driver, error)
        check_timers(driver)


def check_timers(driver: Driver) -> None:
    """Deadline, due and tick tell the same story, and a tick that is not due changes no byte."""
    account, now = driver.account, driver.now
    deadline = rules.compute_next_deadline(account)
    is_due = rules.is_tick_due(account, now)
    if account.is_halted:
        assert deadline is None
        assert not is_due
        return
    ticked = rules.process_tick(account, now=now, seed=1)
    assert (ticked is not account) == is_due
    if deadline is None:
        assert not rules.is_tick_due(account, now + 10**6)
        return
    assert is_due == (now >= deadline)
    assert rules.is_tick_due(account, max(deadline, now))


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_over_random_histories(seed: int) -> None:
    play(seed)


def test_random_histories_reach_every_state() -> None:
    """The generator is worth its name: all states, long epochs, and every kind of refusal are met."""
    states, errors, heights = set(), set(), set()
    for seed in range(40):
        rng = random.Random(seed)
        driver = Driver(rules.process_init("run", "test"))
        for name, arguments in generate_events(
            driver, rng, 250, Character(rng.choice([2, 3, 4]), owner=0.15)
        ):
            errors.add(driver.apply(name, **arguments))
            states.add(driver.account.run_state)
            heights.add(driver.account.current_round.height)
    assert states == set(RunState)
    assert max(heights) >= 6
    assert errors >= {
        None,
        "Halted",
        "InvalidWitness",
        "DuplicateWitness",
        "InvalidRunState",
        "InvalidHealthCheck",
        "InvalidCheckpoint",
        "InvalidAddressHint",
        "ClientKeysInUse",
        "ClientNotInEpoch",
        "SignerNotAClient",
        "CannotResume",
        "ConfigSanityCheckFailed",
        "ModelSanityCheckFailed",
        "ProgressSanityCheckFailed",
        "UpdateConfigNotHalted",
    }


def test_histories_are_repeatable() -> None:
    accounts = []
    for _ in range(2):
        driver = Driver(rules.process_init("run", "test"))
        for name, arguments in generate_events(driver, random.Random(3), 200, Character(3)):
            driver.apply(name, **arguments)
        accounts.append(driver.account.to_bytes())
    assert accounts[0] == accounts[1]


@pytest.mark.parametrize("slot_hash", [bytes(32), bytes(31) + b"\1"])
def test_the_seed_depends_on_time_slot_and_slot_hash(slot_hash: bytes) -> None:
    seed = rules.compute_seed(1_700_000_000, 5, slot_hash)
    assert 0 <= seed < 2**64
    assert seed != rules.compute_seed(1_700_000_001, 5, slot_hash)
    assert seed != rules.compute_seed(1_700_000_000, 6, slot_hash)
    assert seed != rules.compute_seed(1_700_000_000, 5, b"\2" * 32)
