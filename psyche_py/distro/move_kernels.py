"""From messages to weights, compiled: a whole tile while it is in the cache."""

from __future__ import annotations

import numpy as np

from psyche_py.distro.jit import MAX_TILE
from psyche_py.distro.simd import (
    FLOAT_BYTES,
    LANES,
    ROUNDER,
    VECTOR_BYTES,
    compiled,
    fold_row,
    locate_next,
    move_row,
    prefetch_share,
    sum_8,
    sum_16,
)


@compiled
def _add_terms(positions, signs, table, height, width, rows, numbers):
    """rows[u] = sum of table rows v, times their signs, over the terms (u, v) of a tile.

    numbers int32 [2, 64] gets the u that occur, of even and of odd frequencies; returns how many of each.
    """
    seen = np.uint64(0)
    num_even, num_odd = 0, 0
    stride = width * FLOAT_BYTES
    for message in range(positions.shape[0]):
        for i in range(positions.shape[1]):
            sign = signs[message, i]
            if sign == 0:
                continue
            u, v = positions[message, i] // width, positions[message, i] % width
            bit = np.uint64(1) << np.uint64(u)
            kept = np.float32(1)
            if not seen & bit:
                seen |= bit
                kept = np.float32(0)
                if 2 * u < height:
                    numbers[0, num_even] = u
                    num_even += 1
                else:
                    numbers[1, num_odd] = u
                    num_odd += 1
            source = table.ctypes.data + v * stride
            fold_row(rows.ctypes.data + u * stride, source, kept, np.float32(sign), width)
    return num_even, num_odd


@compiled
def _sum_rows(numbers, count, rows, table, height, width, target, half, ahead):
    """target [height / 2, width] = the upper half of the products of table columns with ``rows``.

    ahead: a tile to ask for meanwhile, its upper or lower ``half`` (0 or 1)
    """
    stride, table_stride = width * FLOAT_BYTES, height * FLOAT_BYTES
    num_strips = width // LANES
    for strip in range(num_strips):
        offset = strip * VECTOR_BYTES
        prefetch_share(ahead, half * num_strips + strip, 2 * num_strips)
        for top in range(0, height // 2, LANES):
            args = (
                numbers.ctypes.data,
                count,
                rows.ctypes.data + offset,
                stride,
                table.ctypes.data + top * FLOAT_BYTES,
                table_stride,
                target.ctypes.data + top * stride + offset,
                stride,
            )
            if height == 16:
                sum_8(*args)
            else:
                sum_16(*args)


@compiled
def _move_tile(target, source, top, left, height, width, even, odd, slope, levels, unit, factor):
    """Move the weights of a tile by the units of sums and differences of ``even`` and ``odd``."""
    rows, cols = target.shape
    for i in range(min(height, rows - top)):
        half = i if 2 * i < height else height - 1 - i
        flip = np.float32(1) if 2 * i < height else np.float32(-1)
        if left + width <= cols:
            place = ((top + i) * cols + left) * FLOAT_BYTES
            offset = half * width * FLOAT_BYTES
            addresses = even.ctypes.data + offset, odd.ctypes.data + offset
            to, start = target.ctypes.data + place, source.ctypes.data + place
            move_row(to, start, addresses[0], addresses[1], flip, slope, levels, unit, factor, width)
            continue
        for j in range(cols - left):
            share = (even[half * width + j] + flip * odd[half * width + j]) * slope
            units = (min(max(share, -levels), levels) + ROUNDER) - ROUNDER
            target[top + i, left + j] = source[top + i, left + j] * factor - units * unit


@compiled
def move_tiles(target, source, tables, height, width, positions, signs, slope, levels, unit, factor, scratch):
    """target = source * factor - unit * units(IDCT(sum of messages)), tile by tile (see ``steps``).

    target, source:  float32 [rows, cols], contiguous; they may be one
    tables:          float32 integers [height, height] and [width, width], rows of even frequencies first;
                     all sums must be exact (see ``transform.get_precision``)
    positions:       unsigned [tiles, messages, topk] and signs int8 alike, of the tiles that cover the matrix
    scratch:         float32 [SCRATCH_FLOATS], no NaN or infinity in it
    """
    rows, sums, rest = scratch[:MAX_TILE], scratch[MAX_TILE : 2 * MAX_TILE], scratch[2 * MAX_TILE :]
    even, odd = sums[: MAX_TILE // 2], sums[MAX_TILE // 2 :]
    numbers = rest[:128].view(np.int32).reshape((2, 64))
    tile = 0
    for top in range(0, target.shape[0], height):
        for left in range(0, target.shape[1], width):
            ahead = locate_next(source, top, left, height, width)
            found = _add_terms(positions[tile], signs[tile], tables[1], height, width, rows, numbers)
            _sum_rows(numbers[0], found[0], rows, tables[0], height, width, even, 0, ahead)
            _sum_rows(numbers[1], found[1], rows, tables[0], height, width, odd, 1, ahead)
            _move_tile(target, source, top, left, height, width, even, odd, slope, levels, unit, factor)
            tile += 1
