"""The Triton kernels in Triton's interpreter, on CPU tensors. ``test_distro_triton`` runs this file.

``TRITON_INTERPRET=1`` has to be set before triton is imported, so it is a process of its own. The interpreter
computes each operation with numpy: it shows what the kernels say, not how a GPU rounds or orders it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from distro_tools import count_launches, fill_gradients, make_message
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer, jit, triton_check, triton_choice, triton_launch
from psyche_py.distro.digest import compute_model_digest
from psyche_py.distro.layout import Slot
from psyche_py.distro.payload import decode_payload, encode_payload

assert os.environ["TRITON_INTERPRET"] == "1"

CPU = torch.device("cpu")
# whole tiles, cut off at the right, at both, a stack, and a pool
SHAPES = {"w": (64, 128), "right": (64, 125), "both": (126, 125), "experts": (2, 64, 64), "b": (9,)}
LR = 0.0371


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let the optimizer take a CPU for a GPU, and count the launches."""
    counts = count_launches(monkeypatch, triton_launch)
    monkeypatch.setattr(jit, "load_kernels", lambda name: None)
    monkeypatch.setattr(triton_choice, "is_supported", lambda device: True)
    monkeypatch.setattr(triton_choice, "_passes", lambda *variant: True)  # the checks have tests of their own
    return counts


def make_parameters(dtype: torch.dtype = torch.float32) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(5)
    return {name: Parameter(torch.randn(s, generator=generator).to(dtype)) for name, s in SHAPES.items()}


def get_slots(optimizer: DistroOptimizer) -> list[Slot]:
    """Those of groups that the kernels fit."""
    groups = optimizer.payload_layout.groups
    return [slot for g in groups if {g.height, g.width} <= set(triton_choice.SIDES) for slot in g.slots]


# -- what a process checks before it uses a kernel --


@pytest.mark.parametrize(
    ("height", "width", "topk", "dtype"),
    [
        (64, 64, 8, torch.bfloat16),
        (64, 32, 64, torch.float32),
        (32, 32, 1, torch.float16),
        (16, 64, 5, torch.float32),
        (16, 16, 20, torch.bfloat16),
    ],
)
def test_messages_agree(height: int, width: int, topk: int, dtype: torch.dtype) -> None:
    assert triton_check.check_fold(CPU, height, width, topk, dtype) is None


@pytest.mark.parametrize(
    ("height", "width", "block", "is_dense", "dtype"),
    [
        (64, 64, 32, False, torch.bfloat16),
        (64, 64, 256, True, torch.float16),
        (16, 64, 32, False, torch.float32),
        (32, 16, 256, True, torch.bfloat16),
        (16, 16, 16, False, torch.float16),
        (32, 32, 16, False, torch.float32),
    ],
)
def test_updates_agree(height: int, width: int, block: int, is_dense: bool, dtype: torch.dtype) -> None:
    assert triton_check.check_move(CPU, height, width, block, is_dense, dtype) is None


def test_a_kernel_that_rounds_less_often_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ``weight * factor - units * unit`` were one fused operation."""
    move = triton_launch.move_slot

    def fused(target: Any, source: Any, *args: Any) -> None:
        *rest, unit, factor, block, is_dense = args
        moved = torch.zeros_like(source, dtype=torch.float32)
        move(moved, moved, *rest, unit, 1.0, block, is_dense)
        target.copy_((source.double() * factor + moved.double()).float())

    monkeypatch.setattr(triton_check, "move_slot", fused)
    assert triton_check.check_move(CPU, 16, 16, 16, False, torch.float32) is not None


@pytest.mark.parametrize("wrong", ["position", "sign", "momentum"])
def test_a_kernel_that_says_something_else_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fold = triton_launch.fold_slot

    def change(
        momentum: Any, gradient: Any, slot: Any, decay: Any, scale: Any, places: Any, signs: Any
    ) -> None:
        fold(momentum, gradient, slot, decay, scale, places, signs)
        last = slot.num_tiles - 1
        if wrong == "position":
            places[last, 0] += 1
        elif wrong == "sign":
            signs[last, 0] *= -1
        else:
            momentum[-1, 0] += 0.25

    monkeypatch.setattr(triton_check, "fold_slot", change)
    assert triton_check.check_fold(CPU, 16, 16, 3, torch.float32) is not None


# -- the kernels beside definitions of their own --


@pytest.mark.parametrize("topk", [1, 8, 64])
def test_the_choice_is_a_stable_sort_s(topk: int) -> None:
    """Larger magnitude first, then smaller position; momentum of a few values, so that nearly all tie."""
    slot = triton_check.make_slots(32, 32)[0]
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        momentum = torch.randint(-1 - seed, 2 + seed, slot.padded_shape, generator=generator).float()
        message, after = triton_check.run_fold(slot, topk, momentum, None)
        tiles = triton_check.cut(slot, momentum * 0.5).numpy()
        for tile, positions, signs in zip(tiles, message.positions, message.signs, strict=True):
            order = np.argsort(-np.abs(tile), kind="stable")[:topk]
            chosen = np.sort(order[tile[order] != 0])
            assert positions[: len(chosen)].tolist() == chosen.tolist()
            assert signs[: len(chosen)].tolist() == np.sign(tile[chosen]).tolist()
            assert not positions[len(chosen) :].any()
            assert not signs[len(chosen) :].any()
        left = np.array(tiles)
        for tile, positions, signs in zip(left, message.positions, message.signs, strict=True):
            tile[positions[signs != 0]] = 0
        assert np.array_equal(triton_check.cut(slot, after).numpy(), left)


def test_momentum_decays_by_any_factor_and_gradients_may_have_any_strides() -> None:
    slot = triton_check.make_slots(32, 32)[1]
    generator = torch.Generator().manual_seed(1)
    momentum = torch.randn(slot.padded_shape, generator=generator)
    gradient = torch.randn(slot.cols, slot.rows, generator=generator).T
    results = []
    for source in (gradient, gradient.contiguous()):
        after = momentum.clone()
        positions, signs = (torch.zeros(slot.num_tiles, 4, dtype=x) for x in (torch.int16, torch.int8))
        triton_launch.fold_slot(after, source, slot, 0.999, -0.3, positions, signs)
        results.append((after, positions, signs))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    after = momentum.clone()
    triton_launch.fold_slot(after, None, slot, 0.999, 0.0, positions, signs)
    kept = after != 0
    assert torch.equal(after[kept], (momentum * np.float32(0.999))[kept])


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    """Every upper half with lower halves around a tie, infinity and NaN among them; nothing moves."""
    halves = np.arange(1 << 16, dtype=np.uint32) << 16
    slot = triton_check.make_slots(16, 16)[0]
    group = triton_check.make_group(slot, 1)
    positions, signs = (torch.zeros(slot.num_tiles, 1, 1, dtype=x) for x in (torch.int16, torch.int8))
    rule = triton_check.get_step_rule(group, 1, 16)
    size = slot.rows * slot.cols
    picked = halves[:: (1 << 16) // size][:size]
    for factor in (1.0, 1.00390625, 0.998046875, 1.001953125):  # products end in ones, ties among them
        source = (
            torch.from_numpy(picked.view(np.float32).copy()).to(torch.bfloat16).view(slot.rows, slot.cols)
        )
        target = source.clone()
        triton_launch.move_slot(target, source, slot, group, positions, signs, rule, 0.01, factor, 16, False)
        wanted = (source.float() * factor).to(torch.bfloat16)
        numbers = ~wanted.isnan()
        assert torch.equal(target.isnan(), wanted.isnan())
        assert torch.equal(target[numbers].view(torch.int16), wanted[numbers].view(torch.int16))


# -- in the optimizer --


@pytest.mark.parametrize(
    ("chunk", "topk", "num_messages", "weight_decay", "dtype"),
    [
        (64, 8, 1, 0.0, torch.float32),
        (64, 8, 4, 0.1, torch.bfloat16),
        (64, 8, 40, 0.1, torch.float32),  # dense
        (64, 64, 4, 0.1, torch.float16),  # dense
        (32, 8, 3, 0.1, torch.float32),
        (16, 16, 5, 0.1, torch.bfloat16),
    ],
)
def test_weights_are_torch_s_to_the_bit(
    chunk: int,
    topk: int,
    num_messages: int,
    weight_decay: float,
    dtype: torch.dtype,
    calls: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = []
    for switch in ("1", "0"):
        monkeypatch.setenv(triton_choice.SWITCH, switch)
        calls["move_slot"] = 0
        named = make_parameters(dtype)
        named["w"].data[:3] = -0.0
        config = DistroConfig(compression_chunk=chunk, compression_topk=topk, weight_decay=weight_decay)
        optimizer = DistroOptimizer(named.items(), config)
        rng = np.random.default_rng(num_messages)
        layout = optimizer.payload_layout
        payloads = [encode_payload(layout, make_message(layout, rng)) for _ in range(num_messages)]
        optimizer.apply(payloads, LR)
        with optimizer.lookahead(LR, payloads[:2]):
            foreseen = {name: p.detach().clone() for name, p in named.items()}
        digests.append((optimizer.model_digest(), compute_model_digest(foreseen)))
        num_named = sum(bool(slot.name) for slot in get_slots(optimizer))  # the pool is torch's
        assert num_named >= 3
        assert calls["move_slot"] == (2 * num_named if switch == "1" else 0)
    assert digests[0] == digests[1]
    assert digests[0][0] != compute_model_digest(make_parameters(dtype))


def test_so_many_messages_that_float32_is_not_exact_are_torch_s(calls: dict[str, int]) -> None:
    named = make_parameters()
    optimizer = DistroOptimizer(named.items(), DistroConfig())
    layout = optimizer.payload_layout
    payload = encode_payload(layout, make_message(layout, np.random.default_rng(0)))
    optimizer.apply([payload] * 140, LR)
    assert calls["move_slot"] == 0


def test_a_training_of_three_steps_says_and_keeps_what_torch_does(
    calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of noise have no ties, and positions whose order the last bits decide do not occur here."""
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv(triton_choice.SWITCH, switch)
        named = make_parameters()
        optimizer = DistroOptimizer(named.items(), DistroConfig(compression_decay=0.9))
        messages = []
        for seed in range(3):
            fill_gradients(named, seed)
            if seed == 1:
                named["w"].grad = None
            payload = optimizer.step(LR)
            optimizer.check_payload(payload)
            messages += [
                (x.positions.tolist(), x.signs.tolist())
                for x in decode_payload(optimizer.payload_layout, payload)
            ]
        found.append((messages, optimizer.momentum.clone()))
    assert calls["fold_slot"] == 3 * len(get_slots(optimizer))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=2e-6 * float(found[1][1].abs().max()))
