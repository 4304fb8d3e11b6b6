"""Compiled kernels before the first step needs them: ten seconds of work on a machine that is new to them.

Numba compiles a kernel when it is first called, or reads it from the disk when a process before this one has
called it. Either way the caller waits, which in a run would be in its first round.
"""

from __future__ import annotations

import torch

from psyche_py.distro import DistroConfig, LocalOptimizer, make_optimizer
from psyche_py.distro.jit import SIDES

_TILES = 2  # arrays of one tile are contiguous where those of several are not, and have kernels of their own
_LR = 1.0


def load_kernels_ahead(config: DistroConfig, device: torch.device) -> None:
    """Have every kernel in memory that a model on ``device`` needs with this configuration.

    Works on a small model of its own; where numba is missing it costs milliseconds. Payloads are read and
    written on the CPU wherever the model is.
    """
    side = SIDES[-1]
    weight = torch.nn.Parameter(torch.zeros(_TILES * side, side, device=device))
    weight.grad = torch.arange(weight.numel(), dtype=torch.float32, device=device).reshape(weight.shape)
    optimizer = make_optimizer([("weight", weight)], config)
    if isinstance(optimizer, LocalOptimizer):
        with optimizer.lookahead(_LR):
            optimizer.inner_step(_LR)
    payload = optimizer.step(_LR)
    optimizer.check_payload(payload)
    for received in ([], [payload]):
        with optimizer.lookahead(_LR, received):
            pass
        optimizer.apply([payload, *received], _LR)
