"""Compiled CPU kernels: a whole tile from gradient to message, and from messages to weights, in the cache.

Numba compiles them when they are first called and keeps the result on disk. Columns of a tile are handled
sixteen at a time, as one vector; LLVM has no transposition or cosine transform of its own, so these two are
built here instruction by instruction. All in one file, since numba's cache follows the file of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
# Sides a tile may have here: the fast transform halves them down to one, vectors want whole sixteens.
SIDES = (16, 32, 64)
MAX_TILE = SIDES[-1] ** 2
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_INTS = ir.VectorType(_INT32, LANES)
_FLOAT_BYTES = 4
_VECTOR_BYTES = LANES * _FLOAT_BYTES
_LINE_BYTES = 64
# Written to by each call: two tiles, and the row maxima of one.
SCRATCH_FLOATS = 3 * MAX_TILE
_MAGNITUDE = np.int32(0x7FFFFFFF)

_compiled = njit(nogil=True, cache=True, error_model="numpy")


# -- instructions --


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [float(np.float32(value))] * LANES)


def _broadcast(builder: Any, value: Any) -> Any:
    """A vector of one number."""
    kind = ir.VectorType(value.type, LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(one, one, ir.Constant(_INTS, [0] * LANES))


def _get_magnitude(builder: Any, value: Any) -> Any:
    """Bits of the absolute values, which order like them."""
    return builder.and_(builder.bitcast(value, _INTS), ir.Constant(_INTS, [int(_MAGNITUDE)] * LANES))


def _iterate_rows(builder: Any, address: Any, stride: Any, num: int) -> Iterator[Any]:
    """Pointers to a vector in each of ``num`` rows, ``stride`` bytes apart."""
    for _ in range(num):
        yield builder.inttoptr(address, _VECTOR.as_pointer())
        address = builder.add(address, stride)


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(pointer)
    value.align = _FLOAT_BYTES
    return value


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, pointer).align = _FLOAT_BYTES


def _transform(builder: Any, x: Sequence[Any]) -> list[Any]:
    """DCT-II without factors: y[k] = sum x[i] cos(pi (2i + 1) k / 2n), n a power of two.

    Even k are the transform of half the length of x[i] + x[n-1-i]. Of the differences d, times
    2 cos(pi (2i + 1) / 2n), it is y[k - 1] + y[k + 1] for each odd k, and twice y[1] for k = 1.
    """
    n = len(x)
    if n == 1:
        return list(x)
    mirrored = list(zip(x[: n // 2], reversed(x[n // 2 :]), strict=True))
    sums = [builder.fadd(a, b) for a, b in mirrored]
    factors = [_constant(2 * math.cos(math.pi * (2 * i + 1) / (2 * n))) for i in range(n // 2)]
    differences = [builder.fmul(builder.fsub(a, b), c) for (a, b), c in zip(mirrored, factors, strict=True)]
    even, pairs = _transform(builder, sums), _transform(builder, differences)
    odd = [builder.fmul(pairs[0], _constant(0.5))]
    for pair in pairs[1:]:
        odd.append(builder.fsub(pair, odd[-1]))
    return [y for both in zip(even, odd, strict=True) for y in both]


def _transpose(builder: Any, rows: list[Any]) -> list[Any]:
    """Sixteen vectors as the rows of a matrix to its columns, by swapping blocks of 8, 4, 2 and 1."""
    size = LANES // 2
    while size:
        low = [i if not i & size else LANES + i - size for i in range(LANES)]
        high = [i + size if not i & size else LANES + i for i in range(LANES)]
        masks = [ir.Constant(_INTS, mask) for mask in (low, high)]
        for i in range(LANES):
            if not i & size:
                pair = rows[i], rows[i + size]
                rows[i], rows[i + size] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        size //= 2
    return rows


def _make_block_instruction(num_rows: int, transform: Any) -> Any:
    """Instruction (source, its stride, target, its stride; addresses and bytes) on rows of one vector."""

    @intrinsic
    def instruction(typingctx, source, source_stride, target, target_stride):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            pointers = _iterate_rows(builder, args[0], args[1], num_rows)
            values = transform(builder, [_load(builder, pointer) for pointer in pointers])
            for value, pointer in zip(
                values, _iterate_rows(builder, args[2], args[3], num_rows), strict=True
            ):
                _store(builder, value, pointer)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4), generate

    return instruction


def _transform_even_first(builder: Any, x: Sequence[Any]) -> list[Any]:
    """sqrt(n / 2) times the orthonormal DCT-II, even frequencies first (as in ``transform``)."""
    first, *rest = _transform(builder, x)
    y = [builder.fmul(first, _constant(math.sqrt(0.5))), *rest]
    return y[0::2] + y[1::2]


_transpose_block = _make_block_instruction(LANES, _transpose)
_transform_16, _transform_32, _transform_64 = (
    _make_block_instruction(side, _transform_even_first) for side in SIDES
)


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call an intrinsic of LLVM by its full name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _make_fold_instruction(width: int) -> Any:
    """Instruction (target, source, decay, scale): target = decay * target + scale * source, [width] each.

    Returns the bits of the largest magnitude, which order like magnitudes do.
    """

    @intrinsic
    def instruction(typingctx, target, source, decay, scale):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            factors = [_broadcast(builder, arg) for arg in args[2:]]
            largest = ir.Constant(_INTS, [0] * LANES)
            stride = ir.Constant(args[0].type, _VECTOR_BYTES)
            rows = [_iterate_rows(builder, arg, stride, width // LANES) for arg in args[:2]]
            for target_pointer, source_pointer in zip(*rows, strict=True):
                kept = builder.fmul(_load(builder, target_pointer), factors[0])
                added = builder.fmul(_load(builder, source_pointer), factors[1])
                value = builder.fadd(kept, added)
                _store(builder, value, target_pointer)
                magnitude = _get_magnitude(builder, value)
                largest = _call(builder, f"llvm.smax.v{LANES}i32", _INTS, largest, magnitude)
            return _call(builder, f"llvm.vector.reduce.smax.v{LANES}i32", _INT32, largest)

        return types.int32(types.intp, types.intp, types.float32, types.float32), generate

    return instruction


def _make_find_instruction(width: int) -> Any:
    """Instruction (address, threshold): bit j of a word says whether the magnitude of element j reaches it."""

    @intrinsic
    def instruction(typingctx, address, threshold):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            stride = ir.Constant(args[0].type, _VECTOR_BYTES)
            marks = ir.Constant(_INT64, 0)
            limit = _broadcast(builder, args[1])
            for i, pointer in enumerate(_iterate_rows(builder, args[0], stride, width // LANES)):
                reaches = builder.icmp_signed(">=", _get_magnitude(builder, _load(builder, pointer)), limit)
                word = builder.zext(builder.bitcast(reaches, ir.IntType(LANES)), _INT64)
                marks = builder.or_(marks, builder.shl(word, _INT64(i * LANES)))
            return marks

        return types.uint64(types.intp, types.int32), generate

    return instruction


@intrinsic
def _count_trailing_zeros(typingctx, word):  # type: ignore[no-untyped-def]
    """Number of the lowest bit of a word that is not 0."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def _load_bits(typingctx, address):  # type: ignore[no-untyped-def]
    """The int32 at an address."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(args[0], _INT32.as_pointer()))

    return types.int32(types.intp), generate


_find_16, _find_32, _find_64 = (_make_find_instruction(side) for side in SIDES)
_fold_16, _fold_32, _fold_64 = (_make_fold_instruction(side) for side in SIDES)


@intrinsic
def _prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at ``address``."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, keep, data = (ir.Constant(_INT32, x) for x in (0, 3, 1))
        builder.call(function, [builder.inttoptr(args[0], byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.intp), generate


# -- from gradient to message --


@_compiled
def _locate_next(matrix, top, left, height, width):  # type: ignore[no-untyped-def]
    """(address, stride, height, width) of the tile after the one at [top, left]; address 0 if it is not whole."""
    left += width
    if left >= matrix.shape[1]:
        top, left = top + height, 0
    if top + height > matrix.shape[0] or left + width > matrix.shape[1]:
        return 0, 0, height, width
    stride = matrix.shape[1] * _FLOAT_BYTES
    return matrix.ctypes.data + top * stride + left * _FLOAT_BYTES, stride, height, width


@_compiled
def _prefetch_share(ahead, share, num_shares):  # type: ignore[no-untyped-def]
    """Ask for one of ``num_shares`` parts of a tile; all at once, the requests would wait for each other."""
    address, stride, height, width = ahead
    if address:
        for i in range(share * height // num_shares, (share + 1) * height // num_shares):
            for offset in range(0, _FLOAT_BYTES * width, _LINE_BYTES):
                _prefetch(address + i * stride + offset)


@_compiled
def _transform_columns(source, source_stride, target, target_stride, height, width, ahead):  # type: ignore[no-untyped-def]
    """DCT of the columns of [height, width] at ``source``; addresses and strides in bytes.

    ahead: (address, stride, height, width) of a tile to ask for meanwhile
    """
    for strip in range(width // LANES):
        offset = strip * _VECTOR_BYTES
        _prefetch_share(ahead, strip, width // LANES)
        if height == 64:
            _transform_64(source + offset, source_stride, target + offset, target_stride)
        elif height == 32:
            _transform_32(source + offset, source_stride, target + offset, target_stride)
        else:
            _transform_16(source + offset, source_stride, target + offset, target_stride)


@_compiled
def _transpose_tile(source, target, height, width):  # type: ignore[no-untyped-def]
    """[height, width] at ``source`` to [width, height] at ``target``, both without gaps."""
    row, column = _FLOAT_BYTES * width, _FLOAT_BYTES * height
    for i in range(0, height, LANES):
        for j in range(0, width, LANES):
            _transpose_block(
                source + i * row + _FLOAT_BYTES * j, row, target + j * column + _FLOAT_BYTES * i, column
            )


@_compiled
def _transform_tile(gradient, top, left, height, width, first, second, ahead):  # type: ignore[no-untyped-def]
    """second [height, width] = sqrt(height width / 4) times the DCT of the tile at [top, left].

    Where the matrix has ended there are zeros; ``first`` is scratch.
    """
    rows, cols = gradient.shape
    stride = cols * _FLOAT_BYTES
    source = gradient.ctypes.data + top * stride + left * _FLOAT_BYTES
    a, b = first.ctypes.data, second.ctypes.data
    if top + height > rows or left + width > cols:
        for i in range(height):
            for j in range(width):
                is_inside = top + i < rows and left + j < cols
                second[i * width + j] = gradient[top + i, left + j] if is_inside else np.float32(0)
        source, stride = b, width * _FLOAT_BYTES
    next_gradient = _locate_next(gradient, top, left, height, width)
    _transform_columns(source, stride, a, width * _FLOAT_BYTES, height, width, next_gradient)
    _transpose_tile(a, b, height, width)
    _transform_columns(b, height * _FLOAT_BYTES, a, height * _FLOAT_BYTES, width, height, ahead)
    _transpose_tile(a, b, width, height)


@_compiled
def _find_threshold(highest, height, topk):  # type: ignore[no-untyped-def]
    """The ``topk``-th largest of the row maxima: so many elements at least are as large. At least 1.

    highest: int32 [64], zeros from ``height`` on
    """
    if topk > height:
        return np.int32(1)
    found, threshold = 0, _MAGNITUDE
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


@_compiled
def _find_in_row(address, threshold, width):  # type: ignore[no-untyped-def]
    if width == 64:
        return _find_64(address, threshold)
    if width == 32:
        return _find_32(address, threshold)
    return _find_16(address, threshold)


@_compiled
def _select(corner, stride, height, width, highest, topk, keys, places):  # type: ignore[no-untyped-def]
    """The leading ``topk`` of a tile that are not zero: how many, their bits in ``keys``, their positions.

    Positions are visited in ascending order and only a larger magnitude passes an earlier one.
    """
    threshold = _find_threshold(highest, height, topk)
    found = 0
    for i in range(height):
        if highest[i] < threshold:
            continue
        address = corner + i * stride
        marks = _find_in_row(address, threshold, width)
        while marks:
            j = _count_trailing_zeros(marks)
            marks &= marks - np.uint64(1)
            value = _load_bits(address + j * _FLOAT_BYTES) & _MAGNITUDE
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


@_compiled
def _extract(bits, top, left, width, places, found, positions, signs):  # type: ignore[no-untyped-def]
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


@_compiled
def _fold_row(target, source, decay, scale, width):  # type: ignore[no-untyped-def]
    if width == 64:
        return _fold_64(target, source, decay, scale)
    if width == 32:
        return _fold_32(target, source, decay, scale)
    return _fold_16(target, source, decay, scale)


@_compiled
def update_tiles(momentum, gradient, height, width, decay, scale, positions, signs, scratch):  # type: ignore[no-untyped-def]
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
    topk, tile, stride = positions.shape[1], 0, momentum.shape[1] * _FLOAT_BYTES
    highest[:] = 0
    scale *= np.float32(2 / math.sqrt(height * width))  # what the transforms leave out
    if gradient.size == 0:
        second[:] = 0
    for top in range(0, momentum.shape[0], height):
        for left in range(0, momentum.shape[1], width):
            corner = momentum.ctypes.data + top * stride + left * _FLOAT_BYTES
            if gradient.size:
                ahead = _locate_next(momentum, top, left, height, width)
                _transform_tile(gradient, top, left, height, width, first, second, ahead)
            for i in range(height):
                highest[i] = _fold_row(
                    corner + i * stride, second.ctypes.data + i * width * _FLOAT_BYTES, decay, scale, width
                )
            if topk:
                found = _select(corner, stride, height, width, highest, topk, keys, places)
                _extract(bits, top, left, width, places, found, positions[tile], signs[tile])
            tile += 1


# -- from messages to weights --


def _make_sum_instruction(num: int) -> Any:
    """Instruction (numbers, count, rows, their stride, table, its stride, target, its stride).

    target[i] = sum over u in numbers of table[u, i] * rows[u], for i below ``num``, sixteen columns of each.
    """

    @intrinsic
    def instruction(  # type: ignore[no-untyped-def]
        typingctx, numbers, count, rows, rows_stride, table, table_stride, target, target_stride
    ):
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            numbers, count, rows, rows_stride, table, table_stride, target, target_stride = args
            zero, floats = _constant(0.0), ir.FloatType().as_pointer()
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(num)]
            with cgutils.for_range(builder, count) as loop:
                start = builder.inttoptr(numbers, _INT32.as_pointer())
                number = builder.zext(builder.load(builder.gep(start, [loop.index])), count.type)
                at = builder.add(rows, builder.mul(number, rows_stride))
                row = _load(builder, builder.inttoptr(at, _VECTOR.as_pointer()))
                entries = builder.inttoptr(builder.add(table, builder.mul(number, table_stride)), floats)
                for i, place in enumerate(sums):
                    entry = builder.load(builder.gep(entries, [ir.Constant(count.type, i)]))
                    product = builder.fmul(_broadcast(builder, entry), row, flags=("contract",))
                    total = builder.fadd(builder.load(place), product, flags=("contract",))
                    builder.store(total, place)
            for place, pointer in zip(sums, _iterate_rows(builder, target, target_stride, num), strict=True):
                _store(builder, builder.load(place), pointer)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), generate

    return instruction


def _make_move_instruction(width: int) -> Any:
    """Instruction (target, source, even, odd, flip, step, factor): rows of ``width`` elements.

    target = source * factor - step * sign(even + flip * odd), both rounded; flip is 1 or -1.
    """

    @intrinsic
    def instruction(typingctx, target, source, even, odd, flip, step, factor):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            stride = ir.Constant(args[0].type, _VECTOR_BYTES)
            rows = [_iterate_rows(builder, arg, stride, width // LANES) for arg in args[:4]]
            flip, step, factor = (_broadcast(builder, arg) for arg in args[4:])
            zero, back = _constant(0.0), builder.fsub(_constant(0.0), step)
            for to, *pointers in zip(*rows, strict=True):
                weight, even, odd = (_load(builder, pointer) for pointer in pointers)
                total = builder.fadd(even, builder.fmul(flip, odd))
                down = builder.select(builder.fcmp_ordered("<", total, zero), back, zero)
                move = builder.select(builder.fcmp_ordered(">", total, zero), step, down)
                _store(builder, builder.fsub(builder.fmul(weight, factor), move), to)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4, *[types.float32] * 3), generate

    return instruction


_sum_8, _sum_16 = _make_sum_instruction(8), _make_sum_instruction(16)
_move_16, _move_32, _move_64 = (_make_move_instruction(side) for side in SIDES)


@_compiled
def _add_terms(positions, signs, table, height, width, rows, numbers):  # type: ignore[no-untyped-def]
    """rows[u] = sum of table rows v, times their signs, over the terms (u, v) of a tile.

    numbers int32 [2, 64] gets the u that occur, of even and of odd frequencies; returns how many of each.
    """
    seen = np.uint64(0)
    num_even, num_odd = 0, 0
    stride = width * _FLOAT_BYTES
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
            _fold_row(rows.ctypes.data + u * stride, source, kept, np.float32(sign), width)
    return num_even, num_odd


@_compiled
def _sum_rows(numbers, count, rows, table, height, width, target, half, ahead):  # type: ignore[no-untyped-def]
    """target [height / 2, width] = the upper half of the products of table columns with ``rows``.

    ahead: a tile to ask for meanwhile, its upper or lower ``half`` (0 or 1)
    """
    stride, table_stride = width * _FLOAT_BYTES, height * _FLOAT_BYTES
    num_strips = width // LANES
    for strip in range(num_strips):
        offset = strip * _VECTOR_BYTES
        _prefetch_share(ahead, half * num_strips + strip, 2 * num_strips)
        for top in range(0, height // 2, LANES):
            args = (
                numbers.ctypes.data,
                count,
                rows.ctypes.data + offset,
                stride,
                table.ctypes.data + top * _FLOAT_BYTES,
                table_stride,
                target.ctypes.data + top * stride + offset,
                stride,
            )
            if height == 16:
                _sum_8(*args)
            else:
                _sum_16(*args)


@_compiled
def _move_row(target, source, even, odd, flip, step, factor, width):  # type: ignore[no-untyped-def]
    if width == 64:
        _move_64(target, source, even, odd, flip, step, factor)
    elif width == 32:
        _move_32(target, source, even, odd, flip, step, factor)
    else:
        _move_16(target, source, even, odd, flip, step, factor)


@_compiled
def _move_tile(target, source, top, left, height, width, even, odd, step, factor):  # type: ignore[no-untyped-def]
    """Move the weights of a tile by the signs of sums and differences of ``even`` and ``odd``."""
    rows, cols = target.shape
    for i in range(min(height, rows - top)):
        half = i if 2 * i < height else height - 1 - i
        flip = np.float32(1) if 2 * i < height else np.float32(-1)
        if left + width <= cols:
            place = ((top + i) * cols + left) * _FLOAT_BYTES
            offset = half * width * _FLOAT_BYTES
            addresses = even.ctypes.data + offset, odd.ctypes.data + offset
            to, start = target.ctypes.data + place, source.ctypes.data + place
            _move_row(to, start, addresses[0], addresses[1], flip, step, factor, width)
            continue
        for j in range(cols - left):
            total = even[half * width + j] + flip * odd[half * width + j]
            move = np.float32(step if total > 0 else (-step if total < 0 else np.float32(0)))
            target[top + i, left + j] = source[top + i, left + j] * factor - move


@_compiled
def move_tiles(target, source, tables, height, width, positions, signs, step, factor, scratch):  # type: ignore[no-untyped-def]
    """target = source * factor - step * sign(IDCT(sum of messages)), tile by tile.

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
            ahead = _locate_next(source, top, left, height, width)
            found = _add_terms(positions[tile], signs[tile], tables[1], height, width, rows, numbers)
            _sum_rows(numbers[0], found[0], rows, tables[0], height, width, even, 0, ahead)
            _sum_rows(numbers[1], found[1], rows, tables[0], height, width, odd, 1, ahead)
            _move_tile(target, source, top, left, height, width, even, odd, step, factor)
            tile += 1
