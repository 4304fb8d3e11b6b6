"""Signed frames: what travels between peers to carry an announcement body; and what a peer has of them.

    frame   pubkey 32 || signature 64 || body                                at most 4 KiB
    have    window_ms u32, grace_ms u32, (first 8 bytes of a frame's id)*     at most 4,096 of them
    links   (first 8 bytes of a key)*                                        at most 256 of them
    stream  (length u32 || kind u8 || frame, have or links)*                 little-endian

"have" names what its sender has learned within its last ``window_ms``; who has more sends it, but nothing
that it learned within its own last ``grace_ms``, since that is probably on its way. "links" names the peers
that its sender is connected to, see second.py.

The signature is ed25519 over a domain string and the body, so that it can never be taken for a Solana
transaction or for a message of another protocol. No I/O here.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

from psyche_py.p2p.errors import FrameError, MessageError
from psyche_py.p2p.identity import KEY_BYTES, SIGNATURE_BYTES, SigningKey, verify
from psyche_py.p2p.port import MAX_BODY_BYTES

MAX_FRAME_BYTES = 4_096
HEAD_BYTES = KEY_BYTES + SIGNATURE_BYTES
DOMAIN = b"psyche-py/announcement/1"
SHORT_ID_BYTES = 8
MAX_HAVE_IDS = 4_096
_LENGTH = struct.Struct("<I")
_WINDOW = struct.Struct("<II")
MAX_ITEM_BYTES = 1 + _WINDOW.size + MAX_HAVE_IDS * SHORT_ID_BYTES


class ItemKind(IntEnum):
    """What an item of the announcement stream is."""

    FRAME = 0
    HAVE = 1
    LINKS = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame cut into its parts; the signature has not necessarily been verified.

    ``id`` covers signer and body, not the signature: the same words of the same signer are one announcement.
    """

    id: bytes
    raw: bytes
    signer: bytes

    @property
    def body(self) -> bytes:
        return self.raw[HEAD_BYTES:]

    @property
    def signature(self) -> bytes:
        return self.raw[KEY_BYTES:HEAD_BYTES]

    def check_signature(self) -> None:
        """Raises FrameError."""
        verify(self.signer, self.signature, DOMAIN + self.body)


def make_frame(key: SigningKey, body: bytes) -> Frame:
    """Sign a body. Raises MessageError when it is too long."""
    if len(body) > MAX_BODY_BYTES:
        raise MessageError(f"An announcement has at most {MAX_BODY_BYTES} bytes, this has {len(body)}.")
    return parse_frame(key.public_key + key.sign(DOMAIN + body) + body)


def parse_frame(raw: bytes) -> Frame:
    """Cut a frame into its parts. Raises FrameError on a wrong length."""
    if not HEAD_BYTES <= len(raw) <= MAX_FRAME_BYTES:
        raise FrameError(f"A frame of {len(raw)} bytes is not between {HEAD_BYTES} and {MAX_FRAME_BYTES}.")
    signer = raw[:KEY_BYTES]
    digest = hashlib.blake2b(raw[HEAD_BYTES:], digest_size=16, key=signer)
    return Frame(digest.digest(), raw, signer)


@dataclass(frozen=True, slots=True)
class Have:
    """What a peer says it has: ids of the frames it learned within its last ``window_seconds``.

    Frames that the reader learned within its last ``grace_seconds`` are not asked for.
    """

    window_seconds: float
    grace_seconds: float
    short_ids: frozenset[bytes]

    def encode(self) -> bytes:
        """Raises struct.error when a time does not fit into 32 bits of milliseconds."""
        head = _WINDOW.pack(int(1e3 * self.window_seconds), int(1e3 * self.grace_seconds))
        return head + b"".join(sorted(self.short_ids))


def parse_have(data: bytes) -> Have:
    """Read what a peer has. Raises FrameError on a wrong length."""
    num_bytes = len(data) - _WINDOW.size
    if num_bytes < 0 or num_bytes % SHORT_ID_BYTES or num_bytes > MAX_HAVE_IDS * SHORT_ID_BYTES:
        raise FrameError(f"A list of what a peer has cannot have {len(data)} bytes.")
    window_ms, grace_ms = _WINDOW.unpack_from(data)
    starts = range(_WINDOW.size, len(data), SHORT_ID_BYTES)
    ids = frozenset(data[start : start + SHORT_ID_BYTES] for start in starts)
    return Have(window_ms / 1e3, grace_ms / 1e3, ids)


def encode_item(kind: ItemKind, data: bytes) -> bytes:
    """One item of the stream."""
    return _LENGTH.pack(1 + len(data)) + bytes([kind]) + data


def encode_length_prefixed(frames: list[bytes]) -> bytes:
    """One write for many frames."""
    return b"".join(encode_item(ItemKind.FRAME, frame) for frame in frames)


class FrameReader:
    """Cuts a byte stream into items."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_inside_item(self) -> bool:
        """Whether the rest of an item is still to come."""
        return bool(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[tuple[int, bytes]]:
        """Kind and bytes of the items completed by ``data``. Raises FrameError when one is too long or empty.

        After an error the stream has lost its framing and must be given up. At most one item and one
        read's worth of bytes is ever buffered.
        """
        buffer = self._buffer
        buffer += data
        items: list[tuple[int, bytes]] = []
        position = 0
        while len(buffer) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, position)
            if not 1 <= length <= MAX_ITEM_BYTES:
                raise FrameError(f"An item announces {length} bytes, the limit is {MAX_ITEM_BYTES}.")
            start = position + _LENGTH.size
            if len(buffer) < start + length:
                break
            items.append((buffer[start], bytes(buffer[start + 1 : start + length])))
            position = start + length
        del buffer[:position]
        return items
