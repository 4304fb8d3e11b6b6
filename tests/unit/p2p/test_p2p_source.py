"""Bytes that are read when they are asked for, and taken from one peer."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from psyche_py.p2p.errors import FetchFailed, PeerUnreachable
from psyche_py.p2p.libp2p_adapter import open_libp2p_network
from psyche_py.p2p.memory import Link, MemoryHub
from psyche_py.p2p.port import Network, PeerInfo
from psyche_py.p2p.transfer import HolderAtFault

NAME = b"\7" * 32
DATA = b"model" * 100_000


async def use_a_source(holder: Network, friend: Network, stranger: Network) -> None:
    """What every adapter must do."""
    nodes = (holder, friend, stranger)
    for node in nodes:
        node.set_peers([PeerInfo(other.key, other.hint) for other in nodes])
    while any(node.num_connected < 2 for node in nodes):
        await trio.sleep(0.05)

    def read(asker: bytes, name: bytes) -> memoryview | None:
        return memoryview(DATA) if (asker, name) == (friend.key, NAME) else None

    with pytest.raises(PeerUnreachable):
        await friend.fetch_from(holder.key, NAME, len(DATA), deadline_seconds=20)
    holder.set_blob_source(read)
    for _ in range(3):  # more often than a blob is given away before others have to serve it
        assert await friend.fetch_from(holder.key, NAME, len(DATA), deadline_seconds=20) == DATA
    assert not friend.store.has(NAME), "nobody has checked it, so it is nothing to pass on"
    with pytest.raises(PeerUnreachable):
        await stranger.fetch_from(holder.key, NAME, len(DATA), deadline_seconds=20)
    with pytest.raises(HolderAtFault):
        await friend.fetch_from(holder.key, NAME, len(DATA) - 1, deadline_seconds=20)
    with pytest.raises(FetchFailed):  # by its name it is no blob: the name is not its hash
        await friend.fetch(NAME, len(DATA), [holder.key], deadline_seconds=1)


def test_over_the_in_memory_mesh() -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(hub.open_network(bytes([n]) * 32)) for n in (1, 2, 3)]
            await use_a_source(*nodes)
            hub.set_link(nodes[0].key, nodes[1].key, Link(bytes_per_second=100.0))
            with pytest.raises(PeerUnreachable, match="did not deliver within 5 s"):
                await nodes[1].fetch_from(nodes[0].key, NAME, len(DATA), deadline_seconds=5)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_over_libp2p() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(open_libp2p_network(bytes([n]) * 32)) for n in (1, 2, 3)]
            await use_a_source(*nodes)

    trio.run(main)
