"""Launching the Triton kernels on torch's tensors. Only ``triton_choice`` imports this, where it has to.

Fused multiply-add is forbidden outside of products: it would skip the rounding of ``weight * factor``. That
leaves the products exact too, where they have to be: all their partial sums are integers that float32 has.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from psyche_py.distro import triton_kernels
from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.steps import StepRule
from psyche_py.distro.transform import get_forward_table, get_inverse_table, get_precision

# Of 32 threads each. The dense products of 64 do not fit the registers of fewer.
_WARPS, _DENSE_WARPS = 4, 8


def fold_slot(
    momentum: Tensor,
    gradient: Tensor | None,
    slot: Slot,
    decay: float,
    scale: float,
    positions: Tensor,
    signs: Tensor,
) -> None:
    """Decay a slot's momentum, add its gradient and take the message out of it (see ``fold_tiles``).

    momentum: float32, the slot's padded shape, contiguous;  gradient: [rows, cols] in any float type, any
    strides;  positions: int16 [tiles of the slot, topk];  signs: int8 alike; all on one device
    """
    topk, device = positions.shape[1], momentum.device
    with _on_device_of(momentum):
        triton_kernels.fold_tiles[(slot.num_tiles,)](
            momentum,
            momentum if gradient is None else _as_bits(gradient),
            get_forward_table(slot.height, device),
            get_forward_table(slot.width, device),
            positions,
            signs,
            slot.rows,
            slot.cols,
            *((0, 1) if gradient is None else gradient.stride()),
            slot.across,
            decay,
            scale,
            HEIGHT=slot.height,
            WIDTH=slot.width,
            TOPK=topk,
            TOPK_PADDED=1 << (topk - 1).bit_length(),
            HAS_GRADIENT=gradient is not None,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )


def move_slot(
    target: Tensor,
    source: Tensor,
    slot: Slot,
    group: TileGroup,
    positions: Tensor,
    signs: Tensor,
    rule: StepRule,
    unit: float,
    factor: float,
    block: int,
    is_dense: bool,
) -> None:
    """Move a slot's weights by its messages (see ``move_tiles``).

    target, source: the slot's tensor, contiguous, of one type;  positions: int16 [tiles of the slot,
    messages, topk], contiguous;  signs: int8 alike;  block, is_dense: from ``triton_choice.choose_block``
    """
    messages, topk = positions.shape[1:]
    precision = get_precision(group, messages)
    assert precision.dtype == torch.float32, "sums of so many messages are not exact in float32"
    with _on_device_of(target):
        triton_kernels.move_tiles[(slot.num_tiles,)](
            _as_bits(target),
            _as_bits(source),
            positions,
            signs,
            get_inverse_table(slot.height, precision, target.device),
            get_inverse_table(slot.width, precision, target.device),
            slot.rows,
            slot.cols,
            slot.across,
            messages * topk,
            rule.slope,
            float(rule.levels),
            unit,
            factor,
            HEIGHT=slot.height,
            WIDTH=slot.width,
            BLOCK=block,
            IS_DENSE=is_dense,
            num_warps=_DENSE_WARPS if is_dense else _WARPS,
            enable_fp_fusion=False,
        )


def _on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _as_bits(x: Tensor) -> Tensor:
    """bfloat16 as int16: the kernels convert it with integers, one way for every device and version."""
    return x.view(torch.int16) if x.dtype == torch.bfloat16 else x
