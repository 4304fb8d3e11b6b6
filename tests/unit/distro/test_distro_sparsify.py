"""Exact top-k with a defined order, against a sort by (|value| descending, position ascending)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distro_tools import cut
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.distro import DistroConfig, PayloadLayout
from psyche_py.distro.layout import TileGroup
from psyche_py.distro.sparsify import (
    get_element_indices,
    is_hierarchical,
    make_segment_table,
    record_highest,
    select_topk,
)
from psyche_py.distro.workspace import Workspace

CPU = torch.device("cpu")


def make_group(shape: tuple[int, ...], topk: int, chunk: int = 64) -> TileGroup:
    config = DistroConfig(compression_topk=topk, compression_chunk=chunk)
    (group,) = PayloadLayout.from_shapes({"w": shape}, config).groups
    return group


def cut_tiles(group: TileGroup, flat: np.ndarray) -> np.ndarray:
    """[tiles, height * width] by definition, matrix by matrix."""
    tiles = []
    for slot in group.slots:
        matrix = flat[slot.first_element : slot.first_element + slot.num_tiles * group.tile_size]
        tiles.append(cut(slot, matrix.reshape(slot.padded_shape)))
    return np.concatenate(tiles).reshape(group.num_tiles, -1)


def check_selection(group: TileGroup, values: np.ndarray) -> None:
    """The selection is exactly the defined one, and its element indices lead back to the same values."""
    flat = torch.from_numpy(values.astype(np.float32))
    table = make_segment_table(group, CPU)
    segments, highest = flat.view(-1, group.width), None
    if is_hierarchical(group):
        highest = torch.empty(len(segments))
        record_highest(segments, highest, Workspace(CPU))
    found = select_topk(segments, table, group.topk, highest)
    tiles = cut_tiles(group, flat.numpy())
    order = np.argsort(-np.abs(tiles), axis=1, kind="stable")[:, : group.topk]
    nonzero = np.take_along_axis(tiles, order, 1) != 0
    for expected, keep, got, value, tile in zip(
        order, nonzero, found.positions.numpy(), found.values.numpy(), tiles, strict=True
    ):
        # Among zeros the choice is free: they are not sent.
        assert set(expected[keep]) == set(got[value != 0])
        assert np.array_equal(tile[got], value)
    indices = get_element_indices(table, found.positions, group.width)
    assert torch.equal(flat[indices], found.values)


SHAPES = [(128, 192), (64, 64), (192,), (58, 66), (3, 64, 128), (7, 5), (1, 1), (31, 64), (64, 31)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("topk", [1, 2, 8, 16, 17, 64])
def test_distinct_values(shape: tuple[int, ...], topk: int) -> None:
    group = make_group(shape, topk)
    check_selection(group, np.random.default_rng(0).standard_normal(group.num_stored))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("topk", [1, 3, 8, 20])
@pytest.mark.parametrize("levels", [1, 2, 5, 300])
def test_ties_go_to_the_smaller_position(shape: tuple[int, ...], topk: int, levels: int) -> None:
    group = make_group(shape, topk)
    rng = np.random.default_rng(levels)
    check_selection(group, rng.integers(-levels, levels + 1, group.num_stored).astype(float))


def test_ties_across_rows_and_columns_left_out() -> None:
    group = make_group((64, 64), 8)
    for pattern in ("row", "column", "diagonal", "all"):
        tile = np.full((64, 64), 0.25)
        if pattern == "row":
            tile[63] = -1.0
        elif pattern == "column":
            tile[:, 63] = 1.0
        elif pattern == "diagonal":
            np.fill_diagonal(tile, -1.0)
        check_selection(group, tile.reshape(-1))


@pytest.mark.parametrize(("late", "early"), [(10, 3), (3, 10)])
def test_a_tie_among_the_candidates_does_not_follow_their_order(late: int, early: int) -> None:
    """Seven clear winners and one tie, all inside the chosen rows and columns; the louder row comes first."""
    tile = np.full((64, 64), 0.25)
    tile[late, 0], tile[late, 1] = 5.0, 1.0
    tile[early, 1], tile[early, 0] = 4.0, 1.0
    for i in range(5):
        tile[20 + i, 2 + i] = 3.0
    check_selection(make_group((64, 64), 8), tile.reshape(-1))


@pytest.mark.parametrize("topk", [4, 8, 40])
def test_tiles_that_are_zero_or_nearly(topk: int) -> None:
    group = make_group((128, 128), topk)
    values = np.zeros((128, 128))
    values[3, 70] = -2.0
    values[70, 5:9] = [1.0, -1.0, 1e-30, -1e-42]
    check_selection(group, values.reshape(-1))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_shape_with_many_ties(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 66), min_size=1, max_size=3)))
    group = make_group(shape, data.draw(st.integers(1, 64)), data.draw(st.integers(1, 64)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    levels = data.draw(st.sampled_from([1, 3, 50, 10**6]))
    check_selection(group, rng.integers(-levels, levels + 1, group.num_stored) / 7)


def test_several_tensors_in_one_group() -> None:
    layout = PayloadLayout.from_shapes({"b": (64, 128), "a": (128, 64), "c": (2, 64, 64)}, DistroConfig())
    (group,) = layout.groups
    assert [slot.name for slot in group.slots] == ["a", "b", "c"]
    check_selection(group, np.random.default_rng(0).standard_normal(group.num_stored))
