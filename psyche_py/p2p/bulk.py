"""A stream for blobs beside the libp2p connection: TCP with records of AES-256-GCM, a few times faster.

    hello    BULK_HELLO 14, token 16        by the side that dialed; says which ticket this connection is for
    record   length u32 little-endian, ciphertext of at most 256 KiB and its tag 16; nonce: a counter from 0

A ticket (token and a 32-byte secret, good for one connection) travels over a libp2p stream, so only the two
peers whose identities Noise has proved know the secret, and it lasts no longer than the connection. Each
direction has its own key, made from the secret. Whoever sees or redirects the TCP connection learns nothing
and can only break it. The stream looks like `libp2p_stream.MeshStream`.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from psyche_py.p2p.errors import StreamBroken

BULK_HELLO = b"\0psyche-bulk/1"
"""Begins with a byte that no libp2p connection begins with, so both can come in on one port."""
TOKEN_BYTES = 16
SECRET_BYTES = 32
RECORD_BYTES = 1 << 18
TAG_BYTES = 16
_LENGTH = struct.Struct("<I")
_DIALER, _LISTENER = b"psyche-bulk-dial", b"psyche-bulk-take"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to open one bulk stream: ``token`` (16 B) names it, ``secret`` (32 B) keys it."""

    token: bytes
    secret: bytes

    @classmethod
    def make(cls) -> Ticket:
        return cls(secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(SECRET_BYTES))


class BulkStream:
    """One encrypted TCP connection to the peer ``key``. Useless after an error or a cancelled call."""

    def __init__(self, socket: trio.socket.SocketType, key: bytes, secret: bytes, *, is_dialer: bool) -> None:
        self.key = key
        self._socket = socket
        socket.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        own, other = (_DIALER, _LISTENER) if is_dialer else (_LISTENER, _DIALER)
        self._seal = AESGCM(_derive_key(secret, own))
        self._unseal = AESGCM(_derive_key(secret, other))
        self.ended = trio.Event()
        """Set by `cut`."""
        self._num_sent = 0
        self._num_received = 0
        self._head = memoryview(bytearray(_LENGTH.size))
        self._out = self._in = self._plain = self._unread = memoryview(b"")

    async def read(self, max_bytes: int, seconds: float) -> bytes | memoryview:
        """Some bytes, or none at the end; what is returned is good until the next read. Raises StreamBroken.

        ``seconds`` is the longest silence of the peer, not the time of the whole read.
        """
        if not self._unread:
            await self._receive_record(seconds)
        part = self._unread[:max_bytes]
        self._unread = self._unread[max_bytes:]
        return part

    async def read_exactly(self, num_bytes: int, seconds: float) -> bytes:
        """Exactly so many bytes. Raises StreamBroken."""
        data = bytearray()
        while len(data) < num_bytes:
            part = await self.read(num_bytes - len(data), seconds)
            if not part:
                raise StreamBroken(f"it ended after {len(data)} of {num_bytes} bytes")
            data += part
        return bytes(data)

    async def wait_for_data(self, seconds: float) -> bool:
        """Wait until something can be read; False when the peer has ended the stream. Raises StreamBroken."""
        if not self._unread:
            await self._receive_record(seconds)
        return bool(self._unread)

    async def write(self, data: bytes | memoryview, seconds: float) -> None:
        """Send all bytes. Raises StreamBroken, also when the peer takes nothing for so long."""
        view = memoryview(data)
        for start in range(0, len(view), RECORD_BYTES):
            await self._send_record(view[start : start + RECORD_BYTES], seconds)

    async def close(self) -> None:
        """Say that we write no more. Raises StreamBroken."""
        try:
            self._socket.shutdown(trio.socket.SHUT_WR)
        except OSError as error:
            raise StreamBroken("close") from error

    def drop_buffers(self) -> None:
        """Between two blobs: a stream waits for the next one far longer than it works, and there are two for
        every peer. What has not been read stays."""
        self._out = self._in = memoryview(b"")
        if not self._unread:
            self._plain = self._unread = memoryview(b"")  # a part of a buffer keeps all of it

    @property
    def num_buffered_bytes(self) -> int:
        """Memory that the stream holds."""
        return len(self._out) + len(self._in) + len(self._plain)

    async def reset(self) -> None:
        """Like `cut`, for those who expect a MeshStream."""
        self.cut()

    def cut(self) -> None:
        """Close the socket now."""
        self._socket.close()
        self.ended.set()

    @property
    def is_idle(self) -> bool:
        """Alive and with nothing to read: an end, or an answer to nothing, makes it useless."""
        return not self._unread and self._socket.fileno() >= 0 and not self._socket.is_readable()

    async def _receive_record(self, seconds: float) -> None:
        if not await self._fill(self._head, seconds, may_end=True):
            return
        (length,) = _LENGTH.unpack(self._head)
        if not TAG_BYTES < length <= RECORD_BYTES + TAG_BYTES:
            raise StreamBroken(f"a record announces {length} bytes", "record_garbage")
        self._in, self._plain = _fit(self._in, length), _fit(self._plain, length)
        await self._fill(self._in[:length], seconds)
        plain = self._plain[: length - TAG_BYTES]
        nonce = self._num_received.to_bytes(12, "little")
        self._num_received += 1
        try:
            self._unseal.decrypt_into(nonce, self._in[:length], None, plain)
        except InvalidTag:
            raise StreamBroken("a record is not from the peer", "record_garbage") from None
        self._unread = plain

    async def _fill(self, view: memoryview, seconds: float, *, may_end: bool = False) -> bool:
        """Fill the view from the socket; False at the end, where that is allowed."""
        filled = 0
        while filled < len(view):
            try:
                with trio.fail_after(seconds):
                    count = await self._socket.recv_into(view[filled:])
            except trio.TooSlowError:
                raise StreamBroken(f"nothing arrived for {seconds:g} s") from None
            except (OSError, trio.ClosedResourceError) as error:
                raise StreamBroken(f"read: {type(error).__name__}") from error
            if not count:
                if may_end and not filled:
                    return False
                raise StreamBroken("it ended in the middle of a record")
            filled += count
        return True

    async def _send_record(self, plain: memoryview, seconds: float) -> None:
        length = len(plain) + TAG_BYTES
        self._out = _fit(self._out, _LENGTH.size + length)
        record = self._out[: _LENGTH.size + length]
        _LENGTH.pack_into(record, 0, length)
        nonce = self._num_sent.to_bytes(12, "little")
        self._num_sent += 1
        self._seal.encrypt_into(nonce, plain, None, record[_LENGTH.size :])
        sent = 0
        while sent < len(record):
            try:
                with trio.fail_after(seconds):
                    sent += await self._socket.send(record[sent:])
            except trio.TooSlowError:
                raise StreamBroken(f"the peer took nothing for {seconds:g} s") from None
            except (OSError, trio.ClosedResourceError) as error:
                raise StreamBroken(f"write: {type(error).__name__}") from error


def _fit(buffer: memoryview, num_bytes: int) -> memoryview:
    """``buffer``, or a new one in its place when it has fewer than ``num_bytes``."""
    return buffer if len(buffer) >= num_bytes else memoryview(bytearray(num_bytes))


def _derive_key(secret: bytes, direction: bytes) -> bytes:
    return hashlib.blake2b(direction, key=secret, digest_size=32).digest()
