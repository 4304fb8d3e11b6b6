"""What py-libp2p 0.8.1 does wrong and where that is mended. docs/mesh.md has the measurements.

`patch_libp2p` changes settings of the library once per process, `guard_muxer` mends one connection.
Both touch private names; the version of libp2p is capped in pyproject.toml for that reason.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Awaitable, Callable, Container
from functools import partial
from typing import Any

import libp2p.network.connection.swarm_connection as swarm_connection
import libp2p.stream_muxer.yamux.yamux as yamux
import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from noise.exceptions import NoiseInvalidMessage

WRITE_SECONDS = 15.0
"""A peer whose TCP window takes no 64 KiB record within this time is gone."""
MAX_UNREAD_BYTES = 128 << 20
"""Most that one peer may make us buffer, over all its streams. The library does not enforce its windows."""
MAX_WINDOW_BYTES = 8 << 20
"""Enough for 800 Mbit/s at 80 ms."""
GROWTH_SECONDS = 1.0
"""A stream whose peer uses up half its window faster than this gets a window twice as large."""
READ_AHEAD_BYTES = 1 << 16
READS_PER_TURN = 32
"""One record can bring thousands of empty frames: so many headers and bodies, then everybody else may run."""
_HEADER = struct.Struct(yamux.YAMUX_HEADER_FORMAT)


def patch_libp2p() -> None:
    """Process-wide settings of the library; idempotent."""
    # One frame is one Noise record; credit is returned in batches, not at every read. Doubles the speed.
    yamux.MAX_MESSAGE_SIZE = 65_519
    yamux.MAX_WINDOW_SIZE = MAX_WINDOW_BYTES
    yamux.YamuxStream._auto_tune_and_send_window_update = _give_credit
    # It would ask the kernel separately for the length of a record and for the record.
    TrioTCPStream.read = _read_ahead
    # It logs through the root logger, which installs a handler on stderr when there is none.
    swarm_connection.logging = logging.getLogger("libp2p.network.connection")
    # What matters about a connection is said by us; its own warnings are about peers coming and going.
    if "LIBP2P_DEBUG" not in os.environ:
        logging.getLogger("libp2p").setLevel(logging.CRITICAL + 1)


def guard_muxer(muxed: Any, on_offence: Callable[[str], None]) -> None:
    """Mend a Yamux connection before it is started; ``on_offence(kind)`` hears of garbage in it."""

    def cut_off() -> None:
        on_offence("unread_overflow")
        get_socket(muxed).close()

    muxed._write_frame = partial(_write_frame, muxed)
    muxed._read_data_body = partial(_read_body, muxed.secured_conn, muxed._read_data_body)
    muxed._write_lock, muxed.streams_lock = QuickLock(), QuickLock()
    muxed.streams = _Streams()
    tcp = get_stream(muxed)
    if isinstance(tcp, TrioTCPStream):
        tcp.read_lock, tcp.write_lock = QuickLock(), QuickLock()
    muxed.stream_buffers = _Buffers(cut_off)
    muxed.stream_events = _Events(muxed.streams)
    muxed.secured_conn.read = _WatchedReader(muxed.secured_conn.read, on_offence).read


def get_socket(muxed: Any) -> trio.socket.SocketType:
    """The TCP socket below a Yamux connection."""
    socket: trio.socket.SocketType = get_stream(muxed).stream.socket
    return socket


def get_stream(muxed: Any) -> Any:
    """What is below a Yamux connection: the library's TCP stream, or one of libp2p_stream.py."""
    return muxed.secured_conn.conn.read_writer.read_write_closer.stream


async def _give_credit(stream: Any, *, bytes_read: int = 0) -> None:
    """Yamux's flow control: half a window at a time. The library's own gives credit at almost every read."""
    stream._pending_recv_release += bytes_read
    window: int = stream.target_recv_window
    credit: int = stream._pending_recv_release
    if credit < window // 2:
        return
    now = trio.current_time()
    if now - stream.epoch_start < GROWTH_SECONDS:
        stream.target_recv_window = min(2 * window, MAX_WINDOW_BYTES)
    stream.epoch_start = now
    credit += stream.target_recv_window - window
    stream._pending_recv_release = 0
    stream.recv_window += credit
    await stream.send_window_update(credit)


async def _read_ahead(tcp: Any, num_bytes: int | None = None) -> bytes:
    """At most so many bytes of a TCP stream, first what an earlier call has read beyond what it needed."""
    if num_bytes == 0:
        return b""
    async with tcp.read_lock:
        unread: memoryview | None = getattr(tcp, "_unread", None)
        if not unread:
            try:
                data = await tcp.stream.receive_some(max(num_bytes or 0, READ_AHEAD_BYTES))
            except trio.BrokenResourceError as error:
                raise ConnectionClosedError(f"the peer reset it: {error}", transport="tcp") from error
            except trio.ClosedResourceError:
                return b""
            if num_bytes is None or len(data) <= num_bytes:
                return bytes(data)
            unread = memoryview(data)
        tcp._unread = unread[num_bytes:] if num_bytes is not None else None
        return bytes(unread[:num_bytes])


async def _read_body(session: Any, read_slowly: Callable[[int], Awaitable[bytes]], num_bytes: int) -> bytes:
    """The rest of a Yamux frame: no deadline has to be set where it has come, which is nearly always."""
    if session.high_watermark - session.low_watermark < num_bytes:
        return await read_slowly(num_bytes)
    data: bytes = await session.read(num_bytes)
    return data


async def _write_frame(muxed: Any, data: bytes) -> None:
    """Yamux's writer, shielded: a record that was encrypted but not sent whole breaks the connection."""
    async with muxed._write_lock:
        with trio.CancelScope(deadline=trio.current_time() + WRITE_SECONDS, shield=True) as deadline:
            await muxed.secured_conn.write(data)
        if deadline.cancelled_caught:
            get_socket(muxed).close()
            raise ConnectionClosedError("the peer does not read")
    await trio.lowlevel.checkpoint()


class _WatchedReader:
    """What Yamux reads, checked for what no Noise and no Yamux implementation sends."""

    def __init__(
        self, read: Callable[[int | None], Awaitable[bytes]], on_offence: Callable[[str], None]
    ) -> None:
        self._read = read
        self._on_offence = on_offence
        self._is_body_next = False
        self._num_reads = 0

    async def read(self, num_bytes: int | None = None) -> bytes:
        """Raises what the library raises, and ConnectionClosedError on a header that makes no sense."""
        self._num_reads += 1
        if self._num_reads % READS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
        try:
            data = await self._read(num_bytes)
        except NoiseInvalidMessage:
            self._on_offence("record_garbage")
            raise
        if self._is_body_next or len(data) != yamux.HEADER_SIZE:
            self._is_body_next = False
            return data
        version, kind, _, _, length = _HEADER.unpack(data)
        if version or kind > yamux.TYPE_GO_AWAY or (kind == yamux.TYPE_DATA and length > MAX_WINDOW_BYTES):
            self._on_offence("muxer_garbage")
            raise ConnectionClosedError("the peer does not speak Yamux")
        self._is_body_next = kind == yamux.TYPE_DATA and length > 0
        return data


class QuickLock:
    """In the place of a `trio.Lock`: taken at once when it is free, handed on in the order of the waiting.

    Trio's own lets everybody else run first, each time. A record passes twelve locks on its way out and in,
    which are hardly ever taken, and so it cost twelve turns of the event loop.
    """

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_taken:
            await self._waiting.park()  # it stays taken, and is ours then
        self._is_taken = True

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._waiting.unpark()
        else:
            self._is_taken = False


class _WriteLock:
    """In the place of the library's lock for many readers and one writer, which nobody takes for reading."""

    __slots__ = ("write_lock",)

    def __init__(self) -> None:
        lock = QuickLock()
        self.write_lock = lambda: lock


class _Streams(dict[int, Any]):
    """The streams of a connection by their numbers, with quick locks."""

    def __setitem__(self, stream_id: int, stream: Any) -> None:
        stream.window_lock, stream.rw_lock = QuickLock(), _WriteLock()
        super().__setitem__(stream_id, stream)


class _Events(dict[int, trio.Event]):
    """What readers wait for, by stream; nothing for one that is not in ``streams`` any more.

    After every wait the library puts in a new event, also when it was the stream's end that it waited for.
    So 0.4 KB would stay of every stream as long as its connection, and a peer may open as many as it likes.
    """

    def __init__(self, streams: Container[int]) -> None:
        super().__init__()
        self._streams = streams

    def __setitem__(self, stream_id: int, event: trio.Event) -> None:
        if stream_id in self._streams:
            super().__setitem__(stream_id, event)


class _Buffers(dict[int, bytearray]):
    """Received bytes by stream; calls ``on_overflow`` when all of them together are too many."""

    def __init__(self, on_overflow: Callable[[], None]) -> None:
        super().__init__()
        self._on_overflow = on_overflow

    def __setitem__(self, stream_id: int, buffer: bytearray) -> None:
        super().__setitem__(stream_id, _Buffer(self))

    def check(self) -> None:
        if sum(map(len, self.values())) > MAX_UNREAD_BYTES:
            self._on_overflow()


class _Buffer(bytearray):
    """A stream's received bytes; the library only appends with `extend`."""

    def __init__(self, owner: _Buffers) -> None:
        super().__init__()
        self._owner = owner

    def extend(self, data: Any) -> None:
        super().extend(data)
        self._owner.check()
