"""Two nodes that are connected, and an attacker who may connect to them and does what it likes there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import trio

from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.hint import EMPTY_HINT, Address, unpack_hint
from psyche_py.p2p.identity import SigningKey
from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.libp2p_link import FLOOD_PROTOCOL
from psyche_py.p2p.libp2p_services import PING_PROTOCOL, serve_pings
from psyche_py.p2p.port import PeerInfo

if TYPE_CHECKING:
    from psyche_py.p2p.libp2p_host import MeshConnection, MeshHost
    from psyche_py.p2p.libp2p_stream import MeshStream

ATTACKER = SigningKey(b"\x77" * 32)


def run(main: Callable[[], Awaitable[None]], seconds: float = 240) -> None:
    async def bounded() -> None:
        with trio.fail_after(seconds):
            await main()

    trio.run(bounded)


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


def get_address(node: Libp2pNetwork) -> Address:
    address = unpack_hint(node.hint)
    assert address is not None
    return address


@asynccontextmanager
async def open_victims() -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork]]:
    """Two nodes that are connected and also allow the attacker."""
    async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
        for node, other in ((a, b), (b, a)):
            node.set_peers([PeerInfo(other.key, other.hint), PeerInfo(ATTACKER.public_key, EMPTY_HINT)])
        await until(lambda: b.key in a.connected_peers and a.key in b.connected_peers)
        yield a, b
        await check_service(a, b)


async def check_service(a: Libp2pNetwork, b: Libp2pNetwork) -> None:
    """The two still hear each other, and nothing but each other."""
    word = os.urandom(8)
    await a.publish(word)
    with trio.fail_after(60):
        heard = await b.announcements().receive()
    assert (heard.sender_key, heard.body) == (a.key, word)
    assert b.announcements().statistics().current_buffer_used == 0
    digest = a.store.put(word)
    assert await b.fetch(digest, 8, [a.key], deadline_seconds=60) == word


async def send_and_be_cut_off(connection: MeshConnection, data: bytes) -> None:
    """The announcement stream takes the data, and the whole connection ends."""
    with suppress(StreamBroken, PeerUnreachable):
        stream = await connection.open_stream(FLOOD_PROTOCOL)
        await stream.write(data, 5)
    with trio.fail_after(60):
        await connection.closed.wait()


async def ignore(stream: MeshStream) -> None:
    while await stream.read(65_536, 60):
        pass


@asynccontextmanager
async def open_attacker(target: Libp2pNetwork) -> AsyncIterator[tuple[MeshHost, MeshConnection]]:
    """A host that may connect to the target and does whatever it likes there."""
    from psyche_py.p2p.libp2p_host import MeshHost

    connections: list[MeshConnection] = []
    host = MeshHost(b"\x77" * 32, lambda key: True, connections.append)
    host.set_stream_handler(PING_PROTOCOL, serve_pings)  # else it would be cut off as hung
    host.set_stream_handler(FLOOD_PROTOCOL, ignore)
    async with host.run("127.0.0.1", 0):
        address = get_address(target)
        await host.dial(target.key, address.host, address.port)
        try:
            yield host, connections[0]
        finally:
            for connection in connections:
                connection.cut()
            with trio.move_on_after(1):
                await host.wait_until_disconnected()
