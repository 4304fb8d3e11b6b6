"""Signed frames: what travels between peers to carry an announcement body.

    frame   pubkey 32 || signature 64 || body        at most 4 KiB
    stream  (length u32 little-endian || frame)*

The signature is ed25519 over a domain string and the body, so that it can never be taken for a Solana
transaction or for a message of another protocol. No I/O here.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from psyche_py.p2p.errors import FrameError, MessageError
from psyche_py.p2p.identity import KEY_BYTES, SIGNATURE_BYTES, SigningKey, verify
from psyche_py.p2p.port import MAX_BODY_BYTES

MAX_FRAME_BYTES = 4_096
HEAD_BYTES = KEY_BYTES + SIGNATURE_BYTES
DOMAIN = b"psyche-py/announcement/1"
_LENGTH = struct.Struct("<I")


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

    def check_signature(self) -> None:
        """Raises FrameError."""
        verify(self.signer, self.raw[KEY_BYTES:HEAD_BYTES], DOMAIN + self.body)


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


def encode_length_prefixed(frames: list[bytes]) -> bytes:
    """One write for many frames."""
    return b"".join(part for frame in frames for part in (_LENGTH.pack(len(frame)), frame))


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Frames completed by ``data``. Raises FrameError when one announces more than 4 KiB.

        After an error the stream has lost its framing and must be given up. At most one frame and one
        read's worth of bytes is ever buffered.
        """
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        position = 0
        while len(buffer) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, position)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"A frame announces {length} bytes, the limit is {MAX_FRAME_BYTES}.")
            end = position + _LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(bytes(buffer[position + _LENGTH.size : end]))
            position = end
        del buffer[:position]
        return frames
