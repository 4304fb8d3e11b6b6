"""The update every replica makes from the same messages, defined to the bit.

    weight = weight * (1 - lr * weight_decay)       only with weight decay
    weight = weight - lr * sign(IDCT(sum))

lr and the factor are rounded to float32 first and the arithmetic is float32. lr times -1, 0 or 1 is exact, so
every element sees one rounding for the decay and one for the subtraction, with or without fused multiply-add;
a 16-bit weight is rounded once more, when it is stored. No torch.compile here: it could merge the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from psyche_py.distro.layout import PayloadLayout, Slot
from psyche_py.distro.payload import Message
from psyche_py.distro.transform import iterate_signs, without_autocast


@torch.no_grad()
def move_weights(
    layout: PayloadLayout,
    weights: Mapping[str, Tensor],
    messages: Sequence[Message],
    lr: float,
    weight_decay: float,
) -> None:
    """Update ``weights`` (all tensors of the layout, on one device) in place by at least one message."""
    device = next(iter(weights.values())).device
    with without_autocast(device):
        for i, group in enumerate(layout.groups):
            positions = _gather([message[i].positions for message in messages], device)
            signs = _gather([message[i].signs for message in messages], device)
            for slot in group.slots:
                tiles = slice(slot.first_tile, slot.first_tile + slot.num_tiles)
                blocks = iterate_signs(slot, group, positions[tiles], signs[tiles], len(messages))
                _move_tensor(weights[slot.name], slot, blocks, lr, weight_decay)


def _gather(parts: Sequence[npt.NDArray[Any]], device: torch.device) -> Tensor:
    """Terms of all messages side by side: [tiles, topk * messages]."""
    return torch.from_numpy(np.concatenate(parts, axis=1)).to(device)


def _move_tensor(
    weight: Tensor, slot: Slot, blocks: Iterator[tuple[slice, Tensor]], lr: float, weight_decay: float
) -> None:
    """Update one tensor from blocks of signs (see :func:`iterate_signs`), whatever its memory layout."""
    rate = float(np.float32(lr))
    factor = float(np.float32(1.0 - lr * weight_decay))
    in_place = weight.dtype == torch.float32 and weight.is_contiguous()
    work = weight if in_place else weight.to(torch.float32).contiguous()
    if weight_decay != 0.0:
        work.mul_(factor)
    if rate != 0.0:
        tiles = work.view(slot.rows // slot.height, slot.height, slot.cols // slot.width, slot.width)
        tiles = tiles.permute(0, 2, 1, 3)
        for bands, signs in blocks:
            tiles[bands].sub_(signs.to(torch.float32), alpha=rate)
    if not in_place:
        weight.copy_(work)
