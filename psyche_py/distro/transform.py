"""The tiled DCT: forward in floats (local, for the momentum), inverse in integers (shared, for the weights).

Frequencies are numbered even ones first: row r of a table of size n is frequency 2r for r < ceil(n/2), then
the odd ones follow. Even rows are symmetric and odd ones antisymmetric, so a product with the table is two
products of half the size, which the forward transform uses for the rows of a tile.

Forward. The transform is linear, so momentum is kept in the DCT domain and only the gradient is transformed:
one GEMM over contiguous runs (columns), sums and differences of mirrored rows, then ``baddbmm`` (rows), which
also applies decay and learning rate. Nothing is permuted: momentum keeps the layout of its matrix.

Inverse. Replicas must agree on every weight, so it is exact. Coefficients are sums of +-1, the table holds
integers of at most 2**bits, and with ``num_terms`` coefficients in a tile no partial sum of any order can
pass ``2**(2*bits) * num_terms``. :func:`get_precision` keeps that within the integers that a float32 (or
float64) represents exactly, so order, thread count, fused multiply-add and choice of algorithm cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from psyche_py.distro.errors import DistroError
from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.trig import dct_matrix, integer_dct_matrix
from psyche_py.distro.workspace import Workspace

FLOAT32_EXACT_BITS = 24
FLOAT64_EXACT_BITS = 53
# Fewer table bits than this would flip too many signs near zero (7 bits: .14 %); float64 takes over.
MIN_FLOAT32_TABLE_BITS = 7
MAX_TABLE_BITS = 20
# Shorter sides are not worth the extra pass that splits even from odd frequencies.
MIN_SPLIT_SIDE = 16


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


def choose_precision(group: TileGroup, num_messages: int) -> Precision:
    """:func:`get_precision`, in float64 when the caller allowed float32 products to be rounded."""
    precision = get_precision(group, num_messages)
    return precision if is_float32_ieee() else precision._replace(dtype=torch.float64)


def get_frequencies(n: int) -> list[int]:
    """Frequency of every table row: even ones, then odd ones."""
    return [*range(0, n, 2), *range(1, n, 2)]


def _put_even_first(table: npt.NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(table[get_frequencies(len(table))])


@lru_cache(maxsize=64)
def get_forward_table(n: int, device: torch.device) -> Tensor:
    """float32 DCT-II matrix [frequency, position], even frequencies first."""
    return _put_even_first(dct_matrix(n)).to(device=device, dtype=torch.float32)


@lru_cache(maxsize=64)
def get_half_tables(n: int, bands: int, device: torch.device) -> Tensor:
    """float32 [2 * bands, n/2, n/2]: in turn even rows for sums, odd ones for differences, of an even n."""
    return get_forward_table(n, device)[:, : n // 2].reshape(2, n // 2, n // 2).repeat(bands, 1, 1)


@lru_cache(maxsize=256)
def get_inverse_table(n: int, precision: Precision, device: torch.device) -> Tensor:
    """Integer DCT matrix [frequency, position], even frequencies first, as floats of ``precision``."""
    return _put_even_first(integer_dct_matrix(n, precision.table_bits)).to(device, precision.dtype)


@lru_cache(maxsize=256)
def get_signed_table(n: int, precision: Precision, device: torch.device) -> Tensor:
    """[2n + 1, n]: the inverse table, its negative, and a row of zeros for absent coefficients."""
    table = get_inverse_table(n, precision, device)
    return torch.cat([table, -table, torch.zeros_like(table[:1])])


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
    return 400_000 if device.type == "cpu" else 1 << 25


def get_block_bands(slot: Slot, device: torch.device) -> int:
    """Rows of tiles handled together."""
    return max(1, get_block_elements(device) // (slot.height * slot.padded_shape[1]))


# -- forward --


def update_momentum(
    momentum: Tensor,
    gradient: Tensor,
    slot: Slot,
    decay: float,
    scale: float,
    workspace: Workspace,
    after: Callable[[slice, Tensor], None] = lambda rows, block: None,
) -> None:
    """momentum = decay * momentum + scale * DCT(gradient), in place.

    momentum: float32, the slot's padded shape, contiguous;  gradient: [rows, cols] in any float type;
    after:    called with each block's rows and its new momentum, while these are in the cache
    """
    step = get_block_bands(slot, momentum.device) * slot.height
    for start in range(0, slot.rows, step):
        part = momentum[start : start + step]
        block = _pad_block(gradient[start : start + step], len(part), slot, workspace)
        _update_block(part, block, slot, decay, scale, workspace)
        after(slice(start, start + len(part)), part)


def _pad_block(gradient: Tensor, num_rows: int, slot: Slot, workspace: Workspace) -> Tensor:
    """float32 [num_rows, padded cols], contiguous, zeros where the matrix has ended."""
    num_cols = slot.padded_shape[1]
    is_whole = gradient.shape == (num_rows, num_cols)
    if is_whole and gradient.dtype == torch.float32 and gradient.is_contiguous():
        return gradient
    block = workspace.take("padded", (num_rows, num_cols))
    if not is_whole:
        block.zero_()
    block[: gradient.shape[0], : gradient.shape[1]].copy_(gradient)
    return block


def _update_block(
    momentum: Tensor, gradient: Tensor, slot: Slot, decay: float, scale: float, workspace: Workspace
) -> None:
    h, w = slot.height, slot.width
    if w > 1:
        table = get_forward_table(w, momentum.device).T
        runs = gradient.view(-1, w)
        if h == 1:
            out = momentum.view(-1, w)
            torch.addmm(out, runs, table, beta=decay, alpha=scale, out=out)
            return
        gradient = torch.mm(runs, table, out=workspace.take("right", tuple(runs.shape))).view(gradient.shape)
    elif h == 1:
        momentum.mul_(decay).add_(gradient, alpha=scale)
        return
    shape = (len(momentum) // h, h, momentum.shape[1])
    halves = _split_even_odd(gradient.view(shape), workspace) if h % 2 == 0 and h >= MIN_SPLIT_SIDE else None
    if halves is None:
        left = get_forward_table(h, momentum.device).expand(shape[0], h, h)
        out = momentum.view(shape)
        torch.baddbmm(out, left, gradient.view(shape), beta=decay, alpha=scale, out=out)
        return
    out = momentum.view(halves.shape)
    left = get_half_tables(h, shape[0], momentum.device)
    torch.baddbmm(out, left, halves, beta=decay, alpha=scale, out=out)


def _split_even_odd(x: Tensor, workspace: Workspace) -> Tensor:
    """[bands, h, cols] to [2 * bands, h / 2, cols]: sums and differences of each band's mirrored rows."""
    bands, h, cols = x.shape
    halves = workspace.take("halves", (bands, 2, h // 2, cols))
    if x.device.type == "cpu":  # torch has no negative strides; numpy saves the mirrored copy
        first, last = x.numpy()[:, : h // 2], x.numpy()[:, : h // 2 - 1 : -1]
        out = halves.numpy()
        np.add(first, last, out=out[:, 0])
        np.subtract(first, last, out=out[:, 1])
    else:
        mirrored = x[:, h // 2 :].flip(1)
        torch.add(x[:, : h // 2], mirrored, out=halves[:, 0])
        torch.sub(x[:, : h // 2], mirrored, out=halves[:, 1])
    return halves.view(2 * bands, h // 2, cols)


# -- inverse --


class Terms(NamedTuple):
    """Coefficients of several messages side by side, as rows of tables; both int32 [tiles, terms].

    rows:  row of the signed table of the tile's height (2 * height is an absent coefficient)
    cols:  row of the inverse table of the tile's width
    """

    rows: Tensor
    cols: Tensor


def iterate_sums(
    slot: Slot, terms: Terms, precision: Precision, workspace: Workspace
) -> Iterator[tuple[slice, Tensor]]:
    """The inverse transform of the summed messages, exact integers, by bands of tile rows.

    terms: of the slot's tiles; several may name one position.  precision: from :func:`choose_precision`.
    Yields (bands, X): X is [bands, tiles across, height, width]; void at the next iteration.
    """
    invert = _invert_terms if is_low_rank(slot, terms.rows.shape[1]) else _invert_dense
    step = get_block_bands(slot, terms.rows.device)
    for start in range(0, slot.bands, step):
        stop = min(start + step, slot.bands)
        tiles = slice(start * slot.across, stop * slot.across)
        x = invert(slot, precision, terms.rows[tiles], terms.cols[tiles], workspace)
        yield slice(start, stop), x.view(stop - start, slot.across, slot.height, slot.width)


def is_low_rank(slot: Slot, num_terms: int) -> bool:
    """Whether outer products (2 * terms flops per element) beat two dense products (h + w, and a scatter)."""
    return 4 * num_terms < 5 * (slot.height + slot.width)


def _invert_terms(
    slot: Slot, precision: Precision, rows: Tensor, cols: Tensor, workspace: Workspace
) -> Tensor:
    """Sum of outer products of table rows: [tiles, terms, h]^T [tiles, terms, w] -> [tiles, h, w]."""
    tiles, terms = rows.shape
    h, w, dtype = slot.height, slot.width, precision.dtype
    left = workspace.take("left", (tiles * terms, h), dtype)
    torch.index_select(get_signed_table(h, precision, rows.device), 0, rows.reshape(-1), out=left)
    right = workspace.take("right", (tiles * terms, w), dtype)
    torch.index_select(get_inverse_table(w, precision, rows.device), 0, cols.reshape(-1), out=right)
    out = workspace.take("inverse", (tiles, h, w), dtype)
    return torch.bmm(left.view(tiles, terms, h).transpose(1, 2), right.view(tiles, terms, w), out=out)


def _invert_dense(
    slot: Slot, precision: Precision, rows: Tensor, cols: Tensor, workspace: Workspace
) -> Tensor:
    """Sum the terms into coefficients [tiles, h, w], then one product per side."""
    tiles, h, w, dtype = len(rows), slot.height, slot.width, precision.dtype
    sums = workspace.take("sums", (tiles, h * w), dtype).zero_()
    values = (rows < h).to(dtype) - ((rows >= h) & (rows < 2 * h)).to(dtype)
    sums.scatter_add_(1, (rows % h).to(torch.int64) * w + cols, values)
    right = workspace.take("right", (tiles * h, w), dtype)
    torch.mm(sums.view(-1, w), get_inverse_table(w, precision, rows.device), out=right)
    out = workspace.take("inverse", (tiles, h, w), dtype)
    left = get_inverse_table(h, precision, rows.device).T.expand(tiles, h, h)
    return torch.bmm(left, right.view(tiles, h, w), out=out)
