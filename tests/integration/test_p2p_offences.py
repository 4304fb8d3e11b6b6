"""Every kind of bad input over real sockets: counted by kind, bounded, and too much ends the connection."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
from hostile_mesh import (
    ATTACKER,
    check_service,
    get_address,
    open_attacker,
    open_victims,
    run,
    until,
)
from libp2p.stream_muxer.yamux.yamux import TYPE_DATA, YAMUX_HEADER_FORMAT

from psyche_py.p2p import items, libp2p_adapter, libp2p_host, libp2p_patches, libp2p_services
from psyche_py.p2p import node as node_module
from psyche_py.p2p.bulk import BULK_HELLO
from psyche_py.p2p.doors import MAX_HALF_OPEN_PER_ADDRESS
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.flood import SIGNER_BURST, SIGNER_RATE
from psyche_py.p2p.frames import ItemKind, encode_item, encode_length_prefixed, make_frame
from psyche_py.p2p.hint import EMPTY_HINT
from psyche_py.p2p.libp2p_adapter import MAX_CONNECTIONS_PER_PEER, open_libp2p_network
from psyche_py.p2p.libp2p_link import FLOOD_PROTOCOL
from psyche_py.p2p.libp2p_services import BLOB_PROTOCOL, PING_PROTOCOL, REQUEST_PROTOCOL
from psyche_py.p2p.offences import MAX_OFFENCES, TOLERATED
from psyche_py.p2p.port import Examination, PeerInfo

if TYPE_CHECKING:
    from psyche_py.p2p.libp2p_host import MeshConnection

KEY = ATTACKER.public_key


async def send(connection: MeshConnection, protocol: str, data: bytes) -> None:
    """One stream with these bytes, to its end; whether it is taken is the victim's business."""
    try:
        stream = await connection.open_stream(protocol)
        await stream.write(data, 5)
        await stream.close()
        while await stream.read(65_536, 10):
            pass
    except (StreamBroken, PeerUnreachable):
        return


async def repeat_until_cut(connection: MeshConnection, protocol: str, data: bytes) -> int:
    """How often it could be done before the connection was ended."""
    times = 0
    with trio.fail_after(60):
        while not connection.closed.is_set():
            await send(connection, protocol, data)
            times += 1
            await trio.sleep(0.01)
    return times


@pytest.mark.parametrize(
    ("kind", "protocol", "data"),
    [
        ("stream_misframed", FLOOD_PROTOCOL, struct.pack("<I", 0xFFFF_FFFF)),
        ("stream_misframed", FLOOD_PROTOCOL, bytes(4)),
        ("item_unknown", FLOOD_PROTOCOL, struct.pack("<IB", 10, 7) + bytes(9)),
        ("have_malformed", FLOOD_PROTOCOL, encode_item(ItemKind.HAVE, bytes(9))),
        ("links_malformed", FLOOD_PROTOCOL, encode_item(ItemKind.LINKS, bytes(9))),
        ("frame_malformed", FLOOD_PROTOCOL, encode_length_prefixed([bytes(95)])),
        ("frame_malformed", FLOOD_PROTOCOL, encode_length_prefixed([bytes(4_097)])),
        ("frame_forged", FLOOD_PROTOCOL, encode_length_prefixed([KEY + bytes(64) + b"nothing"])),
        ("ping_malformed", PING_PROTOCOL, b"short"),
        ("request_malformed", REQUEST_PROTOCOL, b"\1k" + struct.pack("<II", 9, 0xFFFF_FFFF)),
        ("request_malformed", REQUEST_PROTOCOL, bytes(300)),
        ("blob_question_malformed", BLOB_PROTOCOL, b"\xff" * 41),
        ("bulk_question_malformed", "/psyche/bulk/1", b"\x09"),
    ],
)
def test_garbage_after_the_handshake_ends_the_connection(kind: str, protocol: str, data: bytes) -> None:
    async def main() -> None:
        async with open_victims() as (a, b), open_attacker(a) as (host, connection):
            times = await repeat_until_cut(connection, protocol, data)
            assert times >= MAX_OFFENCES
            assert a.stats.offences[kind] == MAX_OFFENCES
            # and stays out until the next epoch, while the others go on
            address = get_address(a)
            with pytest.raises(PeerUnreachable):
                for _turn in range(3):
                    await host.dial(a.key, address.host, address.port)
                    await trio.sleep(0.2)
                raise PeerUnreachable(a.key, "the dials ended at the gate")
            assert KEY not in a.connected_peers
            await check_service(a, b)
            peers = [PeerInfo(b.key, b.hint), PeerInfo(KEY, EMPTY_HINT)]
            a.set_peers(peers, b"")
            assert not a._is_admitted(KEY)
            a.set_peers(peers, b"the next epoch")
            await host.dial(a.key, address.host, address.port)
            await until(lambda: KEY in a.connected_peers)

    run(main)


def test_garbage_before_and_during_the_handshake_is_counted() -> None:
    async def main() -> None:
        async with open_victims() as (a, _):
            address = get_address(a)
            said = (b"GET / HTTP/1.1\r\n\r\n", b"\x13/multistream/1.0.0\n\x07/noise\n" + os.urandom(99))
            for data in said:
                stream = await trio.open_tcp_stream(address.host, address.port)
                await stream.send_all(data)
                await stream.aclose()
            await until(lambda: a.stats.offences["handshake_failed"] == 2)
            stream = await trio.open_tcp_stream(address.host, address.port)
            await stream.send_all(BULK_HELLO + os.urandom(16))
            await until(lambda: a.stats.offences["bulk_without_ticket"] == 1)
            await stream.aclose()

    run(main)


def test_a_stranger_who_sends_a_byte_now_and_then_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p_host, "UPGRADE_SECONDS", 1.0)

    async def main() -> None:
        async with open_victims() as (a, _):
            address = get_address(a)
            stream = await trio.open_tcp_stream(address.host, address.port)
            with pytest.raises((trio.BrokenResourceError, trio.EndOfChannel)), trio.fail_after(60):
                for byte in b"\x13/multistream/1.0.0\n":
                    await stream.send_all(bytes([byte]))
                    with trio.move_on_after(0.4):
                        if not await stream.receive_some(100):
                            raise trio.EndOfChannel
                while await stream.receive_some(100):
                    pass
                raise trio.EndOfChannel
            await stream.aclose()
            await until(lambda: a.stats.offences["handshake_failed"] == 1)

    run(main)


@pytest.mark.parametrize("protocol", [FLOOD_PROTOCOL, BLOB_PROTOCOL, REQUEST_PROTOCOL])
def test_a_peer_that_sends_one_byte_a_minute(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "ITEM_SECONDS", 0.5)
    monkeypatch.setattr(libp2p_services, "IO_SECONDS", 0.5)

    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_host, connection):

            async def dribble() -> None:
                try:
                    stream = await connection.open_stream(protocol)
                    while True:
                        await stream.write(b"\x05", 5)
                        await trio.sleep(0.2)
                except (StreamBroken, PeerUnreachable):
                    return

            async with trio.open_nursery() as nursery:
                for _turn in range(MAX_OFFENCES):
                    nursery.start_soon(dribble)
                with trio.fail_after(60):
                    await connection.closed.wait()
                nursery.cancel_scope.cancel()
            assert a.stats.offences["stream_slow"] == MAX_OFFENCES

    run(main)


def test_streams_without_end() -> None:
    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_host, connection):
            opened = 0
            with trio.fail_after(120):
                while not connection.closed.is_set():
                    try:
                        await connection.open_stream(PING_PROTOCOL)
                        opened += 1
                    except PeerUnreachable:
                        await trio.lowlevel.checkpoint()
            assert opened <= 64
            # the first 64 too many are forgiven: an honest peer may meet the limit once
            assert a.stats.offences["stream_surplus"] >= 64 + MAX_OFFENCES

    run(main)


def test_garbage_below_the_streams() -> None:
    """In authentic records that are no Yamux, and in records that are not authentic."""

    async def main() -> None:
        async with open_victims() as (a, _):
            for kind in ("muxer_garbage", "record_garbage"):
                async with open_attacker(a) as (_host, connection):
                    await until(lambda: KEY in a.connected_peers)
                    secured = connection._conn.muxed_conn.secured_conn
                    if kind == "muxer_garbage":
                        await secured.write(b"\x09" * 12)
                    else:
                        await secured.conn.read_writer.write_msg(os.urandom(40))
                    await until(lambda kind=kind: a.stats.offences[kind] == 1)
                    with trio.fail_after(60):
                        await connection.closed.wait()
                await until(lambda: KEY not in a.connected_peers)

    run(main)


def test_garbage_where_a_protocol_is_agreed_on() -> None:
    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_host, connection):
            with trio.fail_after(60):
                while not connection.closed.is_set():
                    try:
                        stream = await connection._conn.new_stream()
                        await stream.write(b"\x04what")
                        await stream.read(100)
                        await stream.reset()
                    except Exception:
                        continue
            assert a.stats.offences["negotiation_garbage"] == MAX_OFFENCES

    run(main)


def examine(body: bytes) -> Examination:
    """A client that wants bodies like ``kind:number``, one per kind."""
    kind, _, _ = body.partition(b":")
    faults = {
        b"run": "message_other_run",
        b"past": "frame_past",
        b"soon": "frame_future",
        b"bad": "message_malformed",
    }
    return Examination(key=kind if kind == b"once" else None, fault=faults.get(kind, ""))


async def say(connection: MeshConnection, *bodies: bytes) -> None:
    frames = [make_frame(ATTACKER, body).raw for body in bodies]
    with suppress(StreamBroken, PeerUnreachable):  # when it is cut off before the end
        stream = await connection.open_stream(FLOOD_PROTOCOL)
        await stream.write(encode_length_prefixed(frames), 5)


def test_both_versions_of_an_equivocation_arrive_and_no_third() -> None:
    async def main() -> None:
        async with open_victims() as (a, b), open_attacker(a) as (_host, connection):
            a.set_examiner(examine)
            b.set_examiner(examine)
            await say(connection, b"once:1", b"once:1", b"once:2", b"once:3", b"many:1", b"many:2", b"many:3")
            for node in (a, b):
                heard = []
                with trio.fail_after(60):
                    while len(heard) < 5:
                        heard.append((await node.announcements().receive()).body)
                assert heard == [b"once:1", b"once:2", b"many:1", b"many:2", b"many:3"]
            assert a.stats.offences == {"equivocation": 1, "frame_repeated": 1}
            assert b.stats.offences == {"equivocation": 1}, "the third is not passed on"

    run(main)


@pytest.mark.parametrize("body", [b"run:", b"bad:"])
def test_who_signs_words_of_another_run_is_cut_off(body: bytes) -> None:
    async def main() -> None:
        async with open_victims() as (a, b), open_attacker(a) as (_host, connection):
            a.set_examiner(examine)
            await say(connection, *[body + bytes([n]) for n in range(50)])
            with trio.fail_after(60):
                await connection.closed.wait()
            assert a.stats.offences.total() == MAX_OFFENCES
            assert not b.stats.offences
            assert not a.announcements().statistics().current_buffer_used

    run(main)


@pytest.mark.parametrize(("body", "kind"), [(b"past:", "frame_past"), (b"soon:", "frame_future")])
def test_old_and_early_words_are_neither_heard_nor_passed_on(
    monkeypatch: pytest.MonkeyPatch, body: bytes, kind: str
) -> None:
    monkeypatch.setitem(TOLERATED, kind, (1.0, 512.0))

    async def main() -> None:
        async with open_victims() as (a, b), open_attacker(a) as (_host, connection):
            a.set_examiner(examine)
            await say(connection, *[body + number.to_bytes(2, "little") for number in range(300)])
            await until(lambda: a.stats.offences[kind] == 300)
            await until(lambda: KEY in a.connected_peers)  # clocks and views differ: some are forgiven
            await say(connection, *[body + number.to_bytes(2, "little") for number in range(300, 900)])
            with trio.fail_after(60):
                await connection.closed.wait()
            assert a.stats.offences[kind] >= 512 + MAX_OFFENCES
            assert not b.stats.offences
            assert not b.announcements().statistics().current_buffer_used

    run(main)


def test_hashes_that_do_not_match() -> None:
    async def main() -> None:
        async with (
            open_libp2p_network(b"\1" * 32) as victim,
            open_libp2p_network(b"\2" * 32) as honest,
            open_libp2p_network(b"\3" * 32) as liar,
        ):
            nodes = (victim, honest, liar)
            for node in nodes:
                node.set_peers([PeerInfo(other.key, other.hint) for other in nodes])
            await until(lambda: all(node.num_connected == 2 for node in nodes))
            for number in range(MAX_OFFENCES):
                data = (number + 1).to_bytes(4, "little") * 1_000
                digest = honest.store.put(data)
                liar.store.put_checked(digest, bytes(len(data)))
                assert (
                    await victim.fetch(digest, len(data), [liar.key, honest.key], deadline_seconds=60) == data
                )
            assert victim.stats.offences["blob_wrong_bytes"] == MAX_OFFENCES
            assert victim.connected_peers == {honest.key}

    run(main)


def test_two_clients_with_one_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are heard, the second learns of the first, and nobody else suffers."""
    monkeypatch.setattr(node_module, "OWN_ECHO_SECONDS", -1.0)

    async def main() -> None:
        async with open_victims() as (a, b), open_libp2p_network(b"\x77" * 32) as one:
            async with open_libp2p_network(b"\x77" * 32) as two:
                for twin in (one, two):
                    twin.set_peers([PeerInfo(a.key, a.hint), PeerInfo(b.key, b.hint)])
                await until(lambda: one.num_connected == 2 and two.num_connected == 2)
                await one.publish(b"this is one")
                await two.publish(b"this is two")
                for node in (a, b):
                    heard = []
                    with trio.fail_after(60):
                        while len(heard) < 2:
                            heard.append((await node.announcements().receive()).body)
                    assert sorted(heard) == [b"this is one", b"this is two"]
                await until(
                    lambda: bool(one.stats.offences["identity_twice"] + two.stats.offences["identity_twice"])
                )
            assert not a.stats.offences
            assert len(a._links[one.key].connections) <= libp2p_adapter.MAX_CONNECTIONS_PER_PEER

    run(main)


def test_what_the_client_reports_counts_too() -> None:
    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_host, connection):
            await until(lambda: KEY in a.connected_peers)
            for _turn in range(MAX_OFFENCES - 1):
                a.report(KEY, "result_of_anothers_batch")
            assert KEY in a.connected_peers
            a.report(KEY, "result_of_anothers_batch")
            assert KEY not in a.connected_peers
            with trio.fail_after(60):
                await connection.closed.wait()
            a.report(b"\x99" * 32, "result_of_anothers_batch")  # nobody of ours: counted, no more
            assert a.stats.offences == {"result_of_anothers_batch": MAX_OFFENCES + 1}

    run(main)


def test_connections_that_say_nothing_close_the_door() -> None:
    """So many from one address may stand in it; the others are turned away, and it opens again."""

    async def main() -> None:
        async with open_victims() as (a, _):
            address = get_address(a)
            streams = [
                await trio.open_tcp_stream(address.host, address.port)
                for _turn in range(MAX_HALF_OPEN_PER_ADDRESS + 5)
            ]
            await until(lambda: a.stats.offences["door_closed"] == 5)
            with trio.fail_after(60):
                for stream in streams[MAX_HALF_OPEN_PER_ADDRESS:]:
                    with suppress(trio.BrokenResourceError):
                        assert await stream.receive_some(1) == b"", "turned away without a word"
            assert a._host._doors.num_half_open == MAX_HALF_OPEN_PER_ADDRESS
            for stream in streams:
                await stream.aclose()
            await until(lambda: a._host._doors.num_half_open == 0)
            assert a.stats.offences.keys() == {"door_closed", "handshake_failed"}

    run(main)


def test_connections_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight stay, the surplus is cut at once, and who goes on is excluded."""
    monkeypatch.setitem(TOLERATED, "connection_surplus", (0.0, 2.0))

    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (host, connection):
            address = get_address(a)
            most = 0
            with trio.fail_after(120):
                while not connection.closed.is_set():
                    with suppress(PeerUnreachable):
                        await host.dial(a.key, address.host, address.port)
                    link = a._links.get(KEY)
                    most = max(most, len(link.connections) if link is not None else 0)
                    await trio.sleep(0.01)
            assert most == MAX_CONNECTIONS_PER_PEER
            assert a.stats.offences["connection_surplus"] == 2 + MAX_OFFENCES

    run(main)


def test_words_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its rate a signer is not heard, by nobody; far beyond, it is excluded."""
    monkeypatch.setitem(TOLERATED, "frame_flood", (0.0, 64.0))

    async def main() -> None:
        async with open_victims() as (a, b), open_attacker(a) as (_host, connection):
            begin = trio.current_time()
            for start in range(0, 3_000, 300):
                await say(connection, *[n.to_bytes(4, "little") for n in range(start, start + 300)])
            with trio.fail_after(60):
                await connection.closed.wait()
            allowed = SIGNER_BURST + SIGNER_RATE * (trio.current_time() - begin)
            assert a.stats.offences == {"frame_flood": 64 + MAX_OFFENCES}
            accepted = a.announcements().statistics().current_buffer_used
            assert SIGNER_BURST <= accepted <= allowed
            await until(lambda: b.announcements().statistics().current_buffer_used == accepted)
            heard = [
                {(await node.announcements().receive()).body for _ in range(accepted)} for node in (a, b)
            ]
            assert heard[0] == heard[1], "what is too much is not passed on"
            assert b.stats.offences.keys() <= {"frame_flood"}, "what came late may come too fast"

    run(main)


def test_more_than_anybody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that ignores the window of a stream whose reader is busy is cut off before memory is full."""
    monkeypatch.setattr(libp2p_patches, "MAX_UNREAD_BYTES", MAX_UNREAD := 4 << 20)

    async def main() -> None:
        async with open_victims() as (a, _), open_attacker(a) as (_host, connection):
            digest = a.store.put(os.urandom(8_000_000))
            stream = await connection.open_stream(BLOB_PROTOCOL)
            await stream.write(struct.pack("<32sQ?", digest, 0, False), 5)  # and never read the answer
            muxed = connection._conn.muxed_conn
            header = struct.pack(
                YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream._stream.muxed_stream.stream_id, 60_000
            )
            sent = 0
            with trio.fail_after(60), suppress(Exception):
                while not connection.closed.is_set():
                    await muxed.secured_conn.write(header + bytes(60_000))
                    sent += 60_000
            await until(lambda: a.stats.offences["unread_overflow"] >= 1)
            assert sent < MAX_UNREAD + (8 << 20), "and what the kernel holds"
            await until(lambda: KEY not in a.connected_peers)
            assert a.stats.offences["unread_overflow"] < MAX_OFFENCES, "at once, not when it is excluded"

    run(main)
