"""The tiled DCT: forward in floats (local, for the momentum), inverse in integers (shared, for the weights).

Forward. The transform is linear, so momentum is kept in the DCT domain and only the gradient is transformed:
one GEMM over contiguous runs (columns), then ``baddbmm`` (rows) which also applies decay and learning rate.
Nothing is permuted: momentum keeps the layout of its parameter.

Inverse. Replicas must agree on every sign, so it is exact. Coefficients are sums of +-1, the table holds
integers of at most 2**bits, and with ``num_terms`` coefficients in a tile no partial sum of any order can
pass ``2**(2*bits) * num_terms``. :func:`get_precision` keeps that within the integers that a float32 (or
float64) represents exactly, so order, thread count, fused multiply-add and choice of algorithm cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from psyche_py.distro.errors import DistroError
from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.trig import dct_matrix, integer_dct_matrix

FLOAT32_EXACT_BITS = 24
FLOAT64_EXACT_BITS = 53
# Fewer table bits than this would flip too many signs near zero (7 bits: .14 %); float64 takes over.
MIN_FLOAT32_TABLE_BITS = 7
MAX_TABLE_BITS = 20
# Elements inverted together: the block and its factors stay in the second-level cache.
BLOCK_ELEMENTS = 1 << 18


class Precision(NamedTuple):
    """Table width and the float type in which all sums are exact integers."""

    table_bits: int
    dtype: torch.dtype


def get_precision(group: TileGroup, num_messages: int) -> Precision:
    """Table width for a sum of ``num_messages`` messages: a function of this number and the tile only.

    Raises DistroError when there are too many messages to stay exact (over 2**36 for k = 8).
    """
    term_bits = (group.topk * num_messages - 1).bit_length()
    sides = (group.height > 1) + (group.width > 1)
    if sides == 0:
        return Precision(0, torch.float32)
    bits = (FLOAT32_EXACT_BITS - term_bits) // sides
    if bits >= MIN_FLOAT32_TABLE_BITS:
        return Precision(min(bits, MAX_TABLE_BITS), torch.float32)
    bits = (FLOAT64_EXACT_BITS - term_bits) // sides
    if bits < MIN_FLOAT32_TABLE_BITS:
        raise DistroError(f"{num_messages} messages are too many for one exact update.", "Apply fewer.")
    return Precision(min(bits, MAX_TABLE_BITS), torch.float64)


@lru_cache(maxsize=64)
def get_forward_table(n: int, device: torch.device) -> Tensor:
    """float32 DCT-II matrix [frequency, position]."""
    return torch.from_numpy(dct_matrix(n).copy()).to(device=device, dtype=torch.float32)


@lru_cache(maxsize=256)
def get_inverse_table(n: int, precision: Precision, device: torch.device) -> Tensor:
    """Integer DCT matrix [frequency, position] in the float type of ``precision``."""
    return torch.from_numpy(integer_dct_matrix(n, precision.table_bits).copy()).to(device, precision.dtype)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Keep a caller's autocast, which would round the factors to 16 bits, out of the products inside."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def is_float32_ieee() -> bool:
    """Whether float32 products are computed as such, not through TF32 or bfloat16 if a caller allowed it.

    When they are not, the inverse runs in float64: the same integers, only slower. Doubt counts as no.
    """
    mkldnn_matmul = getattr(torch.backends.mkldnn, "matmul", None)
    backends = (torch.backends, torch.backends.mkldnn, mkldnn_matmul, torch.backends.cuda.matmul)
    settings = [getattr(backend, "fp32_precision", None) for backend in backends]
    if any(setting is not None for setting in settings):
        return all(setting in (None, "none", "ieee") for setting in settings)
    return torch.get_float32_matmul_precision() == "highest" and not torch.backends.cuda.matmul.allow_tf32


def get_block_elements(device: torch.device) -> int:
    """Elements handled together: on a CPU what stays in the cache, on a GPU enough to be worth a kernel."""
    return 1 << 18 if device.type == "cpu" else 1 << 25


def update_momentum(momentum: Tensor, gradient: Tensor, slot: Slot, decay: float, scale: float) -> None:
    """momentum = decay * momentum + scale * DCT(gradient), in place.

    momentum: float32 [rows, cols], contiguous;  gradient: the same shape in any float type.
    """
    rows = slot.height * max(1, 4 * get_block_elements(momentum.device) // (slot.height * slot.cols))
    for m, g in zip(torch.split(momentum, rows), torch.split(gradient, rows), strict=True):
        _update_block(m, g.to(torch.float32).contiguous(), slot, decay, scale)


def _update_block(momentum: Tensor, gradient: Tensor, slot: Slot, decay: float, scale: float) -> None:
    h, w = slot.height, slot.width
    if w > 1:
        table = get_forward_table(w, momentum.device).T
        runs = gradient.view(-1, w)
        if h == 1:
            out = momentum.view(-1, w)
            torch.addmm(out, runs, table, beta=decay, alpha=scale, out=out)
            return
        gradient = runs @ table
    if h == 1:
        momentum.mul_(decay).add_(gradient, alpha=scale)
        return
    bands = len(momentum) // h
    out = momentum.view(bands, h, slot.cols)
    left = get_forward_table(h, momentum.device).expand(bands, h, h)
    torch.baddbmm(out, left, gradient.view(bands, h, slot.cols), beta=decay, alpha=scale, out=out)


def iterate_signs(
    slot: Slot, group: TileGroup, positions: Tensor, signs: Tensor, num_messages: int
) -> Iterator[tuple[slice, Tensor]]:
    """Signs of the inverse transform of the summed messages, by bands of tile rows.

    positions (uint16), signs (int8): [tiles of the slot, terms]; several terms may name one position, sign 0
    is no term.
    Yields (bands, X): X is -1, +0 or 1, [bands, tiles across, height, width]. Blocks bound the memory.
    """
    precision = get_precision(group, num_messages)
    if not is_float32_ieee():
        precision = precision._replace(dtype=torch.float64)
    # A product of 2 * terms flops per element against two dense ones of h + w; both give the same integers.
    invert = _invert_terms if 4 * positions.shape[1] < 3 * (slot.height + slot.width) else _invert_dense
    across = slot.cols // slot.width
    bands = slot.rows // slot.height
    step = max(1, get_block_elements(signs.device) // (slot.height * slot.cols))
    for start in range(0, bands, step):
        stop = min(start + step, bands)
        tiles = slice(start * across, stop * across)
        x = invert(slot, precision, positions[tiles].to(torch.int64), signs[tiles])
        # -0.0 would turn a weight of -0.0 into +0.0 on some paths only; adding +0.0 makes every zero +0.0
        # on backends whose sign keeps it.
        x = x.sign_().add_(0.0)
        yield slice(start, stop), x.view(stop - start, across, slot.height, slot.width)


def _invert_terms(slot: Slot, precision: Precision, positions: Tensor, signs: Tensor) -> Tensor:
    """Sum of outer products of table rows: [tiles, terms, h]^T [tiles, terms, w] -> [tiles, h, w]."""
    tiles, terms = positions.shape
    rows = get_inverse_table(slot.height, precision, positions.device)
    cols = get_inverse_table(slot.width, precision, positions.device)
    rows = rows.index_select(0, (positions // slot.width).reshape(-1)).view(tiles, terms, slot.height)
    cols = cols.index_select(0, (positions % slot.width).reshape(-1)).view(tiles, terms, slot.width)
    rows *= signs.unsqueeze(2)
    return torch.bmm(rows.transpose(1, 2), cols)


def _invert_dense(slot: Slot, precision: Precision, positions: Tensor, signs: Tensor) -> Tensor:
    """Sum the terms into coefficients [tiles, h, w], then one product per side."""
    rows = get_inverse_table(slot.height, precision, positions.device)
    cols = get_inverse_table(slot.width, precision, positions.device)
    tiles = torch.zeros(
        len(positions), slot.height * slot.width, dtype=precision.dtype, device=positions.device
    )
    tiles.scatter_add_(1, positions, signs.to(precision.dtype))
    right = tiles.view(-1, slot.width) @ cols
    return rows.T @ right.view(-1, slot.height, slot.width)
