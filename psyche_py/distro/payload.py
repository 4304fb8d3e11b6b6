"""The wire format: what one trainer says of one step, as bytes of a length known in advance.

    header  16 bytes   magic "DTRO", version u32 LE = 1, layout digest (8 bytes)
    groups             for each tile group, the bits of its tiles one after the other, least significant
                       first, padded with zero bits to a whole byte
    tile               code of the positions (see combinatorics), then topk sign bits; bit i belongs to the
                       i-th smallest position, 1 is negative; bits of absent coefficients are zero

Exactly one byte string encodes a message, and every accepted byte string is one message: codes that name
nothing, signs of absent coefficients and padding that is not zero are rejected. docs/distro.md has examples.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psyche_py.distro.combinatorics import LIMB_BYTES, IntArray
from psyche_py.distro.errors import PayloadError
from psyche_py.distro.layout import HEADER_BYTES, PayloadLayout, TileGroup

MAGIC = b"DTRO"
VERSION = 1
# Tiles handled at once: a multiple of 8, so that every block starts on a byte, small enough for the cache.
BLOCK_TILES = 1 << 14

ByteArray = npt.NDArray[np.uint8]
SignArray = npt.NDArray[np.int8]
PositionArray = npt.NDArray[np.uint16]  # a tile has at most 256 * 256 coefficients


@dataclass(frozen=True)
class GroupMessage:
    """What a message says of one tile group.

    positions: uint16 [tiles, topk], row-major position in the tile, ascending; 0 where absent
    signs:     int8 [tiles, topk], -1 or 1, and 0 where absent; absent ones come last
    """

    positions: PositionArray
    signs: SignArray


Message = tuple[GroupMessage, ...]


def make_group_message(positions: IntArray, values: npt.NDArray[np.float32]) -> GroupMessage:
    """Canonical form of selected coefficients [tiles, topk] in any order; zero values are absent ones."""
    keys = positions << 1 | (values < 0)
    keys[values == 0] = np.iinfo(np.int64).max
    keys.sort(axis=1)
    absent = keys == np.iinfo(np.int64).max
    keys[absent] = 0
    signs = (1 - ((keys & 1) << 1)).astype(np.int8)
    signs[absent] = 0
    return GroupMessage((keys >> 1).astype(np.uint16), signs)


def encode_payload(layout: PayloadLayout, message: Message) -> bytes:
    """The bytes of a message in canonical form (see :class:`GroupMessage`)."""
    parts = [MAGIC, struct.pack("<I", VERSION), layout.digest]
    for group, content in zip(layout.groups, message, strict=True):
        for start in range(0, group.num_tiles, BLOCK_TILES):
            block = slice(start, start + BLOCK_TILES)
            parts.append(_encode_block(group, content.positions[block], content.signs[block]))
    payload = b"".join(parts)
    if len(payload) != layout.num_bytes:
        raise ValueError("the message does not fit the layout")
    return payload


def decode_payload(layout: PayloadLayout, payload: bytes) -> Message:
    """Read a payload; raises PayloadError unless it is exactly what :func:`encode_payload` makes."""
    _check_header(layout, payload)
    message = []
    for group in layout.groups:
        positions = np.zeros((group.num_tiles, group.topk), dtype=np.uint16)
        signs = np.zeros((group.num_tiles, group.topk), dtype=np.int8)
        for block, codes, sizes, negative in _read_blocks(group, payload):
            _fill_members(group, codes, sizes, positions[block])
            signs[block] = 1 - 2 * negative.astype(np.int8)
            signs[block][_get_absent(group, sizes)] = 0
        message.append(GroupMessage(positions, signs))
    return tuple(message)


def check_payload(layout: PayloadLayout, payload: bytes) -> None:
    """Raise PayloadError when the bytes are not a payload; several times cheaper than decoding."""
    _check_header(layout, payload)
    for group in layout.groups:
        for _ in _read_blocks(group, payload):
            pass


def _check_header(layout: PayloadLayout, payload: bytes) -> None:
    if len(payload) != layout.num_bytes:
        raise PayloadError(
            f"A payload of this model has {layout.num_bytes} bytes, not {len(payload)}.",
            "The sender trains another model or the transfer was cut; ignore the result.",
        )
    if payload[:4] != MAGIC or payload[4:8] != struct.pack("<I", VERSION):
        raise PayloadError("These bytes are not a DisTrO payload of version 1.", "Ignore the result.")
    if payload[8:HEADER_BYTES] != layout.digest:
        raise PayloadError(
            "The payload was made for other tensor names, shapes, top-k or chunk.", "Ignore the result."
        )


def _encode_block(group: TileGroup, positions: PositionArray, signs: SignArray) -> bytes:
    """Bits of up to BLOCK_TILES tiles, padded to a byte."""
    code, num_tiles = group.code, len(positions)
    sizes = np.count_nonzero(signs, axis=1)
    if (sizes == group.topk).all():
        codes = code.compute_codes(np.ascontiguousarray(positions.T))
    else:
        codes = np.empty((code.num_limbs, num_tiles), dtype=np.int64)
        for size in np.unique(sizes):
            chosen = np.flatnonzero(sizes == size)
            codes[:, chosen] = code.compute_codes(np.ascontiguousarray(positions[chosen, :size].T))
    raw = np.empty((num_tiles, code.num_limbs, LIMB_BYTES), dtype=np.uint8)
    for i, limb in enumerate(codes):
        raw[:, i] = limb.astype("<i8").view(np.uint8).reshape(num_tiles, 8)[:, :LIMB_BYTES]
    bits = np.empty((num_tiles, group.bits_per_tile), dtype=np.uint8)
    code_bytes = raw.reshape(num_tiles, -1)
    bits[:, : code.num_bits] = np.unpackbits(code_bytes, axis=1, count=code.num_bits, bitorder="little")
    bits[:, code.num_bits :] = signs < 0
    return np.packbits(bits.ravel(), bitorder="little").tobytes()


def _read_blocks(
    group: TileGroup, payload: bytes
) -> Iterator[tuple[slice, IntArray, IntArray, npt.NDArray[np.bool_]]]:
    """Checked blocks of a group: (tiles, codes [limbs, tiles], sizes [tiles], negative [tiles, topk])."""
    code, width = group.code, group.bits_per_tile
    body = np.frombuffer(payload, dtype=np.uint8, count=group.num_bytes, offset=group.first_byte)
    for start in range(0, group.num_tiles, BLOCK_TILES):
        stop = min(start + BLOCK_TILES, group.num_tiles)
        part = body[start * width // 8 : -(-stop * width // 8)]
        flat = np.unpackbits(part, bitorder="little")
        num_bits = (stop - start) * width
        if flat[num_bits:].any():
            raise PayloadError("The padding of a payload is not zero.", "Ignore the result.")
        bits = flat[:num_bits].reshape(stop - start, width)
        codes = _to_codes(group, bits[:, : code.num_bits])
        if not code.is_valid(codes).all():
            raise PayloadError("A payload names coefficients that do not exist.", "Ignore the result.")
        sizes = code.compute_sizes(codes)
        negative = bits[:, code.num_bits :].astype(np.bool_)
        if (negative & _get_absent(group, sizes)).any():
            raise PayloadError(
                "A payload gives signs to coefficients it does not hold.", "Ignore the result."
            )
        yield slice(start, stop), codes, sizes, negative


def _to_codes(group: TileGroup, bits: ByteArray) -> IntArray:
    """Code bits [tiles, num_bits] to limbs [num_limbs, tiles]."""
    num_limbs, num_tiles = group.code.num_limbs, len(bits)
    raw = np.zeros((num_tiles, num_limbs * LIMB_BYTES), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    raw[:, : packed.shape[1]] = packed
    wide = np.zeros((num_limbs, num_tiles, 8), dtype=np.uint8)
    for i in range(num_limbs):
        wide[i, :, :LIMB_BYTES] = raw[:, i * LIMB_BYTES : (i + 1) * LIMB_BYTES]
    return wide.view("<i8")[:, :, 0].astype(np.int64)


def _get_absent(group: TileGroup, sizes: IntArray) -> npt.NDArray[np.bool_]:
    """[tiles, topk]: which of the coefficient places of each tile are unused."""
    return np.arange(group.topk) >= sizes[:, None]


def _fill_members(group: TileGroup, codes: IntArray, sizes: IntArray, positions: PositionArray) -> None:
    """Write the positions named by the codes into ``positions`` [tiles, topk], which holds zeros."""
    if (sizes == group.topk).all():
        positions[:] = group.code.compute_members(codes, group.topk).T
        return
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        positions[chosen, :size] = group.code.compute_members(codes[:, chosen], int(size)).T
