"""Who is elected, and who trains what."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rulebook_driver import compute_witness_positions, make_round_account

from psyche_py.coordinator.assignment import compute_assignment, compute_lcg_shuffle
from psyche_py.coordinator.committee import (
    compute_committee,
    compute_num_elected,
    compute_role_seed,
    compute_shuffled_index,
    get_num_elected,
)
from psyche_py.coordinator.layout import Committee
from psyche_py.coordinator.state import CoordinatorAccount

seeds = st.integers(0, 2**64 - 1)
healthy_sets = st.sets(st.integers(0, 255), min_size=1, max_size=40)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 80), st.binary(min_size=32, max_size=32))
def test_swap_or_not_is_a_permutation(num: int, seed: bytes) -> None:
    assert sorted(compute_shuffled_index(i, num, seed) for i in range(num)) == list(range(num))


def test_swap_or_not_is_a_permutation_of_all_clients() -> None:
    seed = hashlib.sha256(b"x").digest()
    assert sorted(compute_shuffled_index(i, 256, seed) for i in range(256)) == list(range(256))


@settings(max_examples=20, deadline=None)
@given(healthy_sets, seeds, st.integers(0, 2))
def test_elected_witnesses_are_healthy_distinct_and_as_many_as_asked(
    healthy: set[int], seed: int, witness_nodes: int
) -> None:
    account = make_round_account(healthy, seed=seed, min_clients=2, witness_nodes=witness_nodes)
    round_ = account.current_round
    elected = round_.elected_indices
    assert len(elected) == get_num_elected(account, round_)
    assert len(elected) == min(witness_nodes or 32, len(healthy))
    assert set(elected) <= healthy
    positions = dict(zip(sorted(healthy), compute_witness_positions(round_), strict=True))
    assert set(elected) == {index for index in healthy if positions[index] < len(elected)}


def test_the_number_elected_is_bounded_by_the_account() -> None:
    assert compute_num_elected(0, 256) == 32
    assert compute_num_elected(5, 256) == 5
    assert compute_num_elected(5, 3) == 3
    assert compute_num_elected(0, 0) == 0


def test_roles_are_drawn_independently() -> None:
    assert compute_role_seed(1, b"committee") != compute_role_seed(1, b"witness")
    assert compute_role_seed(1, b"witness") != compute_role_seed(2, b"witness")


@settings(max_examples=20, deadline=None)
@given(healthy_sets, seeds, st.integers(0, 50), st.integers(0, 11))
def test_committees_have_their_sizes(healthy: set[int], seed: int, percent: int, ties: int) -> None:
    """Somebody always trains: all but the verifiers do, who are half of the rest at most."""
    record = make_round_account(healthy, seed=seed).record
    record["config"]["verification_percent"] = percent
    record["epoch_state"]["rounds"][0]["tie_breaker_tasks"] = ties
    record["epoch_state"]["rounds"][0]["batch_size"] = 300
    account = CoordinatorAccount(record)
    drawn = compute_committee(account, account.current_round)
    committees = list(drawn.values())
    ties = min(ties, len(healthy))
    others = len(healthy) - ties
    verifiers = max(1, others * percent // 100) if percent and others > 1 else 0
    assert committees.count(Committee.TieBreaker) == ties
    assert committees.count(Committee.Verifier) == verifiers
    assert committees.count(Committee.Trainer) == len(healthy) - ties - verifiers
    trainers = {index for index, committee in drawn.items() if committee is not Committee.Verifier}
    assert set(compute_assignment(account, account.current_round)) == trainers
    assert trainers or not healthy


@settings(max_examples=40, deadline=None)
@given(healthy_sets, seeds, st.integers(0, 5000), st.integers(0, 2**40))
def test_assignment_covers_the_batch_exactly(healthy: set[int], seed: int, batch: int, start: int) -> None:
    account = make_round_account(healthy, seed=seed, batch_size=batch, data_index=start)
    assignment = compute_assignment(account, account.current_round)
    assert set(assignment) <= healthy
    ranges = sorted(assignment.values())
    expected = start
    for first, last in ranges:
        assert first == expected <= last
        expected = last + 1
    assert expected == start + batch
    sizes = [last - first + 1 for first, last in ranges]
    if sizes:
        assert max(sizes) - min(sizes) <= 1
    assert len(ranges) == min(batch, len(healthy))


def test_a_lost_client_shifts_nobodys_index() -> None:
    account = make_round_account([0, 2, 3], seed=5, batch_size=3)
    assert set(compute_assignment(account, account.current_round)) == {0, 2, 3}


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_lcg_shuffle_permutes(seed: int) -> None:
    items = list(range(30))
    shuffled = compute_lcg_shuffle(items, seed)
    assert sorted(shuffled) == items
    assert items == list(range(30))
    assert shuffled == compute_lcg_shuffle(items, seed)
