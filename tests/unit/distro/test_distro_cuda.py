"""A GPU's updates are the CPU's to the bit; skipped, with a message, where there is none."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES: dict[str, tuple[int, ...]] = {
    "w": (128, 192),
    "odd": (97, 131),
    "experts": (2, 64, 64),
    "bias": (70,),
}
LR = 0.02


def make_parameters(device: str, dtype: torch.dtype) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(21)
    return {
        name: Parameter(torch.randn(shape, generator=generator).to(device, dtype))
        for name, shape in SHAPES.items()
    }


def fill_gradients(named: dict[str, Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in named.values():
        p.grad = torch.randn(p.shape, generator=generator).to(p.device, p.dtype)


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
