"""Tiles to bits and back, many at once: the numpy side of :mod:`psyche_py.distro.tilecode`.

A block of tiles is, least significant bit first: for each tile the low bits of its code, then its sign bits;
then the number that the tiles share. Blocks follow each other without gaps; the last may hold fewer tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from psyche_py.distro.combinatorics import LIMB_BYTES, IntArray
from psyche_py.distro.errors import PayloadError
from psyche_py.distro.tilecode import TileCode

# Tiles handled at once: small enough for the cache.
PART_TILES = 1 << 14

ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]
SignArray = npt.NDArray[np.int8]
PositionArray = npt.NDArray[np.integer[Any]]


class Part(NamedTuple):
    """Checked tiles as read: their numbers, codes [limbs, tiles], sizes [tiles], negative [tiles, k]."""

    tiles: slice
    codes: IntArray
    sizes: IntArray
    negative: BoolArray


def get_part_tiles(code: TileCode) -> int:
    """Tiles of a part: whole blocks, and as many as let every part start on a byte."""
    step = 8 * code.block_tiles
    return step * max(1, PART_TILES // step)


def encode_tiles(code: TileCode, positions: PositionArray, signs: SignArray) -> bytes:
    """Bits of all tiles, padded to a byte: positions and signs [tiles, k] in canonical form."""
    step = get_part_tiles(code)
    parts = [
        _encode_part(code, positions[start : start + step], signs[start : start + step])
        for start in range(0, len(positions), step)
    ]
    return b"".join(parts)


def read_tiles(code: TileCode, body: ByteArray, num_tiles: int, start: int, stop: int) -> Iterator[Part]:
    """Parts that cover the tiles ``start .. stop`` of ``num_tiles`` in ``body``; raises PayloadError.

    Parts hold whole blocks, so the first may begin before ``start`` and the last end after ``stop``.
    """
    step = get_part_tiles(code)
    first = start - start % code.block_tiles
    last = min(num_tiles, stop - stop % -code.block_tiles)
    for begin in range(first, last, step):
        end = min(begin + step, last)
        offset = begin // code.block_tiles * code.block_bits
        num_bits = code.compute_num_bits(end - begin)
        raw = body[offset // 8 : -(-(offset + num_bits) // 8)]
        flat = np.unpackbits(raw, bitorder="little")[offset % 8 :]
        if end == num_tiles and flat[num_bits:].any():
            raise PayloadError("The padding of a payload is not zero.", "Ignore the result.")
        yield _read_part(code, flat[:num_bits], slice(begin, end))


def fill_members(code: TileCode, part: Part, positions: PositionArray) -> None:
    """Write the positions named by a part's codes into ``positions`` [tiles, k], zeros where absent."""
    if (part.sizes == code.k).all():
        positions[:] = code.subsets.compute_members(part.codes, code.k).T
        return
    positions[:] = 0
    for size in np.unique(part.sizes):
        chosen = np.flatnonzero(part.sizes == size)
        members = code.subsets.compute_members(part.codes[:, chosen], int(size))
        positions[chosen, :size] = members.T


def _get_absent(code: TileCode, sizes: IntArray) -> BoolArray:
    """[tiles, k]: which of the coefficient places of each tile are unused."""
    return np.arange(code.k) >= sizes[:, None]


def fill_signs(code: TileCode, part: Part, signs: SignArray) -> None:
    """Write a part's signs into ``signs`` [tiles, k]: -1 or 1, 0 where absent."""
    np.subtract(1, part.negative.view(np.int8) << 1, out=signs, casting="unsafe")
    if not (part.sizes == code.k).all():
        signs[_get_absent(code, part.sizes)] = 0


def _encode_part(code: TileCode, positions: PositionArray, signs: SignArray) -> bytes:
    num_tiles, low = len(positions), code.low_bits
    code_bits = _limbs_to_bits(code, _compute_codes(code, positions, signs))
    own = np.empty((num_tiles, low + code.k), dtype=np.uint8)
    own[:, :low] = code_bits[:, :low]
    own[:, low:] = signs < 0
    if code.radix == 1:
        return np.packbits(own.ravel(), bitorder="little").tobytes()
    digits = _bits_to_int(code_bits[:, low:])
    whole = num_tiles - num_tiles % code.block_tiles
    pieces = [
        _join_blocks(code, own[part], digits[part], size)
        for part, size in ((slice(whole), code.block_tiles), (slice(whole, None), num_tiles - whole))
        if size and len(digits[part])
    ]
    return np.packbits(np.concatenate(pieces), bitorder="little").tobytes()


def _join_blocks(code: TileCode, own: ByteArray, digits: IntArray, size: int) -> ByteArray:
    """Bits of blocks of ``size`` tiles: their own bits [tiles, low + k], then the shared number."""
    places = code.radix ** np.arange(size, dtype=np.int64)
    shared = (digits.reshape(-1, size) * places).sum(axis=1)
    return np.concatenate(
        [own.reshape(len(shared), -1), _int_to_bits(shared, code.get_shared_bits(size))], axis=1
    ).ravel()


def _read_part(code: TileCode, flat: ByteArray, tiles: slice) -> Part:
    num_tiles = tiles.stop - tiles.start
    whole = num_tiles - num_tiles % code.block_tiles
    if code.radix == 1:
        own = flat.reshape(num_tiles, code.low_bits + code.k)
        code_bits = own[:, : code.low_bits]
    else:
        cut = whole // code.block_tiles * code.block_bits
        split = [
            _split_blocks(code, bits, size)
            for bits, size in ((flat[:cut], code.block_tiles), (flat[cut:], num_tiles - whole))
            if len(bits)
        ]
        own = np.concatenate([part[0] for part in split])
        high = _int_to_bits(np.concatenate([part[1] for part in split]), code.high_bits)
        code_bits = np.concatenate([own[:, : code.low_bits], high], axis=1)
    codes = _bits_to_limbs(code, code_bits)
    if not code.subsets.is_valid(codes).all():
        raise PayloadError("A payload names coefficients that do not exist.", "Ignore the result.")
    sizes = code.subsets.compute_sizes(codes)
    negative = own[:, code.low_bits :].view(np.bool_)
    if (sizes != code.k).any() and (negative & _get_absent(code, sizes)).any():
        raise PayloadError("A payload gives signs to coefficients it does not hold.", "Ignore the result.")
    return Part(tiles, codes, sizes, negative)


def _split_blocks(code: TileCode, bits: ByteArray, size: int) -> tuple[ByteArray, IntArray]:
    """Inverse of :func:`_join_blocks`."""
    per_tile = code.low_bits + code.k
    blocks = bits.reshape(-1, size * per_tile + code.get_shared_bits(size))
    shared = _bits_to_int(blocks[:, size * per_tile :])
    digits = np.empty((len(blocks), size), dtype=np.int64)
    for i in range(size):
        shared, digits[:, i] = np.divmod(shared, code.radix)
    if shared.any():
        raise PayloadError("A payload names coefficients that do not exist.", "Ignore the result.")
    return blocks[:, : size * per_tile].reshape(-1, per_tile), digits.ravel()


def _compute_codes(code: TileCode, positions: PositionArray, signs: SignArray) -> IntArray:
    """Codes [limbs, tiles]."""
    subsets = code.subsets
    sizes = np.count_nonzero(signs, axis=1)
    if (sizes == code.k).all():
        return subsets.compute_codes(np.ascontiguousarray(positions.T))
    codes = np.empty((subsets.num_limbs, len(positions)), dtype=np.int64)
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        codes[:, chosen] = subsets.compute_codes(np.ascontiguousarray(positions[chosen, :size].T))
    return codes


def _limbs_to_bits(code: TileCode, codes: IntArray) -> ByteArray:
    """Codes [limbs, tiles] to bits [tiles, low_bits + high_bits]."""
    num_limbs, num_tiles = codes.shape
    raw = np.empty((num_tiles, num_limbs, LIMB_BYTES), dtype=np.uint8)
    for i, limb in enumerate(codes):
        raw[:, i] = limb.astype("<i8", copy=False).view(np.uint8).reshape(num_tiles, 8)[:, :LIMB_BYTES]
    count = code.subsets.num_bits
    return np.unpackbits(raw.reshape(num_tiles, -1), axis=1, count=count, bitorder="little")


def _bits_to_limbs(code: TileCode, bits: ByteArray) -> IntArray:
    """Inverse of :func:`_limbs_to_bits`."""
    num_limbs, num_tiles = code.subsets.num_limbs, len(bits)
    raw = np.zeros((num_tiles, num_limbs * LIMB_BYTES), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    raw[:, : packed.shape[1]] = packed
    wide = np.zeros((num_limbs, num_tiles, 8), dtype=np.uint8)
    for i in range(num_limbs):
        wide[i, :, :LIMB_BYTES] = raw[:, i * LIMB_BYTES : (i + 1) * LIMB_BYTES]
    return wide.view("<i8")[:, :, 0].astype(np.int64, copy=False)


def _int_to_bits(values: IntArray, num_bits: int) -> ByteArray:
    """[n] non-negative integers to bits [n, num_bits]."""
    raw = values.astype("<i8", copy=False).view(np.uint8).reshape(len(values), 8)
    return np.unpackbits(raw, axis=1, count=num_bits, bitorder="little")


def _bits_to_int(bits: ByteArray) -> IntArray:
    """Inverse of :func:`_int_to_bits`, at most 62 bits."""
    raw = np.zeros((len(bits), 8), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    raw[:, : packed.shape[1]] = packed
    return raw.view("<i8")[:, 0].astype(np.int64, copy=False)
