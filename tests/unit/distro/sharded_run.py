"""A short training that whole and sharded parameters go through alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer
from psyche_py.distro.digest import compute_model_digest

# shards that begin inside a tile, along the other dimension, of which one is empty, and in the pool
SHAPES: dict[str, tuple[int, ...]] = {
    "w": (192, 128),
    "odd": (101, 64),
    "across": (64, 128),
    "one": (1, 128),
    "experts": (3, 64, 64),
    "bias": (70,),
}
LR = 0.02
NUM_STEPS = 4


def make_parameters() -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(11)
    return {name: Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def train(named: dict[str, Parameter], shard: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
    """Payloads, digests, also within lookaheads, and the last momentum."""
    optimizer = DistroOptimizer(named.items(), DistroConfig(weight_decay=0.1))
    generator = torch.Generator().manual_seed(12)
    payloads, digests = [], []
    for step in range(NUM_STEPS):
        with optimizer.lookahead(LR):
            foreseen = compute_model_digest({name: p.data for name, p in named.items()})
            assert optimizer.model_digest() == (digests[-1][0] if digests else foreseen)
            for name, p in named.items():
                p.grad = shard(name, torch.randn(SHAPES[name], generator=generator) + step)
        payloads.append(optimizer.step(LR))
        if step:
            optimizer.apply(payloads[step - 1 : step + 1], LR)
        digests.append((optimizer.model_digest(), foreseen))
    return {"payloads": payloads, "digests": digests, "momentum": optimizer.state_dict()["momentum"]}
