"""What must hold of disputes after any event, and that epochs end whatever verifiers do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from dispute_court import FRAUD, REFUSAL, Court
from histories import Character, generate_events
from owner_events import get_base
from rulebook_driver import Driver, Event, rules

from psyche_py.coordinator.accusations import VOTE_STATES
from psyche_py.coordinator.convictions import find_conviction
from psyche_py.coordinator.disputes import compute_needed
from psyche_py.coordinator.duties import compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import (
    ClientState,
    DisputeState,
    RunState,
)
from psyche_py.coordinator.reasons import REASONS, REFUSAL_REASONS
from psyche_py.coordinator.state import CoordinatorAccount, Dispute
from psyche_py.verify import Finding, Reason

SLASH_RATE = 13


def make_history(driver: Driver, rng: random.Random, num: int) -> Iterator[Event]:
    """Random events in runs that verify a lot; the owner sets nothing but pauses."""
    num_clients = rng.choice([2, 3, 4, 6, 9, 14])
    base = get_base()
    config = replace(
        base.config,
        init_min_clients=num_clients,
        verification_percent=rng.choice([20, 50]),
        num_tie_breakers=rng.choice([1, 2, 3, 9]),
        max_refusals=rng.choice([0, 1, 3]),
        epoch_time=60,
    )
    yield "update", {"config": config.to_bytes().hex(), "model": base.model.to_bytes().hex()}
    rates = {"earning_rate_total_shared": 1000, "slashing_rate_per_client": SLASH_RATE}
    yield "set_future_epoch_rates", rates
    yield "set_paused", {"paused": False}
    character = Character(num_clients, useful=0.9, lying=0.02, silent=0.05, owner=0.002, is_extreme=False)
    for event in generate_events(driver, rng, num, character):
        if event[0] not in ("update", "free_coordinator"):
            yield event


def check_dispute(d: Dispute, account: CoordinatorAccount) -> None:
    """Votes and outcome fit; never have both sides decided."""
    needed = {g: compute_needed(d.tie_breakers, is_guilty=g, reason=d.reason) for g in (True, False)}
    guilty, not_guilty = d.count_votes(True), d.count_votes(False)
    voters = [voter for voter, _ in d.votes]
    assert len(set(voters)) == len(voters) <= d.tie_breakers
    assert not {d.accuser, d.trainer} & set(voters)
    if account.run_state in VOTE_STATES and account.get_round_at(d.judge_height):
        assert all(is_tie_breaker(account, d, voter) for voter in voters)
    convicts, acquits = guilty >= needed[True] > 0, not_guilty >= needed[False] > 0
    is_decided = convicts or acquits
    assert not (convicts and acquits)
    assert is_decided == (d.state in (DisputeState.Guilty, DisputeState.NotGuilty))
    if is_decided:
        assert (d.state is DisputeState.Guilty) == convicts
    loser = {DisputeState.Guilty: d.trainer, DisputeState.NotGuilty: d.accuser}.get(d.state)
    if loser is not None and (d.state is DisputeState.Guilty or d.reason not in REFUSAL_REASONS):
        assert account.epoch_clients[loser].state is ClientState.Ejected


def check_step(name: str, before: CoordinatorAccount, after: CoordinatorAccount) -> None:
    """Who is slashed, and by how much; what is left of disputes."""
    for d in after.disputes:
        check_dispute(d, after)
    if after.run_state in (RunState.WaitingForMembers, RunState.Warmup, RunState.Paused, RunState.Finished):
        assert not any(d.is_open for d in after.disputes)
    slashed = [new.slashed - old.slashed for old, new in zip(before.entries, after.entries, strict=False)]
    was_open = {d.slot for d in before.disputes if d.is_open}
    settled = [d for d in after.disputes if d.slot in was_open and not d.is_open]
    decided = [d for d in settled if d.state is not DisputeState.Undecided]
    convicted = [d for d in decided if d.state is DisputeState.Guilty or d.reason not in REFUSAL_REASONS]
    gains = [points for points in slashed if points > 0]
    assert gains == [SLASH_RATE] * len(convicted)
    assert name == "vote" or not decided
    assert name == "settle_debt" or min(slashed, default=0) >= 0
    if after.epoch != before.epoch:
        for old in before.epoch_clients:
            if old.state is ClientState.Ejected:
                assert after.entries[old.entry].earned == before.entries[old.entry].earned


def check_convictions(account: CoordinatorAccount) -> None:
    """An ejection is explained by the dispute that ejected, not by a refusal that was answered after all."""
    convicting = [(d.trainer, d) for d in account.disputes if d.state is DisputeState.Guilty]
    acquitting = [d for d in account.disputes if d.state is DisputeState.NotGuilty]
    convicting += [(d.accuser, d) for d in acquitting if d.reason not in REFUSAL_REASONS]
    for client in account.epoch_clients:
        found = find_conviction(account, client.index)
        assert found is None or (client.index, found) in convicting
        assert (found is None) == all(index != client.index for index, _ in convicting)


@pytest.mark.parametrize("seed", range(12))
def test_invariants_of_disputes(seed: int) -> None:
    rng, driver = random.Random(seed), Driver(rules.process_init("run", "test"))
    for name, arguments in make_history(driver, rng, 400):
        before = driver.account
        driver.apply(name, **arguments)
        check_step(name, before, driver.account)
        check_convictions(driver.account)


def test_the_histories_have_every_outcome() -> None:
    """What the invariants were checked on is worth its name."""
    outcomes, states = set(), set()
    for seed in range(12):
        rng, driver = random.Random(seed), Driver(rules.process_init("run", "test"))
        for name, arguments in make_history(driver, rng, 400):
            driver.apply(name, **arguments)
            outcomes |= {(d.state, d.reason in REFUSAL_REASONS) for d in driver.account.disputes}
            states |= {client.state for client in driver.account.epoch_clients}
    kinds = [DisputeState.Open, DisputeState.Guilty, DisputeState.NotGuilty, DisputeState.Undecided]
    assert outcomes == {(state, is_refusal) for state in kinds for is_refusal in (False, True)}
    assert states == set(ClientState)


# ---- the end of an epoch ----------------------------------------------------------------------------------


def accuse_all(court: Court, reason: int) -> int:
    """Every verifier whose word still counts accuses; how many did."""
    num, height = 0, court.account.current_round.height
    for late in (2, 1, 0):
        for duty in compute_duties(court.account, height - late):
            court.num_hashes += 1
            accusation = {"trainer": duty.trainer, "height": height - late - 1, "reason": reason}
            evidence = court.num_hashes.to_bytes(32, "big").hex()
            sender = {"client": duty.verifier, "index": duty.verifier}
            num += court.side.apply("verdict", **sender, **accusation, evidence_hash=evidence) is None
    return num


@pytest.mark.parametrize("num_clients", [2, 3, 5, 12, 30])
@pytest.mark.parametrize("reason", [FRAUD, REFUSAL])
def test_an_epoch_ends_however_much_is_accused(num_clients: int, reason: int) -> None:
    """At most two rounds later than planned, and then after one Cooldown, whoever votes or does not."""
    for seed in range(4):
        driver = Driver(rules.process_init("run", "test"), slot=10 + 1000 * seed)
        court = Court(driver, num_clients)
        court.start_epoch()
        num_accused = accuse_all(court, reason)
        for _ in range(3):
            court.play_round()
            num_accused += accuse_all(court, reason)
        court.close_epoch()
        num_rounds = 0
        while court.account.run_state is not RunState.Cooldown:
            court.play_round()
            num_rounds += 1
            if court.account.run_state is not RunState.Cooldown:
                num_accused += accuse_all(court, reason)
        assert 3 <= num_rounds <= 5
        assert num_accused or num_clients == 2
        court.wait(court.account.config.max_round_train_time)
        assert court.account.run_state is RunState.WaitingForMembers


@pytest.mark.parametrize("seed", range(6))
def test_an_epoch_ends_by_time_alone(seed: int) -> None:
    """From any state of a history: if nobody acts any more, a few deadlines later no epoch runs."""
    rng, driver = random.Random(seed), Driver(rules.process_init("run", "test"))
    for number, (name, arguments) in enumerate(make_history(driver, rng, 300)):
        driver.apply(name, **arguments)
        if number % 10 or driver.account.run_state not in VOTE_STATES:
            continue
        account, now = driver.account, driver.now
        for _ in range(5):  # the round's two states, those of a round after it, and Cooldown
            deadline = rules.compute_next_deadline(account)
            if deadline is None or account.run_state not in VOTE_STATES:
                break
            now = max(now, deadline)
            account = rules.process_tick(account, now=now, seed=1)
        assert account.run_state not in VOTE_STATES
        assert not any(d.is_open for d in account.disputes)


# ---- what is written twice --------------------------------------------------------------------------------


def test_reasons_are_those_of_the_verifiers() -> None:
    accusing = {reason for reason in Reason if reason.finding is not Finding.HONEST}
    assert accusing == {Reason(number) for number in REASONS}
    refusals = {reason for reason in Reason if reason.finding is Finding.REFUSAL}
    assert refusals == {Reason(number) for number in REFUSAL_REASONS}


NEEDED = {1: (1, 1), 2: (2, 2), 3: (2, 3), 4: (3, 3), 5: (4, 4), 6: (4, 5), 7: (5, 6), 8: (6, 6), 9: (6, 7)}


@pytest.mark.parametrize(("num", "needed"), NEEDED.items())
def test_two_thirds_decide_and_three_quarters_convict_of_not_answering(
    num: int, needed: tuple[int, int]
) -> None:
    most, convict = needed
    assert compute_needed(num, is_guilty=True, reason=FRAUD) == most
    assert compute_needed(num, is_guilty=True, reason=REFUSAL) == convict
    assert {compute_needed(num, is_guilty=False, reason=reason) for reason in REASONS} == {most}
    assert most + convict > num < 2 * most, "both sides cannot have it"
