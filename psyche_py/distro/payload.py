"""The wire format: what one trainer says of one step, as bytes of a length known in advance.

    header  16 bytes   magic "DTRO", version u16 LE = 2, method u16 LE (1: signs of DCT coefficients),
                       layout digest (8 bytes)
    groups             for each tile group, the bits of its tiles (see tilebits), least significant first,
                       padded with zero bits to a whole byte

Exactly one byte string encodes a message, and every accepted byte string is one message: codes that name
nothing, signs of absent coefficients and padding that is not zero are rejected. docs/distro.md has examples.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psyche_py.distro import native_codec
from psyche_py.distro.combinatorics import IntArray
from psyche_py.distro.errors import PayloadError
from psyche_py.distro.layout import HEADER_BYTES, PayloadLayout, TileGroup
from psyche_py.distro.tilebits import (
    ByteArray,
    PositionArray,
    SignArray,
    encode_tiles,
    fill_members,
    fill_signs,
    read_tiles,
)

MAGIC = b"DTRO"
VERSION = 2
METHOD_DCT_SIGNS = 1


@dataclass(frozen=True)
class GroupMessage:
    """What a message says of tiles of one group.

    positions: uint16 (uint32 for tiles over 65,536) [tiles, topk], row-major position in the tile, ascending;
               0 where absent
    signs:     int8 [tiles, topk], -1 or 1, and 0 where absent; absent ones come last
    """

    positions: PositionArray
    signs: SignArray


Message = tuple[GroupMessage, ...]


def get_position_dtype(group: TileGroup) -> npt.DTypeLike:
    """The smallest type that holds the positions of a tile."""
    return np.uint16 if group.tile_size <= 1 << 16 else np.uint32


def make_group_message(
    positions: IntArray, values: npt.NDArray[np.float32], dtype: npt.DTypeLike = np.uint16
) -> GroupMessage:
    """Canonical form of selected coefficients [tiles, topk] in any order; zero values are absent ones."""
    keys = positions << 1 | (values < 0)
    absent_key = np.iinfo(keys.dtype).max
    keys[values == 0] = absent_key
    keys.sort(axis=1)
    signs = (1 - ((keys & 1) << 1)).astype(np.int8)
    absent = keys == absent_key
    if absent.any():
        keys[absent] = 0
        signs[absent] = 0
    return GroupMessage((keys >> 1).astype(dtype), signs)


def encode_payload(layout: PayloadLayout, message: Message) -> bytes:
    """The bytes of a message in canonical form (see :class:`GroupMessage`)."""
    parts = [MAGIC, struct.pack("<HH", VERSION, METHOD_DCT_SIGNS), layout.digest]
    for group, content in zip(layout.groups, message, strict=True):
        if content.positions.shape != (group.num_tiles, group.topk):
            raise ValueError("the message does not fit the layout")
        encode = native_codec.encode_tiles if native_codec.is_compiled(group.code) else encode_tiles
        parts.append(encode(group.code, content.positions, content.signs))
    return b"".join(parts)


def decode_payload(layout: PayloadLayout, payload: bytes) -> Message:
    """Read a payload; raises PayloadError unless it is exactly what :func:`encode_payload` makes."""
    check_header(layout, payload)  # before anything is allocated
    message = []
    for group in layout.groups:
        positions = np.empty((group.num_tiles, group.topk), dtype=get_position_dtype(group))
        message.append(GroupMessage(positions, np.empty((group.num_tiles, group.topk), dtype=np.int8)))
    decode_payload_into(layout, payload, message)
    return tuple(message)


def decode_payload_into(layout: PayloadLayout, payload: bytes, message: list[GroupMessage]) -> None:
    """Read a payload into the arrays of ``message`` (any strides); raises PayloadError as decoding does."""
    check_header(layout, payload)
    for group, content in zip(layout.groups, message, strict=True):
        body = _get_body(group, payload)
        if native_codec.is_compiled(group.code):
            native_codec.decode_tiles(group.code, body, content.positions, content.signs)
            continue
        for part in read_tiles(group.code, body, group.num_tiles, 0, group.num_tiles):
            fill_members(group.code, part, content.positions[part.tiles])
            fill_signs(group.code, part, content.signs[part.tiles])


def decode_tensor(layout: PayloadLayout, payload: bytes, name: str) -> GroupMessage:
    """What a payload says of the tiles of one tensor (of the pool, if it lies there), reading only these.

    The rest of the payload is not looked at. Raises PayloadError, and KeyError for an unknown name.
    """
    i, slot = layout.get_place(name)
    return decode_tiles(layout, payload, i, slot.first_tile, slot.first_tile + slot.num_tiles)


def decode_tiles(
    layout: PayloadLayout, payload: bytes, group_index: int, start: int, stop: int
) -> GroupMessage:
    """What a payload says of the tiles ``start .. stop`` of a group; time and memory follow their number."""
    check_header(layout, payload)
    group = layout.groups[group_index]
    if not 0 <= start <= stop <= group.num_tiles:
        raise IndexError(f"tiles {start}..{stop} of {group.num_tiles}")
    positions = np.empty((stop - start, group.topk), dtype=get_position_dtype(group))
    signs = np.empty((stop - start, group.topk), dtype=np.int8)
    for part in read_tiles(group.code, _get_body(group, payload), group.num_tiles, start, stop):
        own = (part.tiles.stop - part.tiles.start, group.topk)
        members, values = np.empty(own, dtype=positions.dtype), np.empty(own, dtype=np.int8)
        fill_members(group.code, part, members)
        fill_signs(group.code, part, values)
        first, last = max(start, part.tiles.start), min(stop, part.tiles.stop)
        inside = slice(first - part.tiles.start, last - part.tiles.start)
        positions[first - start : last - start] = members[inside]
        signs[first - start : last - start] = values[inside]
    return GroupMessage(positions, signs)


def check_payload(layout: PayloadLayout, payload: bytes) -> None:
    """Raise PayloadError when the bytes are not a payload; several times cheaper than decoding."""
    check_header(layout, payload)
    for group in layout.groups:
        for _ in read_tiles(group.code, _get_body(group, payload), group.num_tiles, 0, group.num_tiles):
            pass


def check_header(layout: PayloadLayout, payload: bytes) -> None:
    """Raise PayloadError unless length and header are those of a payload of this layout."""
    if len(payload) != layout.num_bytes:
        raise PayloadError(
            f"A payload of this model has {layout.num_bytes} bytes, not {len(payload)}.",
            "The sender trains another model or the transfer was cut; ignore the result.",
        )
    if payload[:8] != MAGIC + struct.pack("<HH", VERSION, METHOD_DCT_SIGNS):
        raise PayloadError(
            f"These bytes are not a DisTrO payload of version {VERSION}, method {METHOD_DCT_SIGNS}.",
            "Ignore the result; its sender may run another version of psyche-py.",
        )
    if payload[8:HEADER_BYTES] != layout.digest:
        raise PayloadError(
            "The payload was made for other tensor names, shapes, top-k or chunk.", "Ignore the result."
        )


def _get_body(group: TileGroup, payload: bytes) -> ByteArray:
    return np.frombuffer(payload, dtype=np.uint8, count=group.num_bytes, offset=group.first_byte)
