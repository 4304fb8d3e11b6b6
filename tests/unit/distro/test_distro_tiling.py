"""The tiling rule: one price for every tensor, whatever its shape; the pool; a layout that covers all."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.distro import DistroConfig, PayloadLayout
from psyche_py.distro.layout import Slot
from psyche_py.distro.tiling import choose_matrix_tile, get_matrix_shape


def lay_out(shapes: dict[str, tuple[int, ...]], topk: int = 8, chunk: int = 64) -> PayloadLayout:
    return PayloadLayout.from_shapes(shapes, DistroConfig(compression_topk=topk, compression_chunk=chunk))


def get_slot(shape: tuple[int, ...], topk: int = 8) -> tuple[Slot, int]:
    layout = lay_out({"x": shape}, topk)
    i, slot = layout.get_place("x")
    return slot, layout.groups[i].topk


@pytest.mark.parametrize(
    ("shape", "tile", "topk"),
    [
        ((768, 3072), (64, 64), 8),
        ((704, 64), (64, 64), 8),
        ((50257, 768), (64, 64), 8),  # 29 * 1733: padded by 47 rows
        ((32003, 64), (64, 64), 8),  # a prime: padded by 61
        ((96, 96), (48, 96), 9),
        ((90, 90), (45, 90), 7),
        ((32, 4096), (32, 128), 8),
        ((8, 576, 1536), (64, 64), 8),
        ((64, 32, 3, 3), (64, 72), 9),
    ],
)
def test_tiles_of_known_shapes(shape: tuple[int, ...], tile: tuple[int, int], topk: int) -> None:
    slot, sent = get_slot(shape)
    assert slot.name == "x"
    assert ((slot.height, slot.width), sent) == (tile, topk)


def test_small_and_narrow_tensors_share_the_pool() -> None:
    shapes = {"w": (256, 256), "norm": (768,), "bias": (2000,), "thin": (3, 900), "small": (10, 20)}
    layout = lay_out(shapes)
    (pool,) = (slot for group in layout.groups for slot in group.slots if not slot.name)
    assert [member.name for member in pool.members] == ["bias", "norm", "small", "thin"]
    assert [member.first for member in pool.members] == [0, 2000, 2768, 2968]
    assert pool.num_elements == 5668
    assert (pool.cols, pool.width) == (64, 64)


def test_a_dear_pool_takes_in_the_smallest_matrices() -> None:
    layout = lay_out({"norm": (64,), "w": (64, 128), "big": (640, 640)})
    (pool,) = (slot for group in layout.groups for slot in group.slots if not slot.name)
    assert [member.name for member in pool.members] == ["norm", "w"]


def test_matrix_views_of_more_dimensions() -> None:
    assert get_matrix_shape((8, 768, 3072), 64) == (6144, 3072)
    assert get_matrix_shape((64, 32, 3, 3), 64) == (64, 288)
    assert get_matrix_shape((5, 7), 64) == (5, 7)
    assert choose_matrix_tile(8, 100_000, 64, 8) is None


side = st.one_of(
    st.integers(1, 300), st.sampled_from([29, 31, 37, 61, 64, 96, 97, 127, 128, 131, 257, 509, 1009, 2053])
)


@settings(max_examples=120, deadline=None)
@given(
    shapes=st.lists(st.lists(side, min_size=1, max_size=3), min_size=1, max_size=4),
    topk=st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64]),
)
def test_no_tensor_costs_more_than_one_and_a_half(shapes: list[list[int]], topk: int) -> None:
    """Beside one usual matrix, which a lone vector may have to join."""
    named = {f"t{i}": tuple(shape) for i, shape in enumerate(shapes) if math.prod(shape) < 4_000_000}
    layout = lay_out({**named, "usual": (128, 192)}, topk)
    nominal = lay_out({"x": (4096, 64)}, topk).compute_bits_per_element("x")
    for name in named:
        cost = layout.compute_bits_per_element(name)
        assert cost <= Fraction(3, 2) * nominal, (name, float(cost / nominal))


@settings(max_examples=80, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 70), min_size=0, max_size=4), min_size=1, max_size=6),
    chunk=st.integers(1, 32),
)
def test_every_element_lies_in_one_tile(shapes: list[list[int]], chunk: int) -> None:
    named = {f"t{i}": tuple(shape) for i, shape in enumerate(shapes)}
    layout = lay_out(named, topk=3, chunk=chunk)
    seen = {}
    first_element, first_byte = 0, 16
    for group in layout.groups:
        assert (group.first_element, group.first_byte) == (first_element, first_byte)
        tiles = 0
        for slot in group.slots:
            assert (slot.first_tile, slot.first_element) == (tiles, tiles * group.tile_size)
            assert slot.padded_shape[0] >= slot.rows > slot.padded_shape[0] - slot.height
            assert slot.padded_shape[1] >= slot.cols > slot.padded_shape[1] - slot.width
            end = 0
            for member in slot.members:
                assert member.first == end
                end += member.num_elements
                seen[member.name] = member.shape
            assert slot.rows * slot.cols >= end > (slot.rows - 1) * slot.cols
            tiles += slot.num_tiles
        assert tiles == group.num_tiles
        first_element += group.num_stored
        first_byte += group.num_bytes
    assert seen == {name: shape for name, shape in named.items() if math.prod(shape)}
    assert (layout.num_stored, layout.num_bytes) == (first_element, first_byte)
    assert layout.num_elements == sum(math.prod(shape) for shape in named.values())
