"""Forward transform against scipy; inverse transform against Python integers, whatever path computes it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
import torch
from distro_tools import choose_positions, cut, invert
from distro_tools import transform as forward

from psyche_py.distro import DistroConfig, DistroError, PayloadLayout, transform
from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.steps import count_units, get_step_rule
from psyche_py.distro.trig import integer_dct_matrix
from psyche_py.distro.update import make_table_rows
from psyche_py.distro.workspace import Workspace

SHAPES = [(128, 192), (64, 64), (192,), (58, 66), (3, 32, 96), (7, 5), (31, 64), (64, 31), (1,), (2, 3, 4, 6)]


def make_group(shape: tuple[int, ...], topk: int = 8, chunk: int = 64) -> tuple[TileGroup, Slot]:
    config = DistroConfig(compression_topk=topk, compression_chunk=chunk)
    (group,) = PayloadLayout.from_shapes({"w": shape}, config).groups
    return group, group.slots[0]


CPU = torch.device("cpu")


def make_workspace() -> Workspace:
    return Workspace(CPU)


def update(slot: Slot, momentum: torch.Tensor, gradient: torch.Tensor, decay: float, scale: float) -> None:
    transform.update_momentum(momentum, gradient, slot, decay, scale, make_workspace())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_is_scipy_s_dctn_with_decay_and_scale(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    _, slot = make_group(shape)
    rng = np.random.default_rng(0)
    momentum = rng.standard_normal(slot.padded_shape).astype(np.float32)
    gradient = torch.from_numpy(rng.standard_normal((slot.rows, slot.cols))).to(dtype)
    got = torch.from_numpy(momentum.copy())
    update(slot, got, gradient, 0.75, 0.5)
    padded = np.zeros(slot.padded_shape)
    padded[: slot.rows, : slot.cols] = gradient.double().numpy()
    expected = 0.75 * cut(slot, momentum) + 0.5 * forward(cut(slot, padded))
    assert np.allclose(cut(slot, got.numpy()), expected, atol=1e-5)


def test_forward_in_blocks_and_of_strided_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    _, slot = make_group((640, 128))
    gradient = torch.randn(128, 640).T
    whole, blocks = torch.zeros(640, 128), torch.zeros(640, 128)
    update(slot, whole, gradient, 0.9, 1.0)
    monkeypatch.setattr(transform, "get_block_elements", lambda device: 64 * 64)
    update(slot, blocks, gradient, 0.9, 1.0)
    assert torch.allclose(whole, blocks, atol=1e-6)


def test_even_frequencies_come_first() -> None:
    assert transform.get_frequencies(5) == [0, 2, 4, 1, 3]
    table = transform.get_forward_table(64, CPU).double().numpy()
    assert np.allclose(table, scipy.fft.dct(np.eye(64), axis=0, norm="ortho")[transform.get_frequencies(64)])


def make_terms(group: TileGroup, num_messages: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Messages side by side, with absent terms and with positions named by several."""
    rng = np.random.default_rng(seed)
    positions = np.concatenate([choose_positions(group, rng) for _ in range(num_messages)], axis=1)
    signs = rng.choice([-1, 0, 1], size=positions.shape, p=[0.45, 0.1, 0.45]).astype(np.int8)
    signs[rng.random(len(signs)) < 0.2] = 0
    return positions, signs


def invert_exactly(
    group: TileGroup, positions: np.ndarray, signs: np.ndarray, num_messages: int, levels: int = 1
) -> np.ndarray:
    """Units [tiles, h, w] by the definition, from Python integers that cannot overflow."""
    bits = transform.get_precision(group, num_messages).table_bits
    left, right = (
        integer_dct_matrix(n, bits)[transform.get_frequencies(n)].astype(object)
        for n in (group.height, group.width)
    )
    tiles = np.zeros((group.num_tiles, group.tile_size), dtype=object)
    for tile, p, s in zip(tiles, positions, signs, strict=True):
        for position, sign in zip(p, s, strict=True):
            tile[position] += int(sign)
    coefficients = tiles.reshape(-1, group.height, group.width)
    sums = np.array([left.T.dot(a).dot(right) for a in coefficients])
    if levels == 1:
        return np.sign(sums).astype(np.float64)
    rule = get_step_rule(group, num_messages, levels)
    kind = np.float32 if rule.dtype == torch.float32 else np.float64
    return np.rint(np.clip(sums.astype(kind) * kind(rule.slope), -levels, levels)).astype(np.float64)


def compute_units(
    group: TileGroup, positions: np.ndarray, signs: np.ndarray, num_messages: int, levels: int = 1
) -> torch.Tensor:
    """[tiles, height, width] as the library computes them; signs for one level."""
    (slot,) = group.slots
    terms = make_table_rows(group, positions[:, None], signs[:, None], CPU)
    precision = transform.choose_precision(group, num_messages)
    blocks = transform.iterate_sums(slot, terms, precision, make_workspace())
    rule = get_step_rule(group, num_messages, levels)
    units = (count_units(x, rule) for _, x in blocks)
    return torch.cat([x.reshape(-1, group.height, group.width).double().clone() for x in units])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("num_messages", "levels"), [(1, 1), (4, 1), (4, 16), (20, 1), (20, 3)])
def test_every_path_gives_the_exact_units(
    shape: tuple[int, ...], num_messages: int, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = make_group(shape)
    positions, signs = make_terms(group, num_messages, seed=num_messages)
    rest = (num_messages, levels)
    expected = torch.from_numpy(invert_exactly(group, positions, signs, *rest))
    assert torch.equal(compute_units(group, positions, signs, *rest), expected)
    order = np.random.default_rng(0).permutation(positions.shape[1])
    assert torch.equal(compute_units(group, positions[:, order], signs[:, order], *rest), expected)
    for is_low_rank in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(transform, "is_low_rank", lambda slot, terms, answer=is_low_rank: answer)
            patch.setattr(transform, "get_block_elements", lambda device: 64 * 64)
            assert torch.equal(compute_units(group, positions, signs, *rest), expected)
            patch.setattr(transform, "is_float32_ieee", lambda: False)
            assert torch.equal(compute_units(group, positions, signs, *rest), expected)


def test_two_threads_give_the_same_units() -> None:
    group, _ = make_group((256, 512))
    positions, signs = make_terms(group, 6, seed=0)
    one = compute_units(group, positions, signs, 6, 16)
    torch.set_num_threads(2)
    assert torch.equal(one, compute_units(group, positions, signs, 6, 16))


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
    group, _ = make_group((64, 64))
    for num_messages in (1, 128, 200):
        positions = np.tile(np.arange(8), num_messages)[None]
        signs = np.ones((1, 8 * num_messages), dtype=np.int8)
        for levels in (1, 16):
            expected = torch.from_numpy(invert_exactly(group, positions, signs, num_messages, levels))
            assert torch.equal(compute_units(group, positions, signs, num_messages, levels), expected)


def test_signs_follow_the_true_inverse_except_near_zero() -> None:
    group, _ = make_group((128, 128))
    positions, signs = make_terms(group, 4, seed=2)
    tiles = np.zeros((group.num_tiles, group.tile_size))
    np.add.at(tiles, (np.arange(group.num_tiles)[:, None], positions), signs)
    true = invert(tiles.reshape(-1, 64, 64))
    got = compute_units(group, positions, signs, 4).numpy()
    differ = got != np.sign(true)
    present = np.abs(tiles).sum(axis=1) > 0
    assert differ[present].mean() < 2e-3
    assert np.abs(true[differ]).max(initial=0.0) < 2e-3
    assert not got[~present].any()


def test_zeros_are_positive_zeros() -> None:
    group, _ = make_group((64, 64))
    nothing = np.zeros((1, 8), dtype=np.int8)
    for num_messages in (1, 40):
        terms = np.tile(nothing, num_messages), np.tile(nothing, num_messages)
        for levels in (1, 16):
            assert not torch.signbit(compute_units(group, *terms, num_messages, levels)).any()


def test_float64_takes_over_when_float32_products_may_be_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    group, slot = make_group((64, 64))
    positions, signs = make_terms(group, 1, seed=0)
    terms = make_table_rows(group, positions[:, None], signs[:, None], CPU)
    for is_ieee, dtype in ((True, torch.float32), (False, torch.float64)):
        monkeypatch.setattr(transform, "is_float32_ieee", lambda answer=is_ieee: answer)
        precision = transform.choose_precision(group, 1)
        blocks = transform.iterate_sums(slot, terms, precision, make_workspace())
        assert {x.dtype for _, x in blocks} == {dtype}


def test_shortcuts_of_the_caller_are_seen() -> None:
    assert transform.is_float32_ieee()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not transform.is_float32_ieee()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert transform.is_float32_ieee()
