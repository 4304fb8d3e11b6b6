"""From a circuit to a direct connection, over loopback: nothing is lost, and a failure changes nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trio
from hostile_mesh import ATTACKER, ignore, run, until

from psyche_py.p2p import node as node_module
from psyche_py.p2p import punch
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.frames import Have
from psyche_py.p2p.hint import EMPTY_HINT, pack_hint, unpack_hint
from psyche_py.p2p.identity import KEY_BYTES, SigningKey
from psyche_py.p2p.libp2p_adapter import THROUGH_RELAY, Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.libp2p_services import PING_PROTOCOL, serve_pings
from psyche_py.p2p.port import PeerInfo, Way
from psyche_py.p2p.punch import PUNCH_PROTOCOL
from psyche_py.p2p.relay import RELAY_PROTOCOL
from psyche_py.p2p.seen import SEEN_PROTOCOL

if TYPE_CHECKING:
    from psyche_py.p2p.libp2p_host import MeshConnection, MeshHost
    from psyche_py.p2p.libp2p_stream import MeshStream

NEVER = 1e6


@asynccontextmanager
async def open_homes(*others: bytes) -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork, Libp2pNetwork]]:
    """Two that nobody dials, the smaller key first, and a public one; connected as far as they can be."""
    async with AsyncExitStack() as stack:

        async def start(seed: int, announce: str | None) -> Libp2pNetwork:
            network = open_libp2p_network(bytes([seed]) * 32, announce=announce)
            return await stack.enter_async_context(network)

        a, b, relay = await start(1, "none"), await start(2, "none"), await start(3, None)
        small, large = sorted((a, b), key=lambda node: node.key)
        nodes = (small, large, relay)
        for node in nodes:
            node.set_request_handler("echo", echo)
            introduce(node, nodes, others)
        await until(lambda: small.connected_peers == large.connected_peers == {relay.key})
        yield nodes


def introduce(
    node: Libp2pNetwork, nodes: Sequence[Libp2pNetwork], others: Sequence[bytes] = (), seed: bytes = b""
) -> None:
    known = [PeerInfo(other.key, other.hint) for other in nodes]
    node.set_peers([*known, *(PeerInfo(key, EMPTY_HINT) for key in others)], seed)


async def echo(sender: bytes, body: bytes) -> bytes:
    return sender + body


async def ask(node: Libp2pNetwork, other: Libp2pNetwork) -> None:
    """A request, which makes a circuit where there is no connection."""
    answer = await node.request(other.key, "echo", b"?", max_response_bytes=99, deadline_seconds=60)
    assert answer == node.key + b"?"


def get_way(node: Libp2pNetwork, other: Libp2pNetwork) -> Way | None:
    return node._links[other.key].way


def is_punched(one: Libp2pNetwork, other: Libp2pNetwork) -> bool:
    return get_way(one, other) is get_way(other, one) is Way.PUNCHED


async def until_circuit_is_gone(small: Libp2pNetwork, large: Libp2pNetwork, relay: Libp2pNetwork) -> None:
    await until(
        lambda: (
            is_punched(small, large)
            and not small._links[large.key].has_circuit
            and not large._links[small.key].has_circuit
            and relay._relay.num_circuits == 0
        )
    )


@pytest.mark.parametrize("who_asks", [0, 1])
def test_a_circuit_becomes_a_direct_connection(who_asks: int) -> None:
    async def main() -> None:
        async with open_homes() as (small, large, relay):
            pair = (small, large) if who_asks == 0 else (large, small)
            await ask(*pair)
            await until_circuit_is_gone(small, large, relay)
            assert small.ways == large.ways == {Way.DIRECT: 1, Way.PUNCHED: 1}
            assert relay.ways == {Way.DIRECT: 2}
            assert small.stats.punches == {"tried": 1, "connected": 1}
            assert large.stats.punches == {"connected": 1}
            for one, other in ((small, large), (large, small)):
                await ask(one, other)
                payload = os.urandom(700_000)
                digest = one.store.put(payload)
                assert await other.fetch(digest, len(payload), [one.key], deadline_seconds=60) == payload
                assert one.stats.sent["blob"] == len(payload)
            assert relay.stats.received["blob"] == 0
            assert relay._relay.num_circuits == 0
            assert not small.stats.offences + large.stats.offences + relay.stats.offences
            assert len(relay._seen.sightings) <= 2

    run(main)


def test_dialing_through_a_relay_lasts_as_long_as_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who dials again whenever there is no connection yet would make one circuit after the other."""
    monkeypatch.setattr(punch, "PAUSES", ())

    async def main() -> None:
        async with open_homes() as (small, large, relay):
            await small._dial(large.key, THROUGH_RELAY)
            assert len(small._links[large.key].connections) == 1
            assert relay._relay.num_circuits == 1
            small._links[large.key].connections[0].cut()
            await until(lambda: not small._links[large.key].connections)

            async def fail(key: bytes, stream: MeshStream) -> None:
                raise PeerUnreachable(key, "the handshake failed")

            monkeypatch.setattr(small._host, "dial_through", fail)
            with trio.fail_after(60):
                await small._dial(large.key, THROUGH_RELAY)
            assert not small._links[large.key].connections

    run(main)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever somebody looks whether a circuit may go; which is often."""
    from psyche_py.p2p.libp2p_host import MeshConnection

    look, looks = MeshConnection.num_streams_in_use, list[int]()

    def look_and_note(connection: MeshConnection) -> int:
        looks.append(look.fget(connection))
        return looks[-1]

    monkeypatch.setattr(MeshConnection, "num_streams_in_use", property(look_and_note))
    monkeypatch.setattr(punch, "RETIRE_POLL_SECONDS", 0.01)
    return looks


class Brake:
    """Holds a writer before it writes what ``is_meant(stream, data)``; later ones are not held."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[MeshStream, bytes | memoryview], bool]
    ) -> None:
        from psyche_py.p2p.libp2p_stream import MeshStream

        self.holds, self.loosened = trio.Event(), trio.Event()
        write = MeshStream.write

        async def write_slowly(stream: MeshStream, data: bytes | memoryview, seconds: float) -> None:
            if not self.loosened.is_set() and is_meant(stream, data):
                self.holds.set()
                await self.loosened.wait()
            await write(stream, data, seconds)

        monkeypatch.setattr(MeshStream, "write", write_slowly)


async def punch_while_in_use(
    nodes: tuple[Libp2pNetwork, Libp2pNetwork, Libp2pNetwork],
    looks: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is a direct connection beside the circuit, which has been looked at and left alone."""
    small, large, _ = nodes
    monkeypatch.setattr(punch, "PAUSES", (0.0,))
    small._links[large.key].notify()
    await until(lambda: is_punched(small, large))
    looks.clear()
    await until(lambda: len(looks) > 5)
    assert small._links[large.key].has_circuit


@pytest.mark.parametrize("who_speaks", [0, 1])
def test_no_announcement_is_lost_on_the_way(
    who_speaks: int, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay passes nothing on and nobody asks for what is missing: the words have one way only."""
    monkeypatch.setattr(punch, "PAUSES", ())
    monkeypatch.setattr(node_module, "REPAIR_SECONDS", NEVER)
    monkeypatch.setattr(Libp2pNetwork, "_spread", lambda *ignored: None)
    monkeypatch.setattr(
        Libp2pNetwork, "_make_greeting", lambda *ignored: Have(0.0, 0.0, frozenset()).encode()
    )

    async def main() -> None:
        async with open_homes() as nodes:
            speaker, hearer = nodes[who_speaks], nodes[1 - who_speaks]
            brake = Brake(
                monkeypatch, lambda stream, data: stream.key == hearer.key and b"held" in bytes(data)
            )
            await ask(hearer, speaker)
            await until(lambda: get_way(speaker, hearer) is get_way(hearer, speaker) is Way.RELAYED)
            await speaker.publish(b"held")
            await brake.holds.wait()
            await punch_while_in_use(nodes, looks, monkeypatch)
            brake.loosened.set()
            await speaker.publish(b"next")
            with trio.fail_after(60):
                words = {(await hearer.announcements().receive()).body for _ in range(2)}
            assert words == {b"held", b"next"}
            await until_circuit_is_gone(*nodes)

    run(main)


def test_a_blob_that_is_under_way_is_not_broken_off(
    looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punch, "PAUSES", ())

    async def main() -> None:
        async with open_homes() as nodes:
            small, large, _ = nodes
            await ask(large, small)
            payload = os.urandom(3_000_000)
            digest = small.store.put(payload)
            half = len(payload) // 2
            brake = Brake(
                monkeypatch,
                lambda stream, data: len(data) > 100_000 and small.stats.sent["blob"] > half,
            )
            async with trio.open_nursery() as nursery:

                async def fetch() -> None:
                    data = await large.fetch(digest, len(payload), [small.key], deadline_seconds=100)
                    assert data == payload

                nursery.start_soon(fetch)
                await brake.holds.wait()
                await punch_while_in_use(nodes, looks, monkeypatch)
                brake.loosened.set()
            assert small.stats.sent["blob"] == len(payload), "each byte was sent once, over the circuit"
            await until_circuit_is_gone(*nodes)

    run(main)


def test_where_it_fails_the_circuit_stays_and_the_next_epoch_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(punch, "MIN_PORT", 65_536)  # every place is refused
    monkeypatch.setattr(punch, "PAUSES", (0.0, 0.01, 0.01))

    async def main() -> None:
        async with open_homes() as nodes:
            small, large, relay = nodes
            await ask(large, small)
            await until(lambda: small.stats.punches["failed"] == 3)
            await ask(small, large)
            assert get_way(small, large) is get_way(large, small) is Way.RELAYED
            only = small.store.put(os.urandom(300_000))
            assert len(await large.fetch(only, 300_000, [small.key], deadline_seconds=60)) == 300_000
            assert small.stats.punches == {"tried": 3, "failed": 3}, "and no more in this epoch"
            for node in nodes:
                introduce(node, nodes, seed=b"epoch 2")
            await until(lambda: small.stats.punches["failed"] == 6)
            monkeypatch.setattr(punch, "MIN_PORT", 1_024)
            for node in nodes:
                introduce(node, nodes, seed=b"epoch 3")
            await until_circuit_is_gone(small, large, relay)
            assert not small.stats.offences + large.stats.offences + relay.stats.offences

    run(main)


def test_whoever_gets_to_know_an_address_dials_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large run a peer that can be dialed meets one that cannot through a relay, and is dialed then."""
    monkeypatch.setattr(punch, "MIN_PORT", 65_536)
    monkeypatch.setattr(punch, "PAUSES", (0.0,))

    async def main() -> None:
        async with open_homes() as nodes:
            small, large, relay = nodes
            await ask(small, large)
            await until(lambda: small.stats.punches["failed"] == 1)
            small._hint = pack_hint("127.0.0.1", small.port)  # its router forwards a port now
            for node in nodes:
                introduce(node, nodes, seed=b"epoch 2")
            await until(lambda: get_way(small, large) is get_way(large, small) is Way.DIRECT)
            await until(lambda: relay._relay.num_circuits == 0)

    run(main)


def test_when_the_direct_connection_ends_first_the_circuit_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punch, "RETIRE_POLL_SECONDS", NEVER)
    monkeypatch.setattr(punch, "PAUSES", (0.0, NEVER))

    async def main() -> None:
        async with open_homes() as (small, large, relay):
            await ask(large, small)
            await until(lambda: is_punched(small, large))
            link = small._links[large.key]
            (direct,) = [item for item in link.connections if not item.is_relayed]
            direct.cut()
            await until(lambda: get_way(small, large) is get_way(large, small) is Way.RELAYED)
            assert relay._relay.num_circuits == 1, "the same one"
            await ask(small, large)
            await small.publish(b"still here")
            with trio.fail_after(60):
                assert (await large.announcements().receive()).body == b"still here"

    run(main)


# ---- hostile peers --------------------------------------------------------------------------------------

Handler = Callable[["MeshStream"], Awaitable[None]]


@asynccontextmanager
async def open_hostile_home(
    relay: Libp2pNetwork, on_punch: Handler
) -> AsyncIterator[tuple[MeshHost, list[MeshConnection]]]:
    """An allowed peer behind a router that does what it likes with a call to punch a hole."""
    from psyche_py.p2p.libp2p_host import MeshHost

    connections: list[MeshConnection] = []
    host = MeshHost(b"\x77" * 32, lambda key: True, connections.append)

    async def take_in(stream: MeshStream) -> None:
        await stream.read_exactly(1 + KEY_BYTES, 10)
        await host.take_in_relayed(stream)

    from psyche_py.p2p.libp2p_link import FLOOD_PROTOCOL

    host.set_stream_handler(PING_PROTOCOL, serve_pings)
    host.set_stream_handler(FLOOD_PROTOCOL, ignore)
    host.set_stream_handler(RELAY_PROTOCOL, take_in)
    host.set_stream_handler(PUNCH_PROTOCOL, on_punch)
    async with host.run("127.0.0.1", 0):
        address = unpack_hint(relay.hint)
        assert address is not None
        await host.dial(relay.key, address.host, address.port)
        try:
            yield host, connections
        finally:
            for connection in connections:
                connection.cut()
            with trio.move_on_after(1):
                await host.wait_until_disconnected()


def test_lies_to_a_caller_are_counted_until_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punch, "PAUSES", (0.0,) * 20)
    assert SigningKey(b"\1" * 32).public_key < ATTACKER.public_key

    async def lie(stream: MeshStream) -> None:
        await stream.write(b"\x2a" + os.urandom(100), 5)

    async def main() -> None:
        async with open_homes(ATTACKER.public_key) as (small, large, relay):
            async with open_hostile_home(relay, lie):
                await until(lambda: ATTACKER.public_key in relay.connected_peers)
                with suppress(Exception):  # it has no answer to a request; the circuit is what we want
                    await small.request(
                        ATTACKER.public_key, "echo", b"", max_response_bytes=9, deadline_seconds=30
                    )
                await until(lambda: small.stats.offences["punch_malformed"] == 8)
                assert ATTACKER.public_key not in small.connected_peers, "disconnected for the epoch"
            await ask(small, large)
            await until_circuit_is_gone(small, large, relay)

    run(main)


def test_garbage_on_both_protocols_is_counted() -> None:
    async def main() -> None:
        async with open_homes(ATTACKER.public_key) as (small, large, relay):
            async with open_hostile_home(relay, ignore) as (_, connections):
                await until(lambda: ATTACKER.public_key in relay.connected_peers)
                for protocol, said in (
                    (PUNCH_PROTOCOL, b"\0"),
                    (PUNCH_PROTOCOL, b"\xff" + os.urandom(200)),
                    (SEEN_PROTOCOL, b"\7" + bytes(32)),
                    (SEEN_PROTOCOL, os.urandom(1)),  # and no more: not even an offence for a while
                ):
                    stream = await connections[0].open_stream(protocol)
                    await stream.write(said, 5)
                    if len(said) > 1 or said == b"\0":
                        with pytest.raises(StreamBroken):
                            await stream.read_exactly(1, 20)
                await until(
                    lambda: (
                        relay.stats.offences["punch_malformed"] == 2
                        and relay.stats.offences["seen_question_malformed"] == 1
                    )
                )
                # a call over a direct connection is answered with no: there is nothing to gain
                stream = await connections[0].open_stream(PUNCH_PROTOCOL)
                await stream.write(b"\1" + small.key, 5)
                assert ATTACKER.public_key < relay.key, "it may call"
                assert await stream.read_exactly(1, 20) == bytes([punch.NOBODY])
            await ask(small, large)
            await until_circuit_is_gone(small, large, relay)

    run(main)
