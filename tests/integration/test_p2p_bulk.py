"""Blobs over bulk streams: whoever of the two can be dialed, kept for the next blob, cut with the peer."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio

from psyche_py.p2p import bulk_pool, doors
from psyche_py.p2p.bulk import BULK_HELLO, TOKEN_BYTES
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.hint import EMPTY_HINT, Address, pack_hint, unpack_hint
from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo
from psyche_py.p2p.transfer import BlobBuffer, BlobQuestion

DATA = os.urandom(3_000_000)


def run(main: Callable[[], Awaitable[None]], seconds: float = 30) -> None:
    async def bounded() -> None:
        with trio.fail_after(seconds):
            await main()

    trio.run(bounded)


async def introduce(a: Libp2pNetwork, b: Libp2pNetwork, hint_of_b: bytes | None = None) -> None:
    """Connect the two; what a is told about b's address can differ from the truth."""
    b.set_peers([PeerInfo(a.key, a.hint)])
    a.set_peers([PeerInfo(b.key, b.hint if hint_of_b is None else hint_of_b)])
    with trio.fail_after(10):
        while not (b.key in a.connected_peers and a.key in b.connected_peers):
            await trio.sleep(0.01)


def get_address(node: Libp2pNetwork) -> Address:
    address = unpack_hint(node.hint)
    assert address is not None
    return address


async def fetch(reader: Libp2pNetwork, holder: Libp2pNetwork, data: bytes = DATA) -> None:
    digest = holder.store.put(data)
    assert await reader.fetch(digest, len(data), [holder.key], deadline_seconds=10) == data
    reader.store.drop(digest)


async def fetch_at_once(reader: Libp2pNetwork, holder: Libp2pNetwork) -> None:
    """Five blobs of a megabyte, each of its own."""
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(fetch, reader, holder, os.urandom(1_000_000))


def get_open(node: Libp2pNetwork, key: bytes) -> set[object]:
    return set(node._bulk._open.get(key, set()))


def test_one_stream_serves_one_blob_after_the_other_and_is_cut_with_the_peer() -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b)
            await fetch(a, b)
            first = get_open(a, b.key)
            assert len(first) == 1
            await fetch(a, b, os.urandom(100))
            with pytest.raises(PeerUnreachable, match="does not have"):
                await a._download(b.key, BlobQuestion(b"x" * 32, 10, BlobBuffer(), False, lambda: None))
            await fetch(a, b)
            assert get_open(a, b.key) == first
            b.set_peers([])
            assert not b._bulk._open
            with trio.fail_after(5):
                while a.connected_peers:
                    await trio.sleep(0.01)

    run(main)


def test_blobs_at_once_use_streams_of_their_own() -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b)
            await fetch_at_once(a, b)
            assert 1 <= len(get_open(a, b.key)) <= 5
            assert not any(stream.num_buffered_bytes for stream in get_open(a, b.key)), "they only wait now"

    run(main)


def test_streams_that_the_holder_has_closed_are_not_kept() -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b)
            await fetch_at_once(a, b)
            idle = a._bulk._idle[b.key]
            while len(idle) < 2:  # it may be that one was enough for all
                stream = await a._bulk._connect(b.key)
                assert stream is not None
                a._bulk.release(stream, is_reusable=True)
            oldest = idle[0]
            oldest._socket.shutdown(trio.socket.SHUT_RDWR)
            await fetch(a, b)
            assert oldest not in get_open(a, b.key)
            assert oldest not in a._bulk._idle[b.key]

    run(main)


@pytest.mark.parametrize("hint", [EMPTY_HINT, pack_hint("127.0.0.1", 9)])
def test_a_holder_that_cannot_be_dialed_dials(hint: bytes) -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b, hint)
            await fetch(a, b)
            assert len(get_open(a, b.key)) == len(get_open(b, a.key)) == 1
            await fetch(a, b)
            assert len(get_open(a, b.key)) == 1

    run(main)


def test_without_any_way_the_blob_comes_over_libp2p(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*args: object) -> object:
        raise StreamBroken("no route")

    monkeypatch.setattr(bulk_pool.BulkPool, "_dial", refuse)
    monkeypatch.setattr(bulk_pool, "DIAL_SECONDS", 0.1)

    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b)
            for _ in range(2):
                await fetch(a, b)
                assert not a._bulk._open
                assert not b._bulk._open

    run(main)


def test_a_payload_goes_out_as_a_tree() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(open_libp2p_network(bytes([n + 1]) * 32)) for n in range(7)
            ]
            for node in nodes:
                node.set_peers([PeerInfo(other.key, other.hint) for other in nodes])
            with trio.fail_after(20):
                while any(node.num_connected < 6 for node in nodes):
                    await trio.sleep(0.02)
            digest = nodes[0].store.put(DATA)
            async with trio.open_nursery() as nursery:
                for node in nodes[1:]:
                    holders = [nodes[0].key, *(other.key for other in nodes[1:] if other is not node)]
                    fetch = partial(node.fetch, digest, len(DATA), holders, deadline_seconds=30)
                    nursery.start_soon(fetch)
            assert all(node.store.get(digest) == DATA for node in nodes)
            assert nodes[0].stats.sent["blob"] == 2 * len(DATA)
            assert max(node.stats.sent["blob"] for node in nodes) <= 3 * len(DATA)

    run(main, 60)


def test_strangers_and_used_tickets_open_nothing() -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b)
            address = get_address(b)
            ticket = await a._bulk._ask_for_ticket(b.key)
            stream = await a._bulk._dial(b.key, address, ticket)
            with trio.fail_after(5):
                while not b._bulk._open:
                    await trio.sleep(0.01)
            for token in (ticket.token, bytes(TOKEN_BYTES)):
                stranger = await trio.open_tcp_stream(address.host, address.port)
                await stranger.send_all(BULK_HELLO + token)
                with trio.fail_after(2):
                    assert await stranger.receive_some() == b""
                await stranger.aclose()
            assert len(get_open(b, a.key)) == 1
            stream.cut()

    run(main)


def test_one_peer_can_hold_only_so_many_tickets() -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b)
            tickets = [await a._bulk._ask_for_ticket(b.key) for _ in range(bulk_pool.MAX_TICKETS + 3)]
            assert list(b._bulk._expected) == [item.token for item in tickets[3:]]

    run(main)


def test_half_open_connections_of_one_address_are_limited_and_those_inside_do_not_mind() -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            await introduce(a, b)
            address = get_address(b)
            strangers = [
                await trio.open_tcp_stream(address.host, address.port)
                for _ in range(doors.MAX_HALF_OPEN_PER_ADDRESS + 5)
            ]
            with trio.fail_after(2):  # the surplus is closed at once, the others after a while
                while b._host._doors.num_half_open < doors.MAX_HALF_OPEN_PER_ADDRESS:
                    await trio.sleep(0.01)
                assert await strangers[-1].receive_some() == b""
            word = os.urandom(8)
            await a.publish(word)
            assert (await b.announcements().receive()).body == word
            for stranger in strangers:
                await stranger.aclose()

    run(main)
