"""From gradient to message, compiled: a whole tile while it is in the cache."""

from __future__ import annotations

import math

import numpy as np

from psyche_py.distro.jit import MAX_TILE
from psyche_py.distro.simd import (
    FLOAT_BYTES,
    LANES,
    MAGNITUDE,
    VECTOR_BYTES,
    compiled,
    count_trailing_zeros,
    find_in_row,
    fold_row,
    load_bits,
    locate_next,
    prefetch_share,
    transform_16,
    transform_32,
    transform_64,
    transpose_block,
)


@compiled
def _transform_columns(source, source_stride, target, target_stride, height, width, ahead):
    """DCT of the columns of [height, width] at ``source``; addresses and strides in bytes.

    ahead: (address, stride, height, width) of a tile to ask for meanwhile
    """
    for strip in range(width // LANES):
        offset = strip * VECTOR_BYTES
        prefetch_share(ahead, strip, width // LANES)
        if height == 64:
            transform_64(source + offset, source_stride, target + offset, target_stride)
        elif height == 32:
            transform_32(source + offset, source_stride, target + offset, target_stride)
        else:
            transform_16(source + offset, source_stride, target + offset, target_stride)


@compiled
def _transpose_tile(source, target, height, width):
    """[height, width] at ``source`` to [width, height] at ``target``, both without gaps."""
    row, column = FLOAT_BYTES * width, FLOAT_BYTES * height
    for i in range(0, height, LANES):
        for j in range(0, width, LANES):
            transpose_block(
                source + i * row + FLOAT_BYTES * j, row, target + j * column + FLOAT_BYTES * i, column
            )


@compiled
def _transform_tile(gradient, top, left, height, width, first, second, ahead):
    """second [height, width] = sqrt(height width / 4) times the DCT of the tile at [top, left].

    Where the matrix has ended there are zeros; ``first`` is scratch.
    """
    rows, cols = gradient.shape
    stride = cols * FLOAT_BYTES
    source = gradient.ctypes.data + top * stride + left * FLOAT_BYTES
    a, b = first.ctypes.data, second.ctypes.data
    if top + height > rows or left + width > cols:
        for i in range(height):
            for j in range(width):
                is_inside = top + i < rows and left + j < cols
                second[i * width + j] = gradient[top + i, left + j] if is_inside else np.float32(0)
        source, stride = b, width * FLOAT_BYTES
    next_gradient = locate_next(gradient, top, left, height, width)
    _transform_columns(source, stride, a, width * FLOAT_BYTES, height, width, next_gradient)
    _transpose_tile(a, b, height, width)
    _transform_columns(b, height * FLOAT_BYTES, a, height * FLOAT_BYTES, width, height, ahead)
    _transpose_tile(a, b, width, height)


@compiled
def _find_threshold(highest, height, topk):
    """The ``topk``-th largest of the row maxima: so many elements at least are as large. At least 1.

    highest: int32 [64], zeros from ``height`` on
    """
    if topk > height:
        return np.int32(1)
    found, threshold = 0, MAGNITUDE
    while found < topk:
        largest = np.int32(0)
        for i in range(64):
            value = highest[i] if highest[i] < threshold else np.int32(0)
            largest = max(largest, value)
        if largest == 0:
            return np.int32(1)
        for i in range(64):
            found += highest[i] == largest
        threshold = largest
    return threshold


@compiled
def _select(corner, stride, height, width, highest, topk, keys, places):
    """The leading ``topk`` of a tile that are not zero: how many, their bits in ``keys``, their positions.

    Positions are visited in ascending order and only a larger magnitude passes an earlier one.
    """
    threshold = _find_threshold(highest, height, topk)
    found = 0
    for i in range(height):
        if highest[i] < threshold:
            continue
        address = corner + i * stride
        marks = find_in_row(address, threshold, width)
        while marks:
            j = count_trailing_zeros(marks)
            marks &= marks - np.uint64(1)
            value = load_bits(address + j * FLOAT_BYTES) & MAGNITUDE
            if value < threshold:
                continue
            place = found if found < topk else topk - 1
            while place > 0 and keys[place - 1] < value:
                keys[place], places[place] = keys[place - 1], places[place - 1]
                place -= 1
            keys[place], places[place] = value, i * width + j
            found = min(found + 1, topk)
            if found == topk:
                threshold = keys[topk - 1] + np.int32(1)
    return found


@compiled
def _extract(bits, top, left, width, places, found, positions, signs):
    """Write ``found`` coefficients in canonical form (see GroupMessage) and zero them in the momentum."""
    for i in range(1, found):
        position, place = places[i], i
        while place > 0 and places[place - 1] > position:
            places[place] = places[place - 1]
            place -= 1
        places[place] = position
    for i in range(len(positions)):
        if i < found:
            row, col = top + places[i] // width, left + places[i] % width
            positions[i], signs[i] = places[i], (-1 if bits[row, col] < 0 else 1)
            bits[row, col] = 0
        else:
            positions[i], signs[i] = 0, 0


@compiled
def update_tiles(momentum, gradient, height, width, decay, scale, positions, signs, scratch):
    """momentum = decay * momentum + scale * DCT(gradient); then every tile's message is taken out of it.

    momentum:   float32 [rows, cols] in whole tiles [height, width], sides in SIDES
    gradient:   float32, contiguous, at most as large (the rest counts as zeros); [0, 0] is none
    positions:  unsigned [tiles, topk], signs int8 alike: canonical form; topk 0 takes nothing
    scratch:    float32 [SCRATCH_FLOATS]
    """
    bits = momentum.view(np.int32)
    first, second, rest = scratch[:MAX_TILE], scratch[MAX_TILE : 2 * MAX_TILE], scratch[2 * MAX_TILE :]
    third = rest.view(np.int32)
    highest, keys, places = third[:64], third[64:128], third[128:192]
    topk, tile, stride = positions.shape[1], 0, momentum.shape[1] * FLOAT_BYTES
    highest[:] = 0
    scale *= np.float32(2 / math.sqrt(height * width))  # what the transforms leave out
    if gradient.size == 0:
        second[:] = 0
    for top in range(0, momentum.shape[0], height):
        for left in range(0, momentum.shape[1], width):
            corner = momentum.ctypes.data + top * stride + left * FLOAT_BYTES
            if gradient.size:
                ahead = locate_next(momentum, top, left, height, width)
                _transform_tile(gradient, top, left, height, width, first, second, ahead)
            for i in range(height):
                highest[i] = fold_row(
                    corner + i * stride, second.ctypes.data + i * width * FLOAT_BYTES, decay, scale, width
                )
            if topk:
                found = _select(corner, stride, height, width, highest, topk, keys, places)
                _extract(bits, top, left, width, places, found, positions[tile], signs[tile])
            tile += 1
