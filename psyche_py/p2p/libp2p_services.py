"""What peers ask of each other over streams: pings, blobs, requests. Integers are little-endian.

    /psyche/ping/1      -> 8 bytes                          <- the same 8 bytes; again and again
    /psyche/blob/2      -> digest 32, offset u64, urgent u8 <- status u8, size u64, bytes from offset; or
                                                               REFERRED, number of keys u64, keys 32 each
                        -> 1 byte: everything arrived
    /psyche/request/1   -> kind length u8, kind, max response u32, body length u32, body
                                                            <- status u8, length u32, response

Every wait has a deadline; lengths are checked before anything is read. Works on any `ByteStream`: a
`libp2p_stream.MeshStream`, or for blobs a `bulk.BulkStream`, which carries one question after another.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Protocol

import trio

from psyche_py.p2p.errors import PeerUnreachable, RequestFailed, StreamBroken
from psyche_py.p2p.identity import KEY_BYTES
from psyche_py.p2p.node import MAX_KIND_BYTES, ReplyStatus
from psyche_py.p2p.port import MAX_REQUEST_BYTES, TrafficStats
from psyche_py.p2p.transfer import BlobQuestion, HolderAtFault, Referred
from psyche_py.p2p.uploads import ARRIVAL_SECONDS, MAX_REFERRALS, UploadDesk

PING_PROTOCOL = "/psyche/ping/1"
BLOB_PROTOCOL = "/psyche/blob/2"
REQUEST_PROTOCOL = "/psyche/request/1"

PING_BYTES = 8
PING_SECONDS = 15.0
PING_DEADLINE_SECONDS = 10.0
IO_SECONDS = 15.0
"""Longest silence within a transfer. Longer than the uplink of a peer is busy with somebody else's chunk."""
SLOT_SECONDS = 10.0
MAX_UPLOADS = 8
WRITE_BYTES = 1 << 18
READ_BYTES = 1 << 16
"""Chunk sizes that py-libp2p moves fastest (reference/p2p.md 2.1)."""

_BLOB_QUESTION = struct.Struct("<32sQ?")
_BLOB_ANSWER = struct.Struct("<BQ")
_LENGTHS = struct.Struct("<II")
_REPLY = struct.Struct("<BI")

Answer = Callable[[bytes, str, bytes], Awaitable[tuple[ReplyStatus, bytes]]]


class ByteStream(Protocol):
    """A stream to the peer ``key``; see `libp2p_stream.MeshStream`."""

    key: bytes

    async def read(self, max_bytes: int, seconds: float) -> bytes | memoryview: ...
    async def read_exactly(self, num_bytes: int, seconds: float) -> bytes: ...
    async def write(self, data: bytes | memoryview, seconds: float) -> None: ...
    async def close(self) -> None: ...
    async def reset(self) -> None: ...


class BlobStatus(IntEnum):
    """First byte of an answer on the blob protocol."""

    OK = 0
    NOT_FOUND = 1
    BUSY = 2
    BAD_OFFSET = 3
    REFERRED = 4


async def serve_pings(stream: ByteStream) -> None:
    """Send back what comes, until the peer stops."""
    while data := await stream.read(PING_BYTES, 4 * PING_SECONDS):
        if len(data) != PING_BYTES:
            raise StreamBroken("a ping has 8 bytes", "ping_malformed")
        await stream.write(data, PING_DEADLINE_SECONDS)


async def ping(stream: ByteStream, number: int) -> None:
    """One round trip. Raises StreamBroken."""
    question = number.to_bytes(PING_BYTES, "little")
    await stream.write(question, PING_DEADLINE_SECONDS)
    if await stream.read_exactly(PING_BYTES, PING_DEADLINE_SECONDS) != question:
        raise StreamBroken("the answer to a ping is not the question")


class BlobService:
    """Gives our blobs to peers, `MAX_UPLOADS` at a time, so that each of them gets some speed."""

    def __init__(self, desk: UploadDesk, stats: TrafficStats) -> None:
        self._desk = desk
        self._stats = stats
        self._uploads = trio.CapacityLimiter(MAX_UPLOADS)

    async def serve(self, stream: ByteStream) -> None:
        """Answer one question."""
        question = await stream.read_exactly(_BLOB_QUESTION.size, IO_SECONDS)
        digest, offset, is_urgent = _BLOB_QUESTION.unpack(question)
        if question[-1] > 1:
            raise StreamBroken("a question for a blob is not one", "blob_question_malformed")
        lent = self._desk.read_source(digest, stream.key)
        if lent is not None and offset == 0:
            await self._send_in_turn(stream, lent, 0)
            return
        data = await self._desk.find(digest)
        if data is None:
            await _refuse(stream, BlobStatus.NOT_FOUND)
            return
        if offset > len(data):
            await _refuse(stream, BlobStatus.BAD_OFFSET)
            return
        if referrals := self._desk.admit(digest, stream.key, is_urgent=is_urgent):
            head = _BLOB_ANSWER.pack(BlobStatus.REFERRED, len(referrals))
            await stream.write(head + b"".join(referrals), IO_SECONDS)
            return
        try:
            await self._send_in_turn(stream, data, offset)
        except BaseException:
            self._desk.revoke(digest, stream.key)
            raise

    async def _send_in_turn(self, stream: ByteStream, data: bytes | memoryview, offset: int) -> None:
        slot = object()
        with trio.move_on_after(SLOT_SECONDS) as deadline:
            await self._uploads.acquire_on_behalf_of(slot)
        if deadline.cancelled_caught:
            await _refuse(stream, BlobStatus.BUSY)
            return
        try:
            await self._send(stream, data, offset)
        finally:
            self._uploads.release_on_behalf_of(slot)

    async def _send(self, stream: ByteStream, data: bytes | memoryview, offset: int) -> None:
        await stream.write(_BLOB_ANSWER.pack(BlobStatus.OK, len(data)), IO_SECONDS)
        view = memoryview(data)
        for start in range(offset, len(data), WRITE_BYTES):
            chunk = view[start : start + WRITE_BYTES]
            await stream.write(chunk, IO_SECONDS)
            self._stats.sent["blob"] += len(chunk)
        # Without this the connection might be closed while the last bytes wait, unread, at the other end.
        await stream.read_exactly(1, IO_SECONDS)


async def _refuse(stream: ByteStream, status: BlobStatus) -> None:
    await stream.write(_BLOB_ANSWER.pack(status, 0), IO_SECONDS)


async def download_blob(stream: ByteStream, question: BlobQuestion, stats: TrafficStats) -> None:
    """Append the bytes after ``len(question.buffer)`` to it.

    Raises PeerUnreachable (it cannot serve now) or Referred (it names others), after which the stream is
    still good; HolderAtFault (it never can), StreamBroken.
    """
    buffer, size = question.buffer, question.size
    head = _BLOB_QUESTION.pack(question.digest, len(buffer), question.is_urgent)
    await stream.write(head, IO_SECONDS)
    head = await stream.read_exactly(_BLOB_ANSWER.size, ARRIVAL_SECONDS + SLOT_SECONDS + IO_SECONDS)
    status, total = _BLOB_ANSWER.unpack(head)
    if status in (BlobStatus.NOT_FOUND, BlobStatus.BUSY):
        reason = "it does not have the blob" if status == BlobStatus.NOT_FOUND else "it is busy"
        raise PeerUnreachable(stream.key, reason)
    if status == BlobStatus.REFERRED and 1 <= total <= MAX_REFERRALS:
        keys = await stream.read_exactly(total * KEY_BYTES, IO_SECONDS)
        starts = range(0, len(keys), KEY_BYTES)
        raise Referred(stream.key, [keys[start : start + KEY_BYTES] for start in starts])
    if status != BlobStatus.OK or total != size:
        raise HolderAtFault(f"it answered status {status} and {total} bytes, not {size}")
    question.on_start()
    while len(buffer) < size:
        data = await stream.read(min(READ_BYTES, size - len(buffer)), IO_SECONDS)
        if not data:
            raise StreamBroken(f"it ended after {len(buffer)} of {size} bytes")
        stats.received["blob"] += len(data)
        buffer += data
    await stream.write(b"\1", IO_SECONDS)


async def serve_request(stream: ByteStream, answer: Answer) -> None:
    """Read one request, let ``answer`` handle it, send what it says."""
    (kind_length,) = await stream.read_exactly(1, IO_SECONDS)
    head = await stream.read_exactly(kind_length + _LENGTHS.size, IO_SECONDS)
    max_response, body_length = _LENGTHS.unpack_from(head, kind_length)
    if not 1 <= kind_length <= MAX_KIND_BYTES or body_length > MAX_REQUEST_BYTES:
        await _reply(stream, ReplyStatus.MALFORMED, b"")
        raise StreamBroken("a request is not one", "request_malformed")
    body = await stream.read_exactly(body_length, IO_SECONDS)
    status, response = await answer(stream.key, head[:kind_length].decode("ascii", "replace"), body)
    if len(response) > max_response:
        status, response = ReplyStatus.TOO_LARGE, b""
    await _reply(stream, status, response)


async def _reply(stream: ByteStream, status: ReplyStatus, response: bytes) -> None:
    await _write_all(stream, _REPLY.pack(status, len(response)) + response)


async def send_request(
    stream: ByteStream, kind: str, body: bytes, max_response_bytes: int
) -> tuple[ReplyStatus, bytes]:
    """Ask and wait for the reply; the caller sets the deadline of the answer.

    Raises StreamBroken, or RequestFailed when the reply makes no sense or is too long.
    """
    name = kind.encode("ascii")
    head = bytes([len(name)]) + name + _LENGTHS.pack(min(max_response_bytes, 0xFFFF_FFFF), len(body))
    await _write_all(stream, head + body)
    code, length = _REPLY.unpack(await stream.read_exactly(_REPLY.size, float("inf")))
    try:
        status = ReplyStatus(code)
    except ValueError:
        raise RequestFailed(stream.key, kind, f"the peer replied with the unknown status {code}") from None
    if length > max_response_bytes:
        raise RequestFailed(stream.key, kind, f"the response is longer than {max_response_bytes} bytes")
    response = bytearray()
    while len(response) < length:
        data = await stream.read(min(READ_BYTES, length - len(response)), IO_SECONDS)
        if not data:
            raise StreamBroken(f"it ended after {len(response)} of {length} bytes")
        response += data
    await stream.close()
    return status, bytes(response)


async def _write_all(stream: ByteStream, data: bytes) -> None:
    for start in range(0, len(data), WRITE_BYTES):
        await stream.write(data[start : start + WRITE_BYTES], IO_SECONDS)
