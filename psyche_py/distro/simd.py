"""Vector instructions for kernels that numba compiles: what LLVM does not find by itself.

Columns of a tile are handled sixteen at a time, as one vector; LLVM takes several where vectors are shorter.
Transposition and cosine transform are built here instruction by instruction. Addresses and strides: bytes.

Numba keeps compiled kernels on disk until the kernel's own file changes: after a change here, touch
``fold_kernels.py`` and ``move_kernels.py``. Installing a release writes all files anew.
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

from psyche_py.distro.jit import SIDES

LANES = 16
FLOAT_BYTES = 4
VECTOR_BYTES = LANES * FLOAT_BYTES
MAGNITUDE = np.int32(0x7FFFFFFF)
# Added and subtracted again, it rounds what is below 2**22 to the nearest integer (halves to even, to +0.0).
ROUNDER = np.float32(1.5 * 2**23)
_LINE_BYTES = 64
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_INTS = ir.VectorType(_INT32, LANES)

compiled = njit(nogil=True, cache=True, error_model="numpy")


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [float(np.float32(value))] * LANES)


def _broadcast(builder: Any, value: Any) -> Any:
    """A vector of one number."""
    kind = ir.VectorType(value.type, LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(one, one, ir.Constant(_INTS, [0] * LANES))


def _get_magnitude(builder: Any, value: Any) -> Any:
    """Bits of the absolute values, which order like them."""
    return builder.and_(builder.bitcast(value, _INTS), ir.Constant(_INTS, [int(MAGNITUDE)] * LANES))


def _iterate_rows(builder: Any, address: Any, stride: Any, num: int) -> Iterator[Any]:
    """Pointers to a vector in each of ``num`` rows, ``stride`` bytes apart."""
    for _ in range(num):
        yield builder.inttoptr(address, _VECTOR.as_pointer())
        address = builder.add(address, stride)


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(pointer)
    value.align = FLOAT_BYTES
    return value


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, pointer).align = FLOAT_BYTES


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
    def instruction(typingctx, source, source_stride, target, target_stride):
        def generate(context, builder, signature, args):
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


transpose_block = _make_block_instruction(LANES, _transpose)
transform_16, transform_32, transform_64 = (
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
    def instruction(typingctx, target, source, decay, scale):
        def generate(context, builder, signature, args):
            factors = [_broadcast(builder, arg) for arg in args[2:]]
            largest = ir.Constant(_INTS, [0] * LANES)
            stride = ir.Constant(args[0].type, VECTOR_BYTES)
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
    """Instruction (address, threshold): bit j of a word tells if the magnitude of element j reaches it."""

    @intrinsic
    def instruction(typingctx, address, threshold):
        def generate(context, builder, signature, args):
            stride = ir.Constant(args[0].type, VECTOR_BYTES)
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
def count_trailing_zeros(typingctx, word):
    """Number of the lowest bit of a word that is not 0."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def load_bits(typingctx, address):
    """The int32 at an address."""

    def generate(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _INT32.as_pointer()))

    return types.int32(types.intp), generate


_find_16, _find_32, _find_64 = (_make_find_instruction(side) for side in SIDES)
_fold_16, _fold_32, _fold_64 = (_make_fold_instruction(side) for side in SIDES)


@intrinsic
def _prefetch(typingctx, address):
    """Ask for the cache line at ``address``."""

    def generate(context, builder, signature, args):
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, keep, data = (ir.Constant(_INT32, x) for x in (0, 3, 1))
        builder.call(function, [builder.inttoptr(args[0], byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.intp), generate


def _make_sum_instruction(num: int) -> Any:
    """Instruction (numbers, count, rows, their stride, table, its stride, target, its stride).

    target[i] = sum over u in numbers of table[u, i] * rows[u], for i below ``num``, sixteen columns of each.
    """

    @intrinsic
    def instruction(typingctx, numbers, count, rows, rows_stride, table, table_stride, target, target_stride):
        def generate(context, builder, signature, args):
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


def _clamp(builder: Any, value: Any, limit: Any) -> Any:
    """value within -limit .. limit."""
    low = builder.fsub(_constant(0.0), limit)
    value = builder.select(builder.fcmp_ordered("<", value, low), low, value)
    return builder.select(builder.fcmp_ordered(">", value, limit), limit, value)


def _make_move_instruction(width: int) -> Any:
    """Instruction (target, source, even, odd, flip, slope, levels, unit, factor): rows of ``width`` elements.

    target = source * factor - unit * units((even + flip * odd) * slope), both rounded; flip is 1 or -1.
    """

    @intrinsic
    def instruction(typingctx, target, source, even, odd, flip, slope, levels, unit, factor):
        def generate(context, builder, signature, args):
            stride = ir.Constant(args[0].type, VECTOR_BYTES)
            rows = [_iterate_rows(builder, arg, stride, width // LANES) for arg in args[:4]]
            flip, slope, levels, unit, factor = (_broadcast(builder, arg) for arg in args[4:])
            for to, *pointers in zip(*rows, strict=True):
                weight, even, odd = (_load(builder, pointer) for pointer in pointers)
                total = builder.fadd(even, builder.fmul(flip, odd))
                share = _clamp(builder, builder.fmul(total, slope), levels)
                rounder = _constant(float(ROUNDER))
                units = builder.fsub(builder.fadd(share, rounder), rounder)
                _store(builder, builder.fsub(builder.fmul(weight, factor), builder.fmul(units, unit)), to)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4, *[types.float32] * 5), generate

    return instruction


sum_8, sum_16 = _make_sum_instruction(8), _make_sum_instruction(16)
_move_16, _move_32, _move_64 = (_make_move_instruction(side) for side in SIDES)


# -- by side --


@compiled
def fold_row(target, source, decay, scale, width):
    if width == 64:
        return _fold_64(target, source, decay, scale)
    if width == 32:
        return _fold_32(target, source, decay, scale)
    return _fold_16(target, source, decay, scale)


@compiled
def find_in_row(address, threshold, width):
    if width == 64:
        return _find_64(address, threshold)
    if width == 32:
        return _find_32(address, threshold)
    return _find_16(address, threshold)


@compiled
def move_row(target, source, even, odd, flip, slope, levels, unit, factor, width):
    if width == 64:
        _move_64(target, source, even, odd, flip, slope, levels, unit, factor)
    elif width == 32:
        _move_32(target, source, even, odd, flip, slope, levels, unit, factor)
    else:
        _move_16(target, source, even, odd, flip, slope, levels, unit, factor)


# -- the tile that comes next --


@compiled
def locate_next(matrix, top, left, height, width):
    """(address, stride, height, width) of the tile after the one at [top, left]; address 0 if not whole."""
    left += width
    if left >= matrix.shape[1]:
        top, left = top + height, 0
    if top + height > matrix.shape[0] or left + width > matrix.shape[1]:
        return 0, 0, height, width
    stride = matrix.shape[1] * FLOAT_BYTES
    return matrix.ctypes.data + top * stride + left * FLOAT_BYTES, stride, height, width


@compiled
def prefetch_share(ahead, share, num_shares):
    """Ask for one of ``num_shares`` parts of a tile; all at once, the requests would wait for each other."""
    address, stride, height, width = ahead
    if address:
        for i in range(share * height // num_shares, (share + 1) * height // num_shares):
            for offset in range(0, FLOAT_BYTES * width, _LINE_BYTES):
                _prefetch(address + i * stride + offset)
