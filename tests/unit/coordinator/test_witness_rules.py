"""Quorum, blooms, Merkle trees, consensus and points."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rulebook_driver import make_round_account

from psyche_py.coordinator.bloom import Bloom, compute_positions
from psyche_py.coordinator.layout import set_bitmap, set_bytes
from psyche_py.coordinator.merkle import (
    compute_changed_root,
    compute_leaf,
    compute_levels,
    compute_merkle_path,
    compute_merkle_root,
    is_merkle_path_valid,
)
from psyche_py.coordinator.rewards import compute_shares
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.witness import (
    Attestation,
    compute_attestations,
    compute_attested_clients,
    compute_outcomes,
    compute_quorum,
    compute_votes,
    get_quorum,
)

hashes = st.binary(min_size=32, max_size=32)


def make_hash(number: int) -> bytes:
    return hashlib.sha256(bytes([number])).digest()


def make_attested_account(
    blooms: list[list[bytes]], participants: list[set[int]], num_clients: int
) -> CoordinatorAccount:
    """Witness i saw ``participants[i]`` and holds ``blooms[i]``."""
    record = make_round_account(range(num_clients), seed=99).record
    current = record["epoch_state"]["rounds"][0]
    current["num_witnesses"] = len(participants)
    for number, seen in enumerate(participants):
        witness = current["witnesses"][number]
        witness["index"] = number
        set_bitmap(witness, "participants", sum(1 << index for index in seen))
        bloom = Bloom(99)
        for item in blooms[number]:
            bloom.add(item)
        witness["broadcast_bloom"] = np.array(bloom.words, dtype="<u8")
    return CoordinatorAccount(record)


def test_quorum_is_psyches_but_of_four() -> None:
    assert [compute_quorum(n) for n in range(10)] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 6]
    assert compute_quorum(32) == 21


@given(st.integers(1, 32))
def test_quorum_is_monotone_and_two_of_them_share_a_witness(num: int) -> None:
    assert compute_quorum(num) <= compute_quorum(num + 1)
    assert num < 2 * compute_quorum(num) <= 2 * num


@settings(max_examples=50)
@given(st.integers(0, 2**64 - 1), st.lists(hashes, max_size=32))
def test_bloom_never_forgets(seed: int, items: list[bytes]) -> None:
    bloom = Bloom(seed)
    for item in items:
        bloom.add(item)
    assert all(item in Bloom(seed, bloom.words) for item in items)
    assert all(0 <= word < 2**64 for word in bloom.words)
    assert len(bloom.words) == 16


def test_bloom_rarely_errs_at_32_items() -> None:
    bloom = Bloom(7)
    for number in range(32):
        bloom.add(make_hash(number))
    strangers = [hashlib.sha256(f"stranger {i}".encode()).digest() for i in range(5000)]
    assert sum(item in bloom for item in strangers) < 5


def test_bloom_positions_depend_on_the_seed() -> None:
    assert compute_positions(1, make_hash(0)) != compute_positions(2, make_hash(0))
    assert make_hash(0) not in Bloom(1)


def attest(account: CoordinatorAccount, vectors: list[dict[int, bytes]]) -> list[Attestation]:
    """What :func:`compute_attestations` makes of witnesses that attest these commitments by trainer."""
    current = account.record["epoch_state"]["rounds"][0]
    for number, vector in enumerate(vectors):
        leaves = [digest for _, digest in sorted(vector.items())]
        root = compute_merkle_root(leaves) if leaves else bytes(32)
        set_bytes(current["witnesses"][number], "broadcast_merkle", root)
    account = CoordinatorAccount(account.record)
    return list(compute_attestations(account.current_round, range(8)))


def decide(
    vectors: list[dict[int, bytes]], num_clients: int, is_open: Callable[[int], bool] = lambda _: True
) -> dict[int, bytes | None]:
    """Outcomes by one who could open the witnesses' roots as ``is_open`` says of the first alike."""
    account = make_attested_account([[]] * len(vectors), [set(v) for v in vectors], num_clients)
    attestations = attest(account, vectors)
    openings = {
        a.key: tuple(digest for _, digest in sorted(vectors[a.witnesses[0]].items()))
        for a in attestations
        if is_open(a.witnesses[0])
    }
    current = CoordinatorAccount(account.record).current_round
    return compute_outcomes(account, current, attestations, openings)


def test_witnesses_that_say_the_same_are_one_attestation() -> None:
    a, b = make_hash(1), make_hash(2)
    vectors = [{0: a, 1: b}, {0: a, 1: b}, {0: a}, {1: a}]
    # clients 100 and 101 had no samples: whether they took part says nothing about results
    account = make_attested_account([[a, b], [a], [a], []], [{0, 1, 100}, {0, 1, 101}, {0}, {1}], 4)
    found = attest(account, vectors)
    assert [(f.trainers, f.witnesses) for f in found] == [((0, 1), (0, 1)), ((0,), (2,)), ((1,), (3,))]
    assert found[1].root == found[2].root
    blooms = CoordinatorAccount(account.record).current_round.bloom_bitmaps
    assert found[0].bloom == blooms[0] | blooms[1]


def test_a_result_counts_when_a_quorum_of_roots_holds_it() -> None:
    a, b = make_hash(1), make_hash(2)
    assert decide([{0: a}, {0: a}, {0: a}, {0: b}], 4) == {0: a}
    assert decide([{0: a}, {0: a}, {0: b}, {0: b}], 4) == {0: None}, "no quorum for either, and never will be"
    assert decide([{0: a}, {0: a}, {1: b}], 4) == {}, "attested by nobody's quorum"


def test_nothing_waits_for_a_root_that_cannot_matter() -> None:
    a, b = make_hash(1), make_hash(2)

    def open_all_but_the_last(witness: int) -> bool:
        return witness < 3

    assert decide([{0: a}, {0: a}, {0: a}, {0: b}], 4, open_all_but_the_last) == {0: a}
    assert decide([{0: a}, {0: a}, {1: a}, {0: b}], 4, open_all_but_the_last) == {}, "its vote would decide"
    assert decide([{0: a}, {0: b}, {1: a}, {0: make_hash(3)}], 4, open_all_but_the_last) == {0: None}


def test_a_root_speaks_of_the_clients_its_witness_names() -> None:
    """A witness that repeats an honest root and names others attests nothing for the honest one's."""
    a = make_hash(1)
    assert decide([{0: a}, {0: a}, {1: a}], 3) == {0: a}


def test_silent_witnesses_do_not_lower_the_quorum() -> None:
    account = make_attested_account([[]], [{0}], 6)
    assert get_quorum(account, account.current_round) == 4
    assert decide([{0: make_hash(1)}], 6) == {}
    assert compute_attested_clients(account, account.current_round) == set()


vectors = st.dictionaries(st.integers(0, 5), st.integers(0, 2).map(make_hash), max_size=6)


@settings(max_examples=200)
@given(st.lists(vectors, max_size=8), st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_who_can_open_less_decides_less_and_nothing_else(
    said: list[dict[int, bytes]], num_clients: int, opened: set[int]
) -> None:
    """All decisions are those of one who can open everything: whoever decides decides the same."""
    said = said[:num_clients]
    account = make_attested_account([[]] * len(said), [set(vector) for vector in said], num_clients)
    everything, some = decide(said, num_clients), decide(said, num_clients, opened.__contains__)
    assert some.items() <= everything.items()
    assert everything.keys() == compute_attested_clients(account, account.current_round)
    quorum = compute_quorum(num_clients)
    for index, digest in everything.items():
        votes = [vector[index] for vector in said if index in vector]
        assert digest == next((d for d in set(votes) if votes.count(d) >= quorum), None)


def test_attested_clients_have_a_quorum_of_votes() -> None:
    account = make_attested_account([[]] * 3, [{0, 1, 200}, {0, 200}, {0}], 3)
    votes = compute_votes(account.current_round)
    assert (votes[0], votes[1], votes[2], votes[200]) == (3, 1, 0, 2)
    assert compute_attested_clients(account, account.current_round) == {0, 200}


def test_votes_of_a_round_without_witnesses_are_zero() -> None:
    account = make_attested_account([], [], 3)
    assert compute_votes(account.current_round) == [0] * 256


@settings(max_examples=40)
@given(st.lists(hashes, min_size=1, max_size=20), st.data())
def test_merkle_paths_prove_their_leaf_only(leaves: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    root, path = compute_merkle_root(leaves), compute_merkle_path(leaves, index)
    assert is_merkle_path_valid(root, leaves[index], index, path)
    assert not is_merkle_path_valid(root, bytes(31) + b"x", index, path)
    assert not is_merkle_path_valid(root, leaves[index], index + (1 << len(path)), path)


@settings(max_examples=60)
@given(st.lists(hashes, min_size=1, max_size=20), st.data())
def test_changed_leaves_change_the_root_as_if_it_were_made_anew(
    leaves: list[bytes], data: st.DataObject
) -> None:
    changes = data.draw(st.dictionaries(st.integers(0, len(leaves) - 1), hashes, min_size=1))
    levels = compute_levels([compute_leaf(leaf) for leaf in leaves])
    changed = compute_changed_root(levels, {index: compute_leaf(leaf) for index, leaf in changes.items()})
    assert changed == compute_merkle_root([changes.get(i, leaf) for i, leaf in enumerate(leaves)])


def test_merkle_shape_is_solanas() -> None:
    def leaf(data: bytes) -> bytes:
        return hashlib.sha256(b"\0" + data).digest()

    def node(left: bytes, right: bytes) -> bytes:
        return hashlib.sha256(b"\1" + left + right).digest()

    a, b, c = b"a", b"b", b"c"
    assert compute_merkle_root([a]) == leaf(a)
    pairs = node(leaf(a), leaf(b)), node(leaf(c), leaf(c))
    assert compute_merkle_root([a, b, c]) == node(*pairs)
    with pytest.raises(ValueError, match="at least one"):
        compute_merkle_root([])


@settings(max_examples=100)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=256))
def test_points_are_shared_exactly(total: int, weights: list[int]) -> None:
    shares = compute_shares(total, weights)
    assert sum(shares) == (total if any(weights) else 0)
    for share, weight in zip(shares, weights, strict=True):
        exact = total * weight / max(sum(weights), 1)
        assert share >= 0
        assert abs(share - exact) <= max(1, exact * 1e-9)
        if weight == 0:
            assert share == 0


def test_left_over_points_go_to_the_largest_remainder_then_the_lower_index() -> None:
    assert compute_shares(10, [1, 1, 1]) == [4, 3, 3]
    assert compute_shares(2, [1, 1, 1]) == [1, 1, 0]
    assert compute_shares(7, [1, 2, 3]) == [1, 2, 4]
    assert compute_shares(7, [0, 0]) == [0, 0]
