"""Strangers on the port, and allowed peers that misbehave: the service goes on."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from hostile_mesh import (
    ATTACKER,
    check_service,
    get_address,
    open_attacker,
    open_victims,
    run,
    send_and_be_cut_off,
    until,
)

from psyche_py.p2p.errors import PeerUnreachable, RequestFailed, StreamBroken
from psyche_py.p2p.flood import Verdict
from psyche_py.p2p.frames import encode_length_prefixed, make_frame
from psyche_py.p2p.identity import SigningKey
from psyche_py.p2p.libp2p_link import FLOOD_PROTOCOL
from psyche_py.p2p.libp2p_services import BLOB_PROTOCOL, PING_PROTOCOL, REQUEST_PROTOCOL
from psyche_py.p2p.port import PeerInfo

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize("is_initiator", [True, False])
def test_garbage_on_a_punched_connection(is_initiator: bool) -> None:
    """Whoever sits at the address where a peer was seen can be at the other end, and says what it likes."""

    async def main() -> None:
        select, noise = b"\x13/multistream/1.0.0\n", b"\x07/noise\n"
        garbage = [b"", b"\3\xff\xfe\n", b"\xff" * 100, os.urandom(5000), b"GET / HTTP/1.1\r\n\r\n"]
        garbage += [select + noise + os.urandom(300), select + noise + b"\0\0", select + noise + b"\0\x20"]
        async with open_victims() as (a, _):
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            async with listeners[0] as listener:
                for said in garbage:
                    near = await trio.testing.open_stream_to_socket_listener(listener)
                    far = await listener.accept()
                    a._puncher._adopt(far.socket, ATTACKER.public_key, is_initiator)
                    async with near:
                        await near.send_all(said)
                        await near.send_eof()
                        with suppress(trio.BrokenResourceError):
                            while await near.receive_some():
                                pass

    run(main)


def test_garbage_on_the_raw_port() -> None:
    async def main() -> None:
        async with open_victims() as (a, b):
            address = get_address(a)
            garbage = [
                b"",
                b"\0" * 1000,
                os.urandom(5000),
                b"GET / HTTP/1.1\r\n\r\n",
                b"\x13/multistream/1.0.0\n",
            ]
            garbage += [b"\x13/multistream/1.0.0\n\x07/noise\n" + os.urandom(300), b"\xff" * 100]
            sockets = []
            for data in garbage:
                sockets.append(await trio.open_tcp_stream(address.host, address.port))
                await sockets[-1].send_all(data)
            for _ in range(50):
                sockets.append(await trio.open_tcp_stream(address.host, address.port))  # noqa: PERF401
            await trio.sleep(0.3)
            for half_open in sockets[::2]:
                await half_open.aclose()
            await check_service(a, b)
            for half_open in sockets:
                await half_open.aclose()

    run(main)


def test_only_noise_is_spoken() -> None:
    """The library's default would accept an unauthenticated connection under any name."""

    async def main() -> None:
        async with open_victims() as (a, _):
            address = get_address(a)
            for protocol in (b"/plaintext/2.0.0\n", b"/secio/1.0.0\n", b"/tls/1.0.0\n"):
                stream = await trio.open_tcp_stream(address.host, address.port)
                await stream.send_all(b"\x13/multistream/1.0.0\n" + bytes([len(protocol)]) + protocol)
                answer = b""
                with trio.move_on_after(0.5):
                    while b"na\n" not in answer and (part := await stream.receive_some(200)):
                        answer += part
                assert protocol not in answer
                await stream.aclose()

    run(main)


def test_many_refused_strangers_do_not_use_up_the_host() -> None:
    async def main() -> None:
        from psyche_py.p2p.libp2p_host import MeshHost

        async with open_victims() as (a, _):
            address = get_address(a)
            host = MeshHost(b"\x66" * 32, lambda key: True, lambda connection: None)
            async with host.run("127.0.0.1", 0):
                for _turn in range(25):
                    try:
                        await host.dial(a.key, address.host, address.port)
                    except PeerUnreachable:
                        continue
                await trio.sleep(0.3)
            assert a._host._swarm._inbound_limiter.borrowed_tokens <= 3
            async with open_attacker(a):
                await until(lambda: bool(a._links[ATTACKER.public_key].connections))

    run(main)


def test_bad_frames_are_dropped_and_forgers_cut_off() -> None:
    async def main() -> None:
        async with open_victims() as (a, b), open_attacker(a) as (_, connection):
            forged = [b.key + bytes(64) + bytes([n]) for n in range(100)]
            own = make_frame(ATTACKER, b"legitimate").raw
            stranger = make_frame(SigningKey(b"\x55" * 32), b"stranger").raw
            stream = await connection.open_stream(FLOOD_PROTOCOL)
            await stream.write(encode_length_prefixed([own, own, stranger, *forged[:5], b"", b"short"]), 5)
            for node in (a, b):
                with trio.fail_after(60):
                    assert (await node.announcements().receive()).body == b"legitimate"
            offences = a.stats.offences
            await until(lambda: offences["frame_forged"] == 5 and offences["frame_malformed"] == 2)
            assert offences["frame_stranger"] == 1
            await until(lambda: ATTACKER.public_key in a.connected_peers)
            await send_and_be_cut_off(connection, encode_length_prefixed(forged))
            assert offences["frame_forged"] == 6, "what follows the last offence is not read"
            assert not b.stats.offences

    run(main)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", 4_097) + bytes(4_097),
        struct.pack("<I", 10) + b"\1" + bytes(9),
        struct.pack("<I", 10) + b"\2" + bytes(9),
        (struct.pack("<I", 9) + b"\1" + bytes(8)) * 1_000,
        struct.pack("<I", 0xFFFF_FFFF),
        os.urandom(100_000),
        struct.pack("<I", 200) + bytes(199),
        bytes(100_000),
    ],
)
def test_garbage_on_the_announcement_stream(data: bytes) -> None:
    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_, connection):
            stream = await connection.open_stream(FLOOD_PROTOCOL)
            try:
                await stream.write(data, 5)
                await stream.close()
            except StreamBroken:
                return
            await trio.sleep(0.1)

    run(main)


def test_garbage_on_the_other_streams() -> None:
    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_, connection):
            for protocol in (BLOB_PROTOCOL, REQUEST_PROTOCOL, PING_PROTOCOL):
                for data in (b"", b"\0", b"\xff" * 100, os.urandom(20_000)):
                    stream = await connection.open_stream(protocol)
                    try:
                        await stream.write(data, 5)
                        await stream.close()
                        while await stream.read(65_536, 1):
                            pass
                    except StreamBroken:
                        continue
            with pytest.raises(PeerUnreachable):
                await connection.open_stream("/ipfs/id/1.0.0")
            assert not a._host._num_streams[ATTACKER.public_key] > 2

    run(main)


def test_a_peer_cannot_hold_more_than_its_share_of_streams() -> None:
    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_, connection):
            streams = []
            with pytest.raises(PeerUnreachable):
                for _turn in range(100):
                    streams.append(await connection.open_stream(PING_PROTOCOL))  # noqa: PERF401
            assert 32 <= len(streams) <= 64

    run(main)


def test_a_handler_that_raises_does_not_end_the_host() -> None:
    async def main() -> None:
        async def broken(stream: object) -> None:
            raise ZeroDivisionError

        async with open_victims() as (a, _), open_attacker(a) as (_, connection):
            a._host.set_stream_handler("/broken/1", broken)
            for _turn in range(3):
                with pytest.raises((StreamBroken, PeerUnreachable)):
                    stream = await connection.open_stream("/broken/1")
                    await stream.read_exactly(1, 2)

    run(main)


def test_a_cancelled_write_does_not_break_the_connection() -> None:
    """py-libp2p would have encrypted a record and not sent it: the next one could not be decrypted."""

    async def main() -> None:
        async with open_victims() as (a, b):
            blob = a.store.put(os.urandom(2_000_000))
            connection = a._links[b.key].ready
            for number in range(40):
                with trio.move_on_after(0.002 * (number % 8)):
                    await b.fetch(blob, 2_000_000, [a.key], deadline_seconds=5)
                # whoever is quick has been answered before the deadline: nobody handles this kind
                with trio.move_on_after(0.0005 * (number % 8)), suppress(RequestFailed):
                    await a.request(
                        b.key, "nothing", bytes(300_000), max_response_bytes=9, deadline_seconds=5
                    )
                b.store.drop(blob)
            assert a._links[b.key].ready is connection

    run(main)


def test_frames_are_judged_before_they_are_passed_on() -> None:
    async def main() -> None:
        async with open_victims() as (a, _):
            frame = make_frame(ATTACKER, b"x").raw
            assert a._receive_frame(frame[:-1] + b"y", ATTACKER.public_key) is Verdict.INVALID
            assert a._receive_frame(frame[:50], ATTACKER.public_key) is Verdict.INVALID
            assert not a._flood.get_recent(a._clock())

    run(main)


def test_a_second_connection_is_used_and_both_are_cut_with_the_peer() -> None:
    """A peer that lost its power said no good-bye: its old connection looks alive when it comes back."""

    async def main() -> None:
        async with open_victims() as (a, b), open_attacker(a) as (host, first):
            link = a._links[ATTACKER.public_key]
            await until(lambda: bool(link.connections))
            address = get_address(a)
            await host.dial(a.key, address.host, address.port)
            await until(lambda: len(link.connections) == 2 and link.ready is link.connections[1])
            a.set_peers([PeerInfo(b.key, b.hint)])
            await until(first.closed.is_set)

    run(main)


def test_a_peer_that_ignores_its_window_cannot_fill_our_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from psyche_py.p2p import libp2p_patches

    monkeypatch.setattr(libp2p_patches, "MAX_UNREAD_BYTES", 3_000_000)

    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_host, connection):
            digest = a.store.put(bytes(20_000_000))  # more than its window can grow to
            stream = await connection.open_stream(BLOB_PROTOCOL)
            stream._stream.muxed_stream.send_window = 1 << 30
            with pytest.raises(StreamBroken):
                await stream.write(
                    struct.pack("<32sQ?", digest, 0, False), 5
                )  # it answers, then reads no more
                for _turn in range(100):
                    await stream.write(bytes(1_000_000), 5)
            with trio.fail_after(60):
                await connection.closed.wait()

    run(main)
