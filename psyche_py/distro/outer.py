"""The outer step of local steps: weights go the mean of the ways that were sent, exactly.

    weight = weight - OUTER_RATE * mean over messages of sign * magnitude

Signs times magnitudes are whole units (see ``magnitudes``), so their sum is an exact integer, whatever the
order, the threads or the device. It becomes a float64 without rounding; the product with one public float64
factor is rounded once, to float32 once, and the subtraction once. A weight that nobody names stays as it is.

A magnitude counts for at most CAP learning rates per local step (of the learning rate at which it is applied,
times the tensor's ``lr_scale``): one message moves a weight by at most that over the number of messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.layout import Slot
from psyche_py.distro.magnitudes import MAGNITUDES, UNIT, count_units
from psyche_py.distro.update import Aggregate, Rates
from psyche_py.distro.workspace import Workspace

OUTER_RATE = 1.0
CAP = 4.0


@dataclass(frozen=True)
class OuterStep:
    """One outer step: what was sent, and by how much it may move a weight."""

    aggregate: Aggregate
    lr: float
    local_steps: int
    rates: Mapping[str, Rates]


def compute_limit(slot: Slot, lr: float, local_steps: int, rates: Mapping[str, Rates]) -> float:
    """The largest magnitude that counts in a slot; the pool's follows from its fastest member."""
    return CAP * local_steps * lr * max(rates[member.name].lr_scale for member in slot.members)


@torch.no_grad()
def move_outer(
    step: OuterStep,
    weights: Mapping[str, Tensor],
    workspace: Workspace,
    targets: Mapping[str, Tensor] | None = None,
) -> None:
    """Move ``weights`` (all tensors of the layout, on one device) by at least one message.

    In place, or into ``targets``, tensors of the same shapes and types; the weights then stay as they are.
    """
    targets = weights if targets is None else targets
    for i, group in enumerate(step.aggregate.layout.groups):
        for slot in group.slots:
            flat = _compute_way(step, i, slot, workspace)
            for member in slot.members:
                way = flat[member.first : member.first + member.num_elements].view(member.shape)
                moved = weights[member.name].to(torch.float32) - way
                targets[member.name].copy_(moved)


def _compute_way(step: OuterStep, index: int, slot: Slot, workspace: Workspace) -> Tensor:
    """float32 [rows * cols]: what is subtracted from the elements of a slot's matrix."""
    sums = _sum_units(step, index, slot, workspace)
    factor = OUTER_RATE * UNIT / step.aggregate.num_messages
    way = sums.to(torch.float64).mul_(factor).to(torch.float32)
    rows, cols = slot.padded_shape
    return way.view(rows, cols)[: slot.rows, : slot.cols].reshape(-1)


def _sum_units(step: OuterStep, index: int, slot: Slot, workspace: Workspace) -> Tensor:
    """int64 [padded elements of the slot]: the sum of all messages in units of magnitude."""
    positions, signs = step.aggregate.get_tiles(index, slot)
    limit = count_units(compute_limit(slot, step.lr, step.local_steps, step.rates))
    units = np.minimum(MAGNITUDES[step.aggregate.get_magnitudes(index, slot)], limit)
    places = compute_places(slot, positions.astype(np.int64).reshape(slot.num_tiles, -1))
    values = (signs * units[:, :, None]).reshape(-1)
    rows, cols = slot.padded_shape
    sums = workspace.take("sums", (rows * cols,), torch.int64).zero_()
    device = workspace.device
    return sums.index_add_(0, torch.from_numpy(places).to(device), torch.from_numpy(values).to(device))


def compute_places(slot: Slot, positions: np.ndarray) -> np.ndarray:
    """Where positions [tiles, n] of a slot's tiles lie in its padded matrix: int64 [tiles * n]."""
    band, across = np.divmod(np.arange(slot.num_tiles), slot.across)
    rows, cols = np.divmod(positions, slot.width)
    rows += (band * slot.height)[:, None]
    cols += (across * slot.width)[:, None]
    return (rows * slot.padded_shape[1] + cols).reshape(-1)
