"""The tile code compiled: bits to coefficients and back, tile by tile (``tilebits`` is the same in numpy).

Numbers of hundreds of bits are limbs of 64 bits, the least significant first. The body is hostile: every loop
is bounded by the layout, and reading goes no further than the body's padded copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

WordArray = npt.NDArray[np.uint64]

# What decode_tiles returns.
VALID, NO_SUCH_COEFFICIENTS, SIGNS_OF_NOTHING, PADDING_NOT_ZERO = range(4)
# The last word of a body may be read from here on.
PADDING_BYTES = 16

# A double's exponent and the first bits of its fraction number the buckets of ``guesses``.
BUCKETS_PER_OCTAVE = 16
_BUCKET_SHIFT = 48
_FIRST_BUCKET = 1023 << 4
_FRACTION_MASK = (1 << _BUCKET_SHIFT) - 1

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_WORD = np.uint64(64)
_WORD_SIZE = 18446744073709551616.0


class CodeTables(NamedTuple):
    """A tile code as arrays.

    binomials:  uint64 [k, n, limbs], C(c, level) at [level - 1, c]
    starts:     uint64 [k + 2, limbs]: first code of sizes k, 0, 1, ..., k - 1, and the number of codes
    guesses:    float64 [k, buckets + 1]: the real c with C(c, level) = the lower edge of a bucket, which is a
                sixteenth of the way from a power of two to the next
    """

    binomials: WordArray
    starts: WordArray
    guesses: npt.NDArray[np.float64]


class BlockShape(NamedTuple):
    """Widths of a block (see ``TileCode``); ``rest_bits`` is the shared number of the last, shorter block."""

    low_bits: int
    radix: int
    tiles: int
    shared_bits: int
    rest_bits: int


@_compiled
def _mask(num_bits):
    """A word whose low bits, at most 64, are ones."""
    if num_bits >= 64:
        return ~np.uint64(0)
    return (np.uint64(1) << np.uint64(num_bits)) - np.uint64(1)


@_compiled
def _read(body, bit, num_bits):
    """``num_bits`` (at most 64) bits from ``bit`` on."""
    first, shift = bit >> 3, np.uint64(bit & 7)
    word = np.uint64(0)
    for i in range(8):
        word |= np.uint64(body[first + i]) << np.uint64(8 * i)
    word >>= shift
    if shift:
        word |= np.uint64(body[first + 8]) << (_WORD - shift)
    return word & _mask(num_bits)


@_compiled
def _write(body, bit, num_bits, word):
    """Put ``num_bits`` bits at ``bit``, where there are zeros."""
    first, shift = bit >> 3, np.uint64(bit & 7)
    word &= _mask(num_bits)
    moved = word << shift
    for i in range(8):
        body[first + i] |= np.uint8((moved >> np.uint64(8 * i)) & np.uint64(255))
    if shift:
        body[first + 8] |= np.uint8(word >> (_WORD - shift))


@_compiled
def _is_less(a, b):
    for i in range(len(a) - 1, -1, -1):
        if a[i] != b[i]:
            return a[i] < b[i]
    return False


@_compiled
def _add(a, b):
    carry = np.uint64(0)
    for i in range(len(a)):
        total = a[i] + b[i]
        wrapped = np.uint64(total < a[i])
        a[i] = total + carry
        carry = wrapped | np.uint64(a[i] < total)


@_compiled
def _subtract(a, b):
    borrow = np.uint64(0)
    for i in range(len(a)):
        total = a[i] - b[i]
        wrapped = np.uint64(a[i] < b[i])
        a[i] = total - borrow
        borrow = wrapped | np.uint64(total < borrow)


@_compiled
def _read_code(body, bit, low_bits, digit, code):
    """code = ``low_bits`` bits from ``bit`` on, and ``digit`` above them."""
    for i in range(len(code)):
        code[i] = np.uint64(0)
        if low_bits > 64 * i:
            code[i] = _read(body, bit + 64 * i, low_bits - 64 * i)
    limb, shift = low_bits >> 6, np.uint64(low_bits & 63)
    code[limb] |= digit << shift
    if shift and limb + 1 < len(code):
        code[limb + 1] |= digit >> (_WORD - shift)


@_compiled
def _guess(value, level, tables, number, number_bits):
    """About the largest c with C(c, level) <= value; doubles may round differently elsewhere."""
    if value < 1.0:
        return np.int64(level - 1)
    number[0] = value
    bucket = (number_bits[0] >> _BUCKET_SHIFT) - _FIRST_BUCKET
    fraction = (number_bits[0] & _FRACTION_MASK) * (1.0 / (1 << _BUCKET_SHIFT))
    low, high = tables.guesses[level - 1, bucket], tables.guesses[level - 1, bucket + 1]
    return np.int64(low + fraction * (high - low))


@_compiled
def _take_members(rank, size, tables, number, number_bits, positions):
    """The ``size`` members of a subset, ascending, from its rank, which is used up."""
    for level in range(size, 0, -1):
        value = np.float64(0)
        for i in range(len(rank) - 1, -1, -1):
            value = value * _WORD_SIZE + np.float64(rank[i])
        found = _guess(value, level, tables, number, number_bits)
        binomials = tables.binomials[level - 1]
        while _is_less(rank, binomials[found]):
            found -= 1
        while found + 1 < len(binomials) and not _is_less(rank, binomials[found + 1]):
            found += 1
        _subtract(rank, binomials[found])
        positions[level - 1] = found


@_compiled
def _take_members_of_two_words(rank, size, tables, number, number_bits, positions):
    """:func:`_take_members` with the rank in two registers: what top-k up to 10 of 4,096 needs."""
    low, high = rank[0], rank[1]
    for level in range(size, 0, -1):
        value = np.float64(high) * _WORD_SIZE + np.float64(low)
        found = _guess(value, level, tables, number, number_bits)
        binomials = tables.binomials[level - 1]
        own_low, own_high = binomials[found, 0], binomials[found, 1]
        while high < own_high or (high == own_high and low < own_low):
            found -= 1
            own_low, own_high = binomials[found, 0], binomials[found, 1]
        while found + 1 < len(binomials):
            next_low, next_high = binomials[found + 1, 0], binomials[found + 1, 1]
            if high < next_high or (high == next_high and low < next_low):
                break
            own_low, own_high = next_low, next_high
            found += 1
        high -= own_high + np.uint64(low < own_low)
        low -= own_low
        positions[level - 1] = found


@_compiled
def _take_size(code, starts):
    """How many coefficients a valid code has; the code becomes the rank among those of this size."""
    k = len(starts) - 2
    if _is_less(code, starts[1]):
        return k
    size = 0
    while size + 2 <= k and not _is_less(code, starts[size + 2]):
        size += 1
    _subtract(code, starts[size + 1])
    return size


@_compiled
def decode_tiles(body, num_tiles, block, tables, positions, signs):
    """Read tiles into positions and signs [tiles, k], in canonical form; returns VALID or what is wrong.

    body: the bytes of a group, then PADDING_BYTES zeros.
    """
    k, limbs = positions.shape[1], tables.binomials.shape[2]
    code = np.empty(limbs, dtype=np.uint64)
    number = np.empty(1, dtype=np.float64)
    number_bits = number.view(np.int64)
    radix, width = np.uint64(block.radix), block.low_bits + k
    bit = 0
    for start in range(0, num_tiles, block.tiles):
        num = min(block.tiles, num_tiles - start)
        shared_bits = block.shared_bits if num == block.tiles else block.rest_bits
        shared = _read(body, bit + num * width, shared_bits)
        for tile in range(start, start + num):
            digit = shared % radix
            shared //= radix
            _read_code(body, bit, block.low_bits, digit, code)
            if not _is_less(code, tables.starts[k + 1]):
                return NO_SUCH_COEFFICIENTS
            size = _take_size(code, tables.starts)
            negative = _read(body, bit + block.low_bits, k)
            if negative & ~_mask(size):
                return SIGNS_OF_NOTHING
            if limbs == 2:
                _take_members_of_two_words(code, size, tables, number, number_bits, positions[tile])
            else:
                _take_members(code, size, tables, number, number_bits, positions[tile])
            for i in range(k):
                sign = np.int8(1) - np.int8(2) * np.int8((negative >> np.uint64(i)) & np.uint64(1))
                signs[tile, i] = sign if i < size else np.int8(0)
                if i >= size:
                    positions[tile, i] = 0
            bit += width
        if shared:
            return NO_SUCH_COEFFICIENTS
        bit += shared_bits
    return PADDING_NOT_ZERO if bit & 7 and _read(body, bit, 8 - (bit & 7)) else VALID


@_compiled
def encode_tiles(positions, signs, block, tables, body):
    """Write canonical positions and signs [tiles, k] into ``body``: zeros, and PADDING_BYTES more."""
    num_tiles, k = positions.shape
    code = np.empty(tables.binomials.shape[2], dtype=np.uint64)
    radix, width = np.uint64(block.radix), block.low_bits + k
    limb, shift = block.low_bits >> 6, np.uint64(block.low_bits & 63)
    bit = 0
    for start in range(0, num_tiles, block.tiles):
        num = min(block.tiles, num_tiles - start)
        shared, place = np.uint64(0), np.uint64(1)
        for tile in range(start, start + num):
            code[:] = 0
            size, negative = 0, np.uint64(0)
            for i in range(k):
                if signs[tile, i] == 0:
                    break
                _add(code, tables.binomials[i, positions[tile, i]])
                negative |= np.uint64(signs[tile, i] < 0) << np.uint64(i)
                size += 1
            if size < k:
                _add(code, tables.starts[size + 1])
            for i in range(0, block.low_bits, 64):
                _write(body, bit + i, min(64, block.low_bits - i), code[i >> 6])
            _write(body, bit + block.low_bits, k, negative)
            digit = code[limb] >> shift
            if shift and limb + 1 < len(code):
                digit |= code[limb + 1] << (_WORD - shift)
            shared += digit * place
            place *= radix
            bit += width
        shared_bits = block.shared_bits if num == block.tiles else block.rest_bits
        _write(body, bit, shared_bits, shared)
        bit += shared_bits
