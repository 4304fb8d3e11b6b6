"""The stream protocols against well-behaved and hostile other ends, without libp2p."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pipe_stream import PipeStream
from trio.testing import MockClock, memory_stream_pair

from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.errors import PeerUnreachable, RequestFailed, StreamBroken
from psyche_py.p2p.libp2p_services import (
    MAX_UPLOADS,
    BlobService,
    download_blob,
    ping,
    send_request,
    serve_pings,
    serve_request,
)
from psyche_py.p2p.node import ReplyStatus
from psyche_py.p2p.port import TrafficStats
from psyche_py.p2p.transfer import BlobQuestion, HolderAtFault, Referred
from psyche_py.p2p.uploads import MAX_COPIES, UploadDesk

KEY = b"k" * 32
DATA = bytes(range(256)) * 4_000
DIGEST = hashlib.sha256(DATA).digest()


Script = Callable[[Any], Awaitable[None]]


def connect(server: Script, client: Script) -> None:
    """Run both ends of a stream under a mock clock; a server that finds its stream broken just stops."""

    async def main() -> None:
        near, far = memory_stream_pair()

        async def serve() -> None:
            try:
                await server(PipeStream(near))
            except StreamBroken:
                pass
            finally:
                await near.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await client(PipeStream(far))
            await far.aclose()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def ask(
    digest: bytes, size: int, buffer: bytearray | None = None, *, is_urgent: bool = False
) -> BlobQuestion:
    return BlobQuestion(digest, size, bytearray() if buffer is None else buffer, is_urgent, lambda: None)


def make_service() -> BlobService:
    store = BlobStore()
    store.put(DATA)
    return BlobService(UploadDesk(store), TrafficStats())


@pytest.mark.parametrize("offset", [0, 1, 65_536, len(DATA) - 1, len(DATA)])
def test_blob_from_an_offset(offset: int) -> None:
    async def client(stream: Any) -> None:
        buffer, stats = bytearray(DATA[:offset]), TrafficStats()
        await download_blob(stream, ask(DIGEST, len(DATA), buffer), stats)
        assert buffer == DATA
        assert stats.received["blob"] == len(DATA) - offset

    connect(make_service().serve, client)


def test_blob_that_is_not_there() -> None:
    async def client(stream: Any) -> None:
        with pytest.raises(PeerUnreachable, match="does not have"):
            await download_blob(stream, ask(b"x" * 32, 5), TrafficStats())

    connect(make_service().serve, client)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_blob_of_another_size(size: int) -> None:
    async def client(stream: Any) -> None:
        with pytest.raises(HolderAtFault):
            await download_blob(stream, ask(DIGEST, size), TrafficStats())

    connect(make_service().serve, client)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", StreamBroken),
        (b"\0" * 8, StreamBroken),
        (struct.pack("<BQ", 0, 1 << 63), HolderAtFault),
        (struct.pack("<BQ", 9, 100), HolderAtFault),
        (struct.pack("<BQ", 3, 0), HolderAtFault),
        (struct.pack("<BQ", 2, 0), PeerUnreachable),
        (struct.pack("<BQ", 4, 1) + b"r" * 32, Referred),
        (struct.pack("<BQ", 4, 1) + b"r" * 31, StreamBroken),
        (struct.pack("<BQ", 4, 0), HolderAtFault),
        (struct.pack("<BQ", 4, 1 << 40), HolderAtFault),
        (struct.pack("<BQ", 0, 100) + b"x" * 99, StreamBroken),
    ],
)
def test_hostile_blob_answers(answer: bytes, error: type[Exception]) -> None:
    async def server(stream: Any) -> None:
        await stream.read(100, 5)
        await stream.write(answer, 5)

    async def client(stream: Any) -> None:
        buffer = bytearray()
        with pytest.raises(error):
            await download_blob(stream, ask(DIGEST, 100, buffer), TrafficStats())
        assert len(buffer) <= 100

    connect(server, client)


def test_who_has_had_its_copies_refers_to_them_and_serves_the_urgent() -> None:
    service = make_service()
    served = [bytes([n]) * 32 for n in range(MAX_COPIES)]
    for key in served:
        assert service._desk.admit(DIGEST, key, is_urgent=False) == ()

    async def client(stream: Any) -> None:
        with pytest.raises(Referred) as caught:
            await download_blob(stream, ask(DIGEST, len(DATA)), TrafficStats())
        assert sorted(caught.value.others) == served

    async def urgent(stream: Any) -> None:
        question = ask(DIGEST, len(DATA), is_urgent=True)
        await download_blob(stream, question, TrafficStats())
        assert question.buffer == DATA

    connect(service.serve, client)
    connect(service.serve, urgent)


def test_a_silent_holder_is_given_up() -> None:
    async def server(stream: Any) -> None:
        await trio.sleep(100)

    async def client(stream: Any) -> None:
        with pytest.raises(StreamBroken):
            await download_blob(stream, ask(DIGEST, 100), TrafficStats())
        assert trio.current_time() < 40

    connect(server, client)


def test_uploads_wait_for_a_slot_and_are_told_when_there_is_none() -> None:
    service = make_service()

    async def hold(number: int) -> None:
        near, far = memory_stream_pair()
        await PipeStream(far).write(struct.pack("<32sQ?", DIGEST, 0, False), 5)
        with pytest.raises(StreamBroken):  # nobody reads, nobody acknowledges
            await service.serve(cast(Any, PipeStream(near)))

    async def server(stream: Any) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(MAX_UPLOADS):
                nursery.start_soon(hold, number)
            await trio.sleep(0.1)
            await service.serve(stream)

    async def client(stream: Any) -> None:
        await trio.sleep(0.2)
        with pytest.raises(PeerUnreachable, match="busy"):
            await download_blob(stream, ask(DIGEST, len(DATA)), TrafficStats())

    connect(server, client)
    assert service._uploads.borrowed_tokens == 0


async def answer(sender: bytes, kind: str, body: bytes) -> tuple[ReplyStatus, bytes]:
    return (ReplyStatus.OK, sender + body) if kind == "echo" else (ReplyStatus.NO_HANDLER, b"")


@pytest.mark.parametrize("size", [0, 1, 100_000, 1 << 20])
def test_request(size: int) -> None:
    async def client(stream: Any) -> None:
        body = bytes(size)
        assert await send_request(stream, "echo", body, 2 << 20) == (ReplyStatus.OK, KEY + body)

    connect(lambda stream: serve_request(stream, answer), client)


def test_request_of_unknown_kind_and_response_that_is_too_long() -> None:
    async def unknown(stream: Any) -> None:
        assert await send_request(stream, "what", b"", 10) == (ReplyStatus.NO_HANDLER, b"")

    async def too_long(stream: Any) -> None:
        assert await send_request(stream, "echo", b"", 31) == (ReplyStatus.TOO_LARGE, b"")

    connect(lambda stream: serve_request(stream, answer), unknown)
    connect(lambda stream: serve_request(stream, answer), too_long)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"\0\0", StreamBroken),
        (struct.pack("<BI", 0, 11), RequestFailed),
        (struct.pack("<BI", 0, 0xFFFF_FFFF), RequestFailed),
        (struct.pack("<BI", 77, 0), RequestFailed),
        (struct.pack("<BI", 0, 10) + b"short", StreamBroken),
    ],
)
def test_hostile_replies(reply: bytes, error: type[Exception]) -> None:
    async def server(stream: Any) -> None:
        await stream.read(1000, 5)
        await stream.write(reply, 5)

    async def client(stream: Any) -> None:
        with pytest.raises(error):
            await send_request(stream, "echo", b"", 10)

    connect(server, client)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda kind, limit, length, rest: (
                bytes([len(kind)]) + kind + struct.pack("<II", limit, length) + rest
            ),
            st.binary(max_size=255),
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**32 - 1),
            st.binary(max_size=64),
        ),
    )
)
def test_servers_survive_any_bytes(data: bytes) -> None:
    async def client(stream: Any) -> None:
        await stream.write(data, 5)
        await stream.close()
        while await stream.read(65_536, 60):
            pass

    connect(lambda stream: serve_request(stream, answer), client)
    connect(make_service().serve, client)


def test_pings() -> None:
    async def client(stream: Any) -> None:
        for number in range(3):
            await ping(stream, number)
        await stream.close()

    async def liar(stream: Any) -> None:
        await stream.read(8, 5)
        await stream.write(b"x" * 8, 5)

    async def deceived(stream: Any) -> None:
        with pytest.raises(StreamBroken):
            await ping(stream, 1)

    async def hung(stream: Any) -> None:
        await trio.sleep(100)

    connect(serve_pings, client)
    connect(liar, deceived)
    connect(hung, deceived)
