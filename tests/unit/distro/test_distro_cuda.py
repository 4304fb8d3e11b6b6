"""A GPU's updates are the CPU's to the bit; skipped, with a message, where there is none."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from distro_tools import count_launches, fill_gradients, make_message
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer, triton_choice
from psyche_py.distro.digest import compute_model_digest
from psyche_py.distro.payload import decode_payload, encode_payload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES: dict[str, tuple[int, ...]] = {
    "w": (128, 192),
    "odd": (97, 131),
    "experts": (2, 64, 64),
    "bias": (70,),
}
LR = 0.02


def make_parameters(
    device: str, dtype: torch.dtype, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(21)
    return {
        name: Parameter(torch.randn(shape, generator=generator).to(device, dtype))
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_and_gpu_apply_each_other_s_messages_to_the_same_bits(dtype: torch.dtype) -> None:
    """Each says what its own floats found; from the same messages both end with the same weights."""
    replicas = [make_parameters(device, dtype) for device in ("cpu", "cuda")]
    optimizers = [DistroOptimizer(named.items(), DistroConfig(weight_decay=0.1)) for named in replicas]
    for step in range(8):
        for named in replicas:
            fill_gradients(named, step)
        payloads = [optimizer.step(LR) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.apply(payloads * (1 + 8 * (step % 2)), LR)
        first, second = (optimizer.model_digest() for optimizer in optimizers)
        assert first == second


def test_states_move_between_cpu_and_gpu() -> None:
    named, other = make_parameters("cuda", torch.float32), make_parameters("cpu", torch.float32)
    optimizer, twin = (DistroOptimizer(x.items(), DistroConfig()) for x in (named, other))
    fill_gradients(named, 0)
    optimizer.step(LR)
    twin.load_state_dict(optimizer.state_dict())
    assert torch.equal(twin.momentum, optimizer.momentum.cpu())


# -- the Triton kernels beside torch, on the same GPU --

KERNEL_SHAPES: dict[str, tuple[int, ...]] = {
    "w": (256, 320),
    "cut": (190, 253),
    "experts": (2, 64, 64),
    "b": (9,),
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each kernel was launched; skips where triton is not installed."""
    pytest.importorskip("triton", reason="triton is not installed: DisTrO runs on torch alone")
    return count_launches(monkeypatch, triton_choice.load_launcher())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("chunk", "topk", "num_messages"),
    [(64, 8, 1), (64, 8, 4), (64, 8, 30), (64, 64, 4), (32, 8, 4), (16, 4, 60)],
)
def test_kernels_move_weights_as_torch_and_the_cpu_do(
    chunk: int,
    topk: int,
    num_messages: int,
    dtype: torch.dtype,
    launches: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same random messages, an update and a lookahead: three digests each, all equal."""
    digests = []
    for device, switch in (("cuda", "1"), ("cuda", "0"), ("cpu", "0")):
        monkeypatch.setenv(triton_choice.SWITCH, switch)
        launches["move_slot"] = 0
        named = make_parameters(device, dtype, KERNEL_SHAPES)
        config = DistroConfig(compression_chunk=chunk, compression_topk=topk, weight_decay=0.1)
        optimizer = DistroOptimizer(named.items(), config)
        layout, rng = optimizer.payload_layout, np.random.default_rng(7)
        payloads = [encode_payload(layout, make_message(layout, rng)) for _ in range(num_messages)]
        optimizer.apply(payloads, LR)
        with optimizer.lookahead(LR, payloads[:2]):
            foreseen = compute_model_digest({name: p.detach().cpu() for name, p in named.items()})
        digests.append((optimizer.model_digest(), foreseen))
        assert (launches["move_slot"] > 0) is (switch == "1")
    assert digests[0] == digests[1] == digests[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_say_what_torch_says(
    dtype: torch.dtype, launches: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise has no ties, but last bits may swap what is nearly equal: one coefficient in a thousand may."""
    found, momenta = [], []
    for switch in ("1", "0"):
        monkeypatch.setenv(triton_choice.SWITCH, switch)
        named = make_parameters("cuda", dtype, KERNEL_SHAPES)
        optimizer = DistroOptimizer(named.items(), DistroConfig())
        fill_gradients(named, 3)
        payload = optimizer.step(LR)
        optimizer.check_payload(payload)
        found.append(decode_payload(optimizer.payload_layout, payload))
        momenta.append(optimizer.momentum)
        assert launches["fold_slot"] > 0
    different, total = 0, 0
    for mine, other in zip(*found, strict=True):
        for a, b in zip(mine.positions, other.positions, strict=True):
            different, total = different + len(set(a.tolist()) - set(b.tolist())), total + len(a)
    assert different <= total / 1000
    changed = (momenta[0] - momenta[1]).abs() > 1e-5 * momenta[1].abs().max()
    assert int(changed.sum()) <= 2 * different


def test_every_kernel_variant_passes_its_check(launches: dict[str, int]) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    from psyche_py.distro.triton_check import check_fold, check_move

    for side, dtype in itertools.product(triton_choice.SIDES, (torch.float32, torch.bfloat16, torch.float16)):
        assert check_fold(device, side, side, 8, dtype) is None
        for block, is_dense in ((16, False), (32, False), (256, True)):
            assert check_move(device, side, side, block, is_dense, dtype) is None
