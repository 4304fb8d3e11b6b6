"""Streams and connections that have ended leave nothing behind, in our own tables or in the library's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import trio

from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo

NUM_REQUESTS, NUM_RECONNECTS = 60, 4
MAX_STREAMS = 8
"""Of one connection: pings and announcements both ways, and what is just being closed."""


async def echo(sender_key: bytes, body: bytes) -> bytes:
    return body


async def connect(a: Libp2pNetwork, b: Libp2pNetwork, *old: object) -> None:
    """Until both have a connection that is none of the ``old`` ones."""
    with trio.fail_after(20):
        while {a._links[b.key].ready, b._links[a.key].ready} & {None, *old}:
            await trio.sleep(0.01)


async def reconnect(a: Libp2pNetwork, b: Libp2pNetwork) -> None:
    old = [*a._links[b.key].connections, *b._links[a.key].connections]
    for connection in old:
        connection.cut()
    await connect(a, b, *old)


def iter_muxers(node: Libp2pNetwork) -> Iterator[Any]:
    for connections in node._host._swarm.connections.values():
        for connection in connections if isinstance(connections, list) else [connections]:
            yield connection.muxed_conn


def is_clean(node: Libp2pNetwork) -> bool:
    """Every table about streams has as many entries as there are streams, and these are few."""
    tables = [
        len(table)
        for muxed in iter_muxers(node)
        for table in (muxed.streams, muxed.stream_events, muxed.stream_buffers)
    ]
    return max(tables, default=0) <= MAX_STREAMS and node._host._num_streams.total() <= MAX_STREAMS


async def work(a: Libp2pNetwork, b: Libp2pNetwork) -> None:
    for _ in range(NUM_REQUESTS):
        await a.request(b.key, "echo", b"words", max_response_bytes=5, deadline_seconds=10)
        data = os.urandom(1000)
        digest = b.store.put(data)
        assert await a.fetch(digest, len(data), [b.key], deadline_seconds=10) == data
        a.store.drop(digest)
        b.store.drop(digest)


def test_requests_and_reconnects_leave_nothing_behind() -> None:
    async def main() -> None:
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            b.set_request_handler("echo", echo)
            a.set_peers([PeerInfo(b.key, b.hint)])
            b.set_peers([PeerInfo(a.key, a.hint)])
            await connect(a, b)
            for _ in range(NUM_RECONNECTS):
                await work(a, b)
                with trio.fail_after(20):
                    while not (is_clean(a) and is_clean(b)):
                        await trio.sleep(0.05)
                await reconnect(a, b)
            for node, other in ((a, b), (b, a)):
                assert len(node._links[other.key].connections) <= 2
                assert len(node._links[other.key]._scopes) <= 5
                assert len(list(iter_muxers(node))) <= 2
                assert not node._bulk._num_served or node._bulk._num_served.keys() == {other.key}
                assert len(node._desk._copies) <= 2 * 64
                assert not node._desk._arriving

    trio.run(main)
