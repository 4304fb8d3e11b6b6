"""The wire format: what one trainer says of one step, as bytes of a length known in advance.

    header  16 bytes   magic "DTRO", version u16 LE = 2, method u16 LE (1: signs of DCT coefficients,
                       2: signs of weights' ways and their magnitude), layout digest (8 bytes)
    groups             for each tile group, the bits of its tiles (see tilebits), least significant first,
                       padded with zero bits to a whole byte; with method 2, then a byte for each tile
                       (see magnitudes), 0 exactly where the tile is empty

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
from psyche_py.distro.layout import (
    HEADER_BYTES,
    METHOD_DCT_SIGNS,
    METHOD_LOCAL_STEPS,
    PayloadLayout,
    TileGroup,
)
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
_METHOD_NAMES = {METHOD_DCT_SIGNS: "signs of gradients", METHOD_LOCAL_STEPS: "local steps"}


@dataclass(frozen=True)
class GroupMessage:
    """What a message says of tiles of one group.

    positions: uint16 (uint32 for tiles over 65,536) [tiles, topk], row-major position in the tile, ascending;
               0 where absent
    signs:     int8 [tiles, topk], -1 or 1, and 0 where absent; absent ones come last
    magnitudes: uint8 [tiles], codes, 0 exactly where a tile is empty; None where only signs travel
    """

    positions: PositionArray
    signs: SignArray
    magnitudes: ByteArray | None = None


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
    parts = [MAGIC, struct.pack("<HH", VERSION, layout.method), layout.digest]
    for group, content in zip(layout.groups, message, strict=True):
        is_right = (content.magnitudes is not None) == group.has_magnitudes
        if content.positions.shape != (group.num_tiles, group.topk) or not is_right:
            raise ValueError("the message does not fit the layout")
        encode = native_codec.encode_tiles if native_codec.is_compiled(group.code) else encode_tiles
        parts.append(encode(group.code, content.positions, content.signs))
        if content.magnitudes is not None:
            parts.append(content.magnitudes.tobytes())
    return b"".join(parts)


def decode_payload(layout: PayloadLayout, payload: bytes) -> Message:
    """Read a payload; raises PayloadError unless it is exactly what :func:`encode_payload` makes."""
    check_header(layout, payload)  # before anything is allocated
    message = [_make_empty(group, group.num_tiles) for group in layout.groups]
    decode_payload_into(layout, payload, message)
    return tuple(message)


def _make_empty(group: TileGroup, num_tiles: int) -> GroupMessage:
    """Arrays for so many tiles of a group, not initialised."""
    shape = (num_tiles, group.topk)
    magnitudes = np.empty(num_tiles, dtype=np.uint8) if group.has_magnitudes else None
    positions = np.empty(shape, dtype=get_position_dtype(group))
    return GroupMessage(positions, np.empty(shape, dtype=np.int8), magnitudes)


def decode_payload_into(layout: PayloadLayout, payload: bytes, message: list[GroupMessage]) -> None:
    """Read a payload into the arrays of ``message`` (any strides); raises PayloadError as decoding does."""
    check_header(layout, payload)
    for group, content in zip(layout.groups, message, strict=True):
        body = _get_body(group, payload)
        if native_codec.is_compiled(group.code):
            native_codec.decode_tiles(group.code, body, content.positions, content.signs)
        else:
            for part in read_tiles(group.code, body, group.num_tiles, 0, group.num_tiles):
                fill_members(group.code, part, content.positions[part.tiles])
                fill_signs(group.code, part, content.signs[part.tiles])
        if content.magnitudes is not None:
            content.magnitudes[:] = _read_magnitudes(group, payload, content.signs[:, 0] != 0)


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
    result = _make_empty(group, stop - start)
    for part in read_tiles(group.code, _get_body(group, payload), group.num_tiles, start, stop):
        own = (part.tiles.stop - part.tiles.start, group.topk)
        members, values = np.empty(own, dtype=result.positions.dtype), np.empty(own, dtype=np.int8)
        fill_members(group.code, part, members)
        fill_signs(group.code, part, values)
        first, last = max(start, part.tiles.start), min(stop, part.tiles.stop)
        inside = slice(first - part.tiles.start, last - part.tiles.start)
        result.positions[first - start : last - start] = members[inside]
        result.signs[first - start : last - start] = values[inside]
    if result.magnitudes is not None:
        result.magnitudes[:] = _read_magnitudes(group, payload, result.signs[:, 0] != 0, start)
    return result


def check_payload(layout: PayloadLayout, payload: bytes) -> None:
    """Raise PayloadError when the bytes are not a payload; several times cheaper than decoding."""
    check_header(layout, payload)
    for group in layout.groups:
        for part in read_tiles(group.code, _get_body(group, payload), group.num_tiles, 0, group.num_tiles):
            if group.has_magnitudes:
                _read_magnitudes(group, payload, part.sizes != 0, part.tiles.start)


def check_header(layout: PayloadLayout, payload: bytes) -> None:
    """Raise PayloadError unless length and header are those of a payload of this layout."""
    if len(payload) != layout.num_bytes:
        raise PayloadError(
            f"A payload of this model has {layout.num_bytes} bytes, not {len(payload)}.",
            "The sender trains another model or the transfer was cut; ignore the result.",
        )
    if payload[:8] != MAGIC + struct.pack("<HH", VERSION, layout.method):
        wanted = f"version {VERSION}, method {layout.method} ({_METHOD_NAMES[layout.method]})"
        raise PayloadError(
            f"These bytes are not a DisTrO payload of {wanted}.",
            "Ignore the result; its sender may run another version of psyche-py.",
        )
    if payload[8:HEADER_BYTES] != layout.digest:
        raise PayloadError(
            "The payload was made for other tensor names, shapes, top-k, chunk or local steps.",
            "Ignore the result.",
        )


def _get_body(group: TileGroup, payload: bytes) -> ByteArray:
    return np.frombuffer(payload, dtype=np.uint8, count=group.num_code_bytes, offset=group.first_byte)


def _read_magnitudes(
    group: TileGroup, payload: bytes, speaks: npt.NDArray[np.bool_], start: int = 0
) -> ByteArray:
    """Codes of the tiles from ``start`` on, one for each of ``speaks``: which of them hold a coefficient.

    Raises PayloadError when a tile has the one without the other.
    """
    first = group.first_byte + group.num_code_bytes + start
    codes = np.frombuffer(payload, dtype=np.uint8, count=len(speaks), offset=first)
    if ((codes != 0) != speaks).any():
        raise PayloadError("A payload's magnitudes do not fit its tiles.", "Ignore the result.")
    return codes
