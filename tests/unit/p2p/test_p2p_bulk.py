"""Bulk streams over real sockets: what goes in comes out, and whatever is not the peer's is refused."""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable

import pytest
import trio

from psyche_py.p2p.bulk import RECORD_BYTES, BulkStream, Ticket
from psyche_py.p2p.errors import StreamBroken

KEY = b"k" * 32
SECRET = b"s" * 32
Raw = trio.socket.SocketType


def connect(main: Callable[[BulkStream, BulkStream, Raw, Raw], Awaitable[None]]) -> None:
    """Two streams and the sockets below them."""

    async def bounded() -> None:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = listener.socket.getsockname()[1]
        near = (await trio.open_tcp_stream("127.0.0.1", port)).socket
        far = (await listener.accept()).socket
        await listener.aclose()
        with trio.fail_after(20), near, far:
            dialer = BulkStream(near, KEY, SECRET, is_dialer=True)
            await main(dialer, BulkStream(far, KEY, SECRET, is_dialer=False), near, far)

    trio.run(bounded)


@pytest.mark.parametrize("size", [1, 1000, RECORD_BYTES, RECORD_BYTES + 1, 3_000_000])
def test_bytes_arrive_both_ways(size: int) -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        data = os.urandom(size)
        for writer, reader in ((a, b), (b, a)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.write, data, 5)
                assert await reader.read_exactly(size, 5) == data
        await a.close()
        assert not await b.wait_for_data(5)
        assert await b.read(10, 5) == b""

    connect(main)


def test_a_stream_that_waits_holds_no_memory() -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        assert a.num_buffered_bytes == b.num_buffered_bytes == 0
        await a.write(b"who has it?", 5)
        await b.read_exactly(10, 5)
        assert max(a.num_buffered_bytes, b.num_buffered_bytes) < 100, "as much as what was said"
        b.drop_buffers()
        assert await b.read_exactly(1, 5) == b"?", "what has not been read stays"
        data = os.urandom(3 * RECORD_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.write, data, 5)
            assert await a.read_exactly(len(data), 5) == data
        assert min(a.num_buffered_bytes, b.num_buffered_bytes) > RECORD_BYTES
        for stream in (a, b):
            stream.drop_buffers()
            assert stream.num_buffered_bytes == 0
        await a.write(b"again", 5)
        assert await b.read_exactly(5, 5) == b"again"

    connect(main)


def test_nothing_readable_is_on_the_wire_and_the_directions_differ() -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        data = b"the same words " * 20
        await a.write(data, 5)
        await b.write(data, 5)
        one, other = await far.recv(4096), await near.recv(4096)
        assert b"words" not in one + other
        assert one != other

    connect(main)


def test_a_changed_a_repeated_and_a_reflected_record_are_refused() -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        await a.write(b"hello", 5)
        record = await far.recv(4096)
        for attempt in (record[:-1] + bytes([record[-1] ^ 1]), record + record):
            fresh = BulkStream(far, KEY, SECRET, is_dialer=False)
            await near.send(attempt)
            with pytest.raises(StreamBroken, match="not from the peer"):
                await fresh.read_exactly(10, 5)
        await far.send(record)  # back to the one who wrote it
        with pytest.raises(StreamBroken, match="not from the peer"):
            await a.read(10, 5)

    connect(main)


def test_another_secret_opens_nothing() -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        await BulkStream(near, KEY, b"x" * 32, is_dialer=True).write(b"hello", 5)
        with pytest.raises(StreamBroken, match="not from the peer"):
            await b.read(10, 5)

    connect(main)


@pytest.mark.parametrize("length", [0, 16, RECORD_BYTES + 17, 0xFFFF_FFFF])
def test_records_of_an_impossible_length(length: int) -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        await near.send(struct.pack("<I", length) + bytes(100))
        with pytest.raises(StreamBroken, match="announces"):
            await b.read(10, 5)

    connect(main)


def test_silence_an_end_in_the_middle_and_a_peer_that_does_not_read() -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        with pytest.raises(StreamBroken, match="nothing arrived"):
            await b.read(10, 0.05)
        with pytest.raises(StreamBroken, match="took nothing"):
            await a.write(bytes(64_000_000), 0.1)
        near.close()
        with pytest.raises(StreamBroken):
            await b.read_exactly(64_000_000, 5)

    connect(main)


def test_only_a_quiet_stream_is_used_again() -> None:
    async def main(a: BulkStream, b: BulkStream, near: Raw, far: Raw) -> None:
        assert a.is_idle
        await b.write(b"unasked", 5)
        await trio.sleep(0.05)
        assert not a.is_idle
        assert await a.read_exactly(7, 5) == b"unasked"
        assert a.is_idle
        b.cut()
        await trio.sleep(0.05)
        assert not a.is_idle
        a.cut()
        assert not a.is_idle

    connect(main)


def test_tickets_differ() -> None:
    one, other = Ticket.make(), Ticket.make()
    assert one.token != other.token
    assert one.secret != other.secret
