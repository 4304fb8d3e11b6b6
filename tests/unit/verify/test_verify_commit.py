"""Commitments to momentum: one root for one momentum, proofs for every tile, lies refused."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from distro_tools import cut
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.distro import DistroConfig, PayloadLayout
from psyche_py.verify import (
    Commitment,
    MomentumSnapshot,
    RevealError,
    VerificationError,
    compute_zero_root,
    decode_reveal,
    encode_reveal,
)
from psyche_py.verify.reveal import compute_reveal_bytes
from psyche_py.verify.tiles import TileMap, cut_tiles

# several groups, a pool, tiles that are padded
SHAPES = {"a": (128, 192), "b": (100, 70), "c": (5,), "d": (33,)}
LAYOUT = PayloadLayout.from_shapes(SHAPES, DistroConfig())
NUM_TILES = LAYOUT.num_tiles


def make_momentum(seed: int) -> torch.Tensor:
    return torch.randn(LAYOUT.num_stored, generator=torch.Generator().manual_seed(seed))


def make_snapshots() -> tuple[MomentumSnapshot, MomentumSnapshot]:
    return MomentumSnapshot(LAYOUT, make_momentum(0)), MomentumSnapshot(LAYOUT, make_momentum(1))


def get_plain_tiles(momentum: torch.Tensor) -> list[np.ndarray]:
    """Tiles in the order of their numbers, cut slot by slot."""
    tiles: list[np.ndarray] = []
    for group in LAYOUT.groups:
        for slot in group.slots:
            first = group.first_element + slot.first_element
            size = slot.padded_shape[0] * slot.padded_shape[1]
            matrix = momentum[first : first + size].numpy().reshape(slot.padded_shape)
            tiles += [tile.astype("<f4").reshape(-1) for tile in cut(slot, matrix)]
    return tiles


def test_the_root_is_that_of_a_plain_tree() -> None:
    momentum = make_momentum(0)
    plain = get_plain_tiles(momentum)
    assert MomentumSnapshot(LAYOUT, momentum).root == compute_merkle_root([x.tobytes() for x in plain])
    assert np.array_equal(np.concatenate(plain), cut_tiles(LAYOUT, momentum.numpy()))


def test_threads_and_old_memory_do_not_change_the_root() -> None:
    before, after = make_snapshots()
    root = after.root
    assert MomentumSnapshot(LAYOUT, make_momentum(1), num_threads=3).root == root
    assert MomentumSnapshot(LAYOUT, make_momentum(1), into=before).root == root


def test_a_snapshot_is_a_copy() -> None:
    momentum = make_momentum(0)
    snapshot = MomentumSnapshot(LAYOUT, momentum)
    momentum.zero_()
    assert snapshot.get_tile(0).any()
    assert MomentumSnapshot(LAYOUT, momentum).root == compute_zero_root(LAYOUT)


def test_every_element_is_committed_to() -> None:
    momentum = make_momentum(0)
    root = MomentumSnapshot(LAYOUT, momentum).root
    for place in range(0, LAYOUT.num_stored, 997):
        changed = momentum.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(10.0))
        assert MomentumSnapshot(LAYOUT, changed).root != root


def test_momentum_of_another_layout_is_refused() -> None:
    with pytest.raises(VerificationError):
        MomentumSnapshot(LAYOUT, torch.zeros(5))
    with pytest.raises(VerificationError):
        MomentumSnapshot(LAYOUT, torch.zeros(LAYOUT.num_stored, dtype=torch.float64))


def test_reveals_prove_exactly_the_tiles_asked_for() -> None:
    before, after = make_snapshots()
    tiles = list(range(NUM_TILES))
    data = encode_reveal(before, after, tiles)
    assert len(data) == compute_reveal_bytes(LAYOUT, tiles)
    for reveal in decode_reveal(LAYOUT, tiles, data):
        assert reveal.is_proven(before.root, after.root)
        assert not reveal.is_proven(after.root, before.root)
        assert np.array_equal(reveal.before, before.get_tile(reveal.tile))
        assert np.array_equal(reveal.after, after.get_tile(reveal.tile))


def test_another_tiles_answer_proves_nothing() -> None:
    before, after = make_snapshots()
    place = TileMap(LAYOUT).get_place
    twins = [t for t in range(NUM_TILES) if place(t).group.tile_size == 64 * 64]
    assert len(twins) >= 2
    (reveal,) = decode_reveal(LAYOUT, [twins[0]], encode_reveal(before, after, [twins[1]]))
    assert not reveal.is_proven(before.root, after.root)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_answers_are_refused_or_prove_nothing(data: st.DataObject) -> None:
    before, after = make_snapshots()
    tiles = data.draw(
        st.lists(st.integers(0, NUM_TILES - 1), min_size=1, max_size=3, unique=True).map(sorted)
    )
    answer = bytearray(encode_reveal(before, after, tiles))
    place = data.draw(st.integers(0, len(answer) - 1))
    answer[place] ^= data.draw(st.integers(1, 255))
    try:
        reveals = decode_reveal(LAYOUT, tiles, bytes(answer))
    except RevealError:
        return
    assert not all(reveal.is_proven(before.root, after.root) for reveal in reveals)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(-40, 40))
def test_wrong_lengths_are_refused(junk: bytes, change: int) -> None:
    before, after = make_snapshots()
    answer = encode_reveal(before, after, [0])
    with pytest.raises(RevealError):
        decode_reveal(LAYOUT, [0], junk)
    if change:
        changed = answer[:change] if change < 0 else answer + bytes(change)
        with pytest.raises(RevealError):
            decode_reveal(LAYOUT, [0], changed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    momentum = make_momentum(1)
    momentum[0] = value
    before = MomentumSnapshot(LAYOUT, make_momentum(0))
    answer = encode_reveal(before, MomentumSnapshot(LAYOUT, momentum), [0])
    with pytest.raises(RevealError, match="finite"):
        decode_reveal(LAYOUT, [0], answer)


def test_tiles_that_do_not_exist_cannot_be_asked_for() -> None:
    """Nor the one that the tree's odd levels pair with themselves."""
    before, after = make_snapshots()
    for tile in (-1, NUM_TILES, 10**9):
        with pytest.raises(IndexError):
            encode_reveal(before, after, [tile])
        with pytest.raises(IndexError):
            decode_reveal(LAYOUT, [tile], b"")
    with pytest.raises(VerificationError):
        encode_reveal(before, after, [])


def test_commitments_have_one_encoding() -> None:
    fields = [bytes([i]) * 32 for i in range(3)]
    commitment = Commitment(*fields)
    assert Commitment.decode(commitment.encode()) == commitment
    assert commitment.compute_hash() == hashlib.sha256(b"psyche-py/commitment/1" + b"".join(fields)).digest()
    for data in (b"", bytes(95), bytes(97)):
        with pytest.raises(ValueError):
            Commitment.decode(data)
    with pytest.raises(ValueError):
        Commitment(b"", bytes(32), bytes(32))
