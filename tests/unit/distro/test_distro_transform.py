"""Forward transform against scipy; inverse transform against Python integers, whatever path computes it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.fft
import torch

from psyche_py.distro import DistroConfig, DistroError, PayloadLayout, transform
from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.trig import integer_dct_matrix

SHAPES = [(128, 192), (64, 64), (192,), (58, 66), (3, 32, 96), (7, 5), (31, 64), (64, 31), (1,), (2, 3, 4, 6)]


def make_group(shape: tuple[int, ...], topk: int = 8, chunk: int = 64) -> tuple[TileGroup, Slot]:
    config = DistroConfig(compression_topk=topk, compression_chunk=chunk)
    (group,) = PayloadLayout.from_shapes({"w": shape}, config).groups
    return group, group.slots[0]


def cut(slot: Slot, matrix: np.ndarray) -> np.ndarray:
    """[bands, across, height, width]."""
    h, w = slot.height, slot.width
    return matrix.reshape(slot.rows // h, h, slot.cols // w, w).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_is_scipy_s_dctn_with_decay_and_scale(shape: tuple[int, ...]) -> None:
    _, slot = make_group(shape)
    rng = np.random.default_rng(0)
    momentum, gradient = rng.standard_normal((2, slot.rows, slot.cols)).astype(np.float32)
    got = torch.from_numpy(momentum.copy())
    transform.update_momentum(got, torch.from_numpy(gradient), slot, 0.75, 0.5)
    expected = 0.75 * cut(slot, momentum) + 0.5 * scipy.fft.dctn(
        cut(slot, gradient).astype(np.float64), axes=(2, 3), norm="ortho"
    )
    assert np.allclose(cut(slot, got.numpy()), expected, atol=1e-5)


def test_forward_in_blocks_and_from_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    _, slot = make_group((640, 64))
    gradient = torch.randn(640, 64).to(torch.bfloat16)
    whole, blocks = torch.zeros(640, 64), torch.zeros(640, 64)
    transform.update_momentum(whole, gradient, slot, 0.9, 1.0)
    monkeypatch.setattr(transform, "get_block_elements", lambda device: 64 * 64)
    transform.update_momentum(blocks, gradient, slot, 0.9, 1.0)
    assert torch.allclose(whole, blocks, atol=1e-6)


def make_terms(group: TileGroup, num_messages: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Messages side by side, with absent terms and with positions named by several."""
    rng = np.random.default_rng(seed)
    parts = [
        rng.permuted(np.broadcast_to(np.arange(group.tile_size), (group.num_tiles, group.tile_size)), axis=1)[
            :, : group.topk
        ]
        for _ in range(num_messages)
    ]
    positions = np.concatenate(parts, axis=1).astype(np.uint16)
    signs = rng.choice([-1, 0, 1], size=positions.shape, p=[0.45, 0.1, 0.45]).astype(np.int8)
    signs[rng.random(len(signs)) < 0.2] = 0
    return torch.from_numpy(positions), torch.from_numpy(signs)


def invert_exactly(
    group: TileGroup, positions: torch.Tensor, signs: torch.Tensor, num_messages: int
) -> np.ndarray:
    """Signs [tiles, h, w] by the definition, in Python integers that cannot overflow."""
    bits = transform.get_precision(group, num_messages).table_bits
    left = integer_dct_matrix(group.height, bits).astype(object)
    right = integer_dct_matrix(group.width, bits).astype(object)
    tiles = np.zeros((group.num_tiles, group.tile_size), dtype=object)
    for tile, p, s in zip(tiles, positions.numpy(), signs.numpy(), strict=True):
        for position, sign in zip(p, s, strict=True):
            tile[position] += int(sign)
    coefficients = tiles.reshape(-1, group.height, group.width)
    return np.array([np.sign(left.T.dot(a).dot(right)) for a in coefficients]).astype(np.float64)


def collect(blocks: Iterator[tuple[slice, torch.Tensor]], group: TileGroup) -> torch.Tensor:
    return torch.cat([x.reshape(-1, group.height, group.width).double() for _, x in blocks])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_messages", [1, 4, 20])
def test_every_path_gives_the_exact_signs(
    shape: tuple[int, ...], num_messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, slot = make_group(shape)
    positions, signs = make_terms(group, num_messages, seed=num_messages)
    expected = torch.from_numpy(invert_exactly(group, positions, signs, num_messages))

    def run() -> torch.Tensor:
        return collect(transform.iterate_signs(slot, group, positions, signs, num_messages), group)

    assert torch.equal(run(), expected)
    order = torch.randperm(positions.shape[1])
    mixed = transform.iterate_signs(slot, group, positions[:, order], signs[:, order], num_messages)
    assert torch.equal(collect(mixed, group), expected)
    for path in ("_invert_terms", "_invert_dense"):
        with monkeypatch.context() as patch:
            chosen = getattr(transform, path)
            patch.setattr(transform, "_invert_terms", chosen)
            patch.setattr(transform, "_invert_dense", chosen)
            patch.setattr(transform, "get_block_elements", lambda device: 64 * 64)
            assert torch.equal(run(), expected)
            patch.setattr(transform, "is_float32_ieee", lambda: False)
            assert torch.equal(run(), expected)


def test_two_threads_give_the_same_signs() -> None:
    group, slot = make_group((256, 512))
    positions, signs = make_terms(group, 6, seed=0)
    one = collect(transform.iterate_signs(slot, group, positions, signs, 6), group)
    torch.set_num_threads(2)
    two = collect(transform.iterate_signs(slot, group, positions, signs, 6), group)
    assert torch.equal(one, two)


@pytest.mark.parametrize("topk", [1, 8, 64])
@pytest.mark.parametrize("shape", [(64, 64), (192,), (58, 66), (1,)])
def test_worst_sums_stay_exact_integers(shape: tuple[int, ...], topk: int) -> None:
    """The bound of the exactness argument, for every number of messages up to the 256 clients of a run."""
    group, _ = make_group(shape, topk)
    sides = (group.height > 1) + (group.width > 1)
    for num_messages in range(1, 300):
        precision = transform.get_precision(group, num_messages)
        limit = 24 if precision.dtype == torch.float32 else 53
        assert 2 ** (sides * precision.table_bits) * group.topk * num_messages <= 2**limit
        assert precision.table_bits >= 7 or sides == 0


def test_table_widths_of_the_usual_tile() -> None:
    group, _ = make_group((64, 64))
    widths = {n: transform.get_precision(group, n) for n in (1, 4, 8, 32, 128, 129, 256)}
    assert {n: p.table_bits for n, p in widths.items()} == {
        1: 10,
        4: 9,
        8: 9,
        32: 8,
        128: 7,
        129: 20,
        256: 20,
    }
    assert {n for n, p in widths.items() if p.dtype == torch.float64} == {129, 256}
    with pytest.raises(DistroError, match="too many"):
        transform.get_precision(group, 2**40)


def test_every_message_naming_one_coefficient_is_the_worst_case_and_exact() -> None:
    group, slot = make_group((64, 64))
    for num_messages in (1, 128, 200):
        positions = torch.arange(8).repeat(num_messages).view(1, -1).to(torch.uint16)
        signs = torch.ones(1, 8 * num_messages, dtype=torch.int8)
        expected = torch.from_numpy(invert_exactly(group, positions, signs, num_messages))
        got = collect(transform.iterate_signs(slot, group, positions, signs, num_messages), group)
        assert torch.equal(got, expected)


def test_signs_follow_the_true_inverse_except_near_zero() -> None:
    group, slot = make_group((128, 128))
    positions, signs = make_terms(group, 4, seed=2)
    tiles = np.zeros((group.num_tiles, group.tile_size))
    np.add.at(tiles, (np.arange(group.num_tiles)[:, None], positions.numpy().astype(int)), signs.numpy())
    true = scipy.fft.idctn(tiles.reshape(-1, 64, 64), axes=(1, 2), norm="ortho")
    got = collect(transform.iterate_signs(slot, group, positions, signs, 4), group).numpy()
    differ = got != np.sign(true)
    present = np.abs(tiles).sum(axis=1) > 0
    assert differ[present].mean() < 2e-3
    assert np.abs(true[differ]).max(initial=0.0) < 2e-3
    assert not got[~present].any()


def test_zeros_are_positive_zeros() -> None:
    group, slot = make_group((64, 64))
    positions, signs = torch.zeros(1, 8, dtype=torch.uint16), torch.zeros(1, 8, dtype=torch.int8)
    for _, x in transform.iterate_signs(slot, group, positions, signs, 1):
        assert not torch.signbit(x).any()


def test_float64_takes_over_when_float32_products_may_be_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    group, slot = make_group((64, 64))
    positions, signs = make_terms(group, 1, seed=0)
    for is_ieee, dtype in ((True, torch.float32), (False, torch.float64)):
        monkeypatch.setattr(transform, "is_float32_ieee", lambda answer=is_ieee: answer)
        assert {x.dtype for _, x in transform.iterate_signs(slot, group, positions, signs, 1)} == {dtype}


def test_shortcuts_of_the_caller_are_seen() -> None:
    assert transform.is_float32_ieee()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not transform.is_float32_ieee()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert transform.is_float32_ieee()
