"""The compiled kernels beside torch alone: equal updates to the bit, equal messages from equal numbers."""

from __future__ import annotations

import importlib.util
import logging
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from distro_tools import cut, fill_gradients, make_message
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Parameter

from psyche_py.distro import (
    DistroConfig,
    DistroOptimizer,
    PayloadError,
    PayloadLayout,
    jit,
    native,
    native_codec,
)
from psyche_py.distro.digest import compute_model_digest
from psyche_py.distro.layout import HEADER_BYTES, METHOD_DCT_SIGNS
from psyche_py.distro.payload import MAGIC, VERSION, decode_payload, encode_payload

CPU = torch.device("cpu")
# whole tiles, cut off at the right, at the bottom, at both, a stack, and a pool
SHAPES = {
    "w": (128, 192),
    "right": (128, 125),
    "low": (125, 64),
    "both": (250, 190),
    "experts": (2, 64, 128),
    "b": (9,),
}
LR = 0.0371


def make_parameters(
    shapes: dict[str, tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(5)
    return {name: Parameter(torch.randn(s, generator=generator).to(dtype)) for name, s in shapes.items()}


def make_optimizer(named: dict[str, Parameter], **config: Any) -> DistroOptimizer:
    return DistroOptimizer(named.items(), DistroConfig(**config))


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "load_kernels", lambda name: None)


def count_native(optimizer: DistroOptimizer) -> int:
    return sum(native.is_native(group, CPU) for group in optimizer.payload_layout.groups)


# -- from gradient to message --


@pytest.mark.parametrize(("chunk", "topk"), [(64, 1), (64, 8), (64, 64), (32, 3), (16, 2), (16, 20)])
def test_messages_are_the_leading_coefficients_of_the_kernel_s_own_momentum(chunk: int, topk: int) -> None:
    named = make_parameters()
    optimizer = make_optimizer(named, compression_chunk=chunk, compression_topk=topk, clip_grad_norm=None)
    assert count_native(optimizer) >= 1
    fill_gradients(named, 0)
    before = optimizer.transform_gradient(LR).numpy()
    message = decode_payload(optimizer.payload_layout, optimizer.step(LR))
    after = optimizer.momentum.numpy()
    for group, content in zip(optimizer.payload_layout.groups, message, strict=True):
        for slot in group.slots:
            place = slice(group.first_element + slot.first_element, None)
            size = slot.padded_shape[0] * slot.padded_shape[1]
            own, left = (cut(slot, x[place][:size].reshape(slot.padded_shape)) for x in (before, after))
            own, left = own.reshape(slot.num_tiles, -1), left.reshape(slot.num_tiles, -1).copy()
            order = np.argsort(-np.abs(own), axis=1, kind="stable")[:, : group.topk]
            chosen = np.sort(order, axis=1)
            tiles = slice(slot.first_tile, slot.first_tile + slot.num_tiles)
            values = np.take_along_axis(own, chosen, 1)
            assert np.array_equal(content.positions[tiles], chosen)
            assert np.array_equal(content.signs[tiles], np.sign(values))
            assert not np.take_along_axis(left, chosen, 1).any()
            np.put_along_axis(left, chosen, values, 1)
            assert np.array_equal(left, own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_momentum_is_torch_s_but_for_the_last_bits(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    momenta = []
    for path in ("kernels", "torch"):
        if path == "torch":
            without_kernels(monkeypatch)
        named = make_parameters(dtype=dtype)
        optimizer = make_optimizer(named, compression_decay=0.9)
        for seed in range(3):
            fill_gradients(named, seed)
            if seed == 1:
                named["w"].grad = None
            optimizer.step(LR)
        momenta.append(optimizer.momentum.clone())
    torch.testing.assert_close(momenta[0], momenta[1], rtol=0, atol=2e-6 * float(momenta[1].abs().max()))


def test_equal_magnitudes_go_to_the_smaller_position_and_zeros_are_not_sent() -> None:
    """Of one element in a tile, all coefficients of one row of the cosine table tie in pairs."""
    named = make_parameters({"w": (64, 128)})
    optimizer = make_optimizer(named, clip_grad_norm=None, compression_topk=8)
    grad = torch.zeros(64, 128)
    grad[:, :64] = 1.0  # a single coefficient that is not zero; the tile beside it has none
    named["w"].grad = grad
    message = decode_payload(optimizer.payload_layout, optimizer.step(1.0))[0]
    assert message.signs[0].tolist() == [1] + 7 * [0]
    assert not message.signs[1].any()
    optimizer.reset()
    optimizer.momentum[:].fill_(-1.0)
    named["w"].grad = None
    message = decode_payload(optimizer.payload_layout, optimizer.step(1.0))[0]
    assert message.positions.tolist() == 2 * [list(range(8))]
    assert (message.signs == -1).all()


def test_threads_change_neither_message_nor_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_py.distro.transform.get_block_elements", lambda device: 64 * 64)
    results = []
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        named = make_parameters()
        optimizer = make_optimizer(named)
        fill_gradients(named, 0)
        payload = optimizer.step(LR)
        optimizer.apply([payload], LR)
        results.append((payload, optimizer.momentum.clone(), optimizer.model_digest()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


# -- from messages to weights --


@pytest.mark.parametrize(
    ("chunk", "num_messages", "weight_decay"),
    [(64, 1, 0.0), (64, 4, 0.1), (64, 40, 0.1), (64, 140, 0.1), (32, 4, 0.1), (16, 1, 0.1), (16, 4, 0.0)],
)
def test_updates_are_torch_s_to_the_bit(
    chunk: int, num_messages: int, weight_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """140 messages need float64, which the kernels leave to torch."""
    digests = []
    for path in ("kernels", "torch"):
        if path == "torch":
            without_kernels(monkeypatch)
        for dtype in (torch.float32, torch.bfloat16):
            named = make_parameters(dtype=dtype)
            named["w"].data[:3] = -0.0
            optimizer = make_optimizer(named, compression_chunk=chunk, weight_decay=weight_decay)
            rng = np.random.default_rng(num_messages)
            layout = optimizer.payload_layout
            payloads = [encode_payload(layout, make_message(layout, rng)) for _ in range(num_messages)]
            optimizer.apply(payloads, LR)
            with optimizer.lookahead(LR, payloads[:2]):
                foreseen = {name: p.detach().clone() for name, p in named.items()}
            digests.append((optimizer.model_digest(), compute_model_digest(foreseen)))
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


# -- the codec --


def decode_both(
    layout: PayloadLayout, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], list[Any]]:
    found: list[list[Any]] = []
    for answer in (True, False):
        with monkeypatch.context() as patch:
            if not answer:
                patch.setattr(native_codec, "is_compiled", lambda code: False)
            try:
                message = decode_payload(layout, payload)
                found.append([(x.positions.tolist(), x.signs.tolist()) for x in message])
            except PayloadError as error:
                found.append([type(error)])
    return found[0], found[1]


@pytest.mark.parametrize("topk", [1, 2, 5, 8, 10, 11, 16, 32, 64])
def test_both_codecs_write_the_same_bytes_and_read_them(topk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = PayloadLayout.from_shapes(
        {"a": (192, 192), "b": (7, 30), "c": (40,)}, DistroConfig(compression_topk=topk)
    )
    message = make_message(layout, np.random.default_rng(topk), empty=0.2)
    payload = encode_payload(layout, message)
    assert all(native_codec.is_compiled(group.code) for group in layout.groups)
    first, second = decode_both(layout, payload, monkeypatch)
    assert first == second == [(x.positions.tolist(), x.signs.tolist()) for x in message]
    monkeypatch.setattr(native_codec, "is_compiled", lambda code: False)
    assert encode_payload(layout, message) == payload


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_both_codecs_refuse_the_same_bytes(data: st.DataObject) -> None:
    topk = data.draw(st.sampled_from([1, 2, 3, 8, 20]))
    shape = data.draw(st.sampled_from([(2, 2), (4, 6), (16, 16), (64, 64), (64, 192)]))
    layout = PayloadLayout.from_shapes({"a": shape}, DistroConfig(compression_topk=topk))
    size = layout.num_bytes - HEADER_BYTES
    header = MAGIC + struct.pack("<HH", VERSION, METHOD_DCT_SIGNS) + layout.digest
    payload = header + data.draw(st.binary(min_size=size, max_size=size))
    monkeypatch = pytest.MonkeyPatch()
    first, second = decode_both(layout, payload, monkeypatch)
    assert first == second
    if first != [PayloadError]:
        assert encode_payload(layout, decode_payload(layout, payload)) == payload


@pytest.mark.parametrize(("n", "k"), [(4096, 8), (4096, 1), (4096, 64), (64, 64), (5, 5), (300, 11)])
def test_guesses_reach_past_every_rank(n: int, k: int) -> None:
    """The kernels check no bounds: the bucket after a rank's must be in the table."""
    tables = native_codec.get_tables(n, k)
    largest = float(max(math.comb(n, size) for size in range(k + 1)))
    assert tables.guesses.shape[1] > (int(np.log2(largest)) + 1) * 16
    assert tables.guesses.max() <= n - 1
    assert all(tables.guesses[level].min() >= level for level in range(k))


# -- without numba --


def test_missing_and_switched_off_numba_and_no_place_to_keep_kernels_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import numba

    load = jit.load_kernels.__wrapped__
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert load("fold_kernels") is None
        assert "not installed" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", 1)
        assert load("fold_kernels") is None
        assert "switched off" in caplog.text

    def refuse(name: str) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", refuse)
        assert load("fold_kernels") is None
        assert "NUMBA_CACHE_DIR" in caplog.text
    assert load("fold_kernels") is not None
