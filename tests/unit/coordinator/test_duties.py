"""Who looks at whom and who judges: as the definition says, fair, and never oneself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rulebook_driver import make_round_account

from psyche_py.coordinator.committee import (
    COMMITTEE_SALT,
    DUTY_SALT,
    compute_num_verifiers,
    compute_role_seed,
    compute_shuffled_index,
    compute_tie_breaker_seats,
    compute_verifiers,
)
from psyche_py.coordinator.duties import Duty, compute_duties, draw_duties, is_tie_breaker
from psyche_py.coordinator.layout import DisputeState, set_bitmap
from psyche_py.coordinator.state import CoordinatorAccount

seeds = st.integers(0, 2**64 - 1)
clients = st.sets(st.integers(0, 255), max_size=40)


@pytest.mark.parametrize(
    ("num", "percent", "expected"),
    [
        (0, 5, 0),
        (1, 50, 0),
        (2, 1, 1),
        (2, 0, 0),
        (19, 5, 1),
        (20, 5, 1),
        (40, 5, 2),
        (256, 5, 12),
        (10, 50, 5),
    ],
)
def test_how_many_verify(num: int, percent: int, expected: int) -> None:
    assert compute_num_verifiers(num, percent) == expected


@settings(max_examples=100, deadline=None)
@given(seeds, st.permutations(range(60)), st.integers(0, 30), clients)
def test_everybody_looks_at_one_other(seed: int, order: list[int], num: int, healthy: set[int]) -> None:
    verifiers = order[:num]
    duties = draw_duties(seed, verifiers, sorted(healthy))
    assert [duty.verifier for duty in duties] == [x for x in verifiers if healthy - {x}]
    assert all(duty.trainer in healthy and duty.trainer != duty.verifier for duty in duties)
    if len(verifiers) < len(healthy):
        # a verifier that drew itself takes the next one's
        assert max(Counter(duty.trainer for duty in duties).values(), default=0) <= 2


def test_every_trainer_is_equally_likely() -> None:
    counts = Counter(draw_duties(seed, [30], range(20))[0].trainer for seed in range(4000))
    assert set(counts) == set(range(20))
    # 200 each; six standard deviations are 83
    assert all(abs(count - 200) < 83 for count in counts.values())


def test_a_known_draw_stays_as_it_is() -> None:
    """Verifiers, tie-breakers and programs of different versions must agree."""
    assert draw_duties(7, [0, 1, 2], range(8)) == KNOWN_DUTIES


def make_account(healthy: set[int], before: set[int], seed: int, *, seats: int = 0) -> CoordinatorAccount:
    """In round 5 of an epoch; ``before`` were Healthy in round 4."""
    record = make_round_account(healthy, seed=seed).record
    record["config"]["verification_percent"] = 50
    rounds = record["epoch_state"]["rounds"]
    rounds["height"] = [5, 2, 3, 4]
    rounds["tie_breaker_tasks"][0] = seats
    set_bitmap(rounds[3], "healthy", sum(1 << index for index in before))
    rounds["clients_len"][3] = len(before)
    return CoordinatorAccount(record)


@settings(max_examples=40, deadline=None)
@given(clients, clients, seeds, st.integers(0, 11))
def test_the_draw_is_as_defined(healthy: set[int], before: set[int], seed: int, seats: int) -> None:
    """Index by index, with the shuffle as it is defined."""
    account = make_account(healthy, before, seed, seats=seats)
    order = compute_role_seed(seed, COMMITTEE_SALT)
    seats = min(seats, len(healthy))
    num = compute_num_verifiers(len(healthy) - seats, 50)
    positions = {
        index: compute_shuffled_index(rank, len(healthy), order) for rank, index in enumerate(sorted(healthy))
    }
    by_position = sorted(healthy, key=lambda index: positions[index])
    assert compute_tie_breaker_seats(account.current_round) == by_position[:seats]
    verifiers = by_position[seats : seats + num]
    assert compute_verifiers(account, account.current_round) == verifiers
    trainers, key = sorted(before), compute_role_seed(seed, DUTY_SALT)
    drawn = {compute_shuffled_index(r, len(before), key): index for r, index in enumerate(trainers)}
    expected = []
    for number, verifier in enumerate(verifiers if before else []):
        found = drawn[number % len(before)]
        if found == verifier and len(before) > 1:
            found = drawn[(number + 1) % len(before)]
        if found != verifier:
            expected.append(Duty(verifier, found))
    assert compute_duties(account, 5) == expected


def test_nothing_is_verified_of_a_round_that_trained_nothing() -> None:
    account = make_account({1, 2, 3}, {1, 2, 3}, 1)
    assert compute_duties(account, 5)
    account.record["epoch_state"]["rounds"]["apply_only"][3] = 1
    assert compute_duties(CoordinatorAccount(account.record), 5) == []


def test_rounds_outside_the_ring_have_no_duties() -> None:
    account = make_account({1, 2, 3}, {1, 2, 3}, 1)
    assert compute_duties(account, 6) == compute_duties(account, 2) == compute_duties(account, 0) == []
    first = make_round_account([1, 2, 3]).record
    first["config"]["verification_percent"] = 50
    assert compute_duties(CoordinatorAccount(first), 0) == []


@settings(max_examples=60, deadline=None)
@given(clients.filter(lambda x: len(x) > 2), seeds, st.integers(1, 9), st.data())
def test_as_many_judge_as_the_majority_is_counted_of(
    healthy: set[int], seed: int, wanted: int, data: st.DataObject
) -> None:
    """Whether both parties, one or none of them are in the round, and wherever they were drawn."""
    parties = data.draw(st.lists(st.integers(0, 255), min_size=2, max_size=2, unique=True))
    seats = min(wanted + 2, len(healthy))
    record = make_account(healthy, healthy, seed, seats=seats).record
    d = record["disputes"][0]
    d["accuser"], d["trainer"] = parties
    d["state"], d["height"], d["judge_height"] = DisputeState.Open, 3, 5
    d["tie_breakers"] = min(wanted, len(healthy - set(parties)))
    account = CoordinatorAccount(record)
    judges = {
        index for index in healthy | set(parties) if is_tie_breaker(account, account.disputes[0], index)
    }
    assert len(judges) == d["tie_breakers"]
    assert judges <= healthy - set(parties)


KNOWN_DUTIES = [Duty(0, 1), Duty(1, 4), Duty(2, 6)]
