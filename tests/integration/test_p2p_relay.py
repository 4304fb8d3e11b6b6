"""Peers that nobody can dial take part fully: over the connections they make, and through a third peer."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from hostile_mesh import ATTACKER, open_attacker, run, until

from psyche_py.p2p import punch
from psyche_py.p2p import relay as relay_module
from psyche_py.p2p.errors import RequestFailed, StreamBroken
from psyche_py.p2p.hint import EMPTY_HINT
from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo
from psyche_py.p2p.relay import RELAY_PROTOCOL


@pytest.fixture(autouse=True)
def keep_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where routers let no hole be punched; test_p2p_punch.py is about the others."""
    monkeypatch.setattr(punch, "PAUSES", ())


@asynccontextmanager
async def open_nodes(*announce: str | None) -> AsyncIterator[list[Libp2pNetwork]]:
    """One node per item; "none" announces no address. All allow each other and the attacker."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(open_libp2p_network(bytes([number + 1]) * 32, announce=item))
            for number, item in enumerate(announce)
        ]
        peers = [PeerInfo(node.key, node.hint) for node in nodes]
        for node in nodes:
            node.set_peers([*peers, PeerInfo(ATTACKER.public_key, EMPTY_HINT)])
        yield nodes


async def hear(node: Libp2pNetwork) -> bytes:
    with trio.fail_after(60):
        return (await node.announcements().receive()).body


async def echo(sender: bytes, body: bytes) -> bytes:
    return sender + body


def test_a_peer_that_only_dials_takes_part_without_a_relay() -> None:
    async def main() -> None:
        async with open_nodes("none", None) as (hidden, public):
            assert hidden.hint == EMPTY_HINT
            await until(lambda: hidden.num_connected == public.num_connected == 1)
            await hidden.publish(b"from behind a router")
            await public.publish(b"from outside")
            assert await hear(public) == b"from behind a router"
            assert await hear(hidden) == b"from outside"
            for source, target in ((hidden, public), (public, hidden)):
                payload = os.urandom(700_000)
                digest = source.store.put(payload)
                assert await target.fetch(digest, len(payload), [source.key], deadline_seconds=60) == payload
                source.set_request_handler("echo", echo)
                answer = await target.request(
                    source.key, "echo", b"!", max_response_bytes=99, deadline_seconds=60
                )
                assert answer == target.key + b"!"

    run(main)


def test_two_that_only_dial_meet_through_a_third() -> None:
    async def main() -> None:
        async with open_nodes("none", None, "none") as (a, relay, b):
            await until(lambda: a.connected_peers == b.connected_peers == {relay.key})
            await a.publish(b"word")
            assert await hear(b) == b"word"
            # a payload: the third has it because it needs it too
            payload = os.urandom(700_000)
            digest = a.store.put(payload)
            assert await relay.fetch(digest, len(payload), [a.key], deadline_seconds=60) == payload
            assert await b.fetch(digest, len(payload), [a.key], deadline_seconds=60) == payload
            assert a.stats.sent["blob"] == len(payload)
            assert b.connected_peers == {relay.key}, "no circuit for what the third has"
            # a request goes to one peer and no other
            a.set_request_handler("echo", echo)
            answer = await b.request(a.key, "echo", b"?", max_response_bytes=99, deadline_seconds=60)
            assert answer == b.key + b"?", "Noise has proved to it who asks"
            await until(lambda: a.connected_peers == {relay.key, b.key})
            assert b._links[a.key].ready is not None
            assert not b._links[a.key].is_direct
            # and what only the two have goes the same way
            only = a.store.put(os.urandom(300_000))
            assert len(await b.fetch(only, 300_000, [a.key], deadline_seconds=60)) == 300_000
            assert relay.stats.received["blob"] == len(payload), "it has seen ciphertext, not the blob"
            # it ends with the peer
            a.set_peers([PeerInfo(relay.key, relay.hint)])
            await until(lambda: a.key not in b.connected_peers)
            assert not a.stats.offences + b.stats.offences + relay.stats.offences

    run(main)


def test_without_anybody_in_between_there_is_no_way() -> None:
    async def main() -> None:
        async with open_nodes("none", "none") as (a, b):
            with pytest.raises(RequestFailed, match="no answer within") as caught:
                await b.request(a.key, "echo", b"", max_response_bytes=9, deadline_seconds=1)
            assert caught.value.peer_key == a.key

    run(main)


def test_a_peer_gets_only_so_many_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MAX_CIRCUITS_PER_PEER", 2)

    async def main() -> None:
        async with open_nodes("none", None) as (hidden, public), open_attacker(public) as (_host, connection):
            await until(lambda: hidden.key in public.connected_peers)
            answers = []
            for _turn in range(4):
                stream = await connection.open_stream(RELAY_PROTOCOL)
                await stream.write(b"\0" + hidden.key, 5)
                answers.append(await stream.read_exactly(1, 20))
            assert answers == [b"\1", b"\1", b"\0", b"\0"]
            stream = await connection.open_stream(RELAY_PROTOCOL)
            await stream.write(b"\0" + os.urandom(32), 5)  # nobody it knows
            assert await stream.read_exactly(1, 20) == b"\0"
            stream = await connection.open_stream(RELAY_PROTOCOL)
            await stream.write(b"\7" + hidden.key, 5)
            with pytest.raises(StreamBroken):
                await stream.read_exactly(1, 20)
            await until(lambda: public.stats.offences["relay_question_malformed"] == 1)

    run(main)


def test_nobody_is_who_a_relay_says_but_who_noise_proves() -> None:
    """A relay that lies about the caller brings a connection on which the handshake tells the truth."""

    async def main() -> None:
        async with (
            open_nodes("none", None) as (_hidden, public),
            open_attacker(public) as (_host, connection),
        ):
            stream = await connection.open_stream(RELAY_PROTOCOL)
            await stream.write(b"\1" + _hidden.key, 5)
            await stream.write(os.urandom(500), 5)
            with pytest.raises(StreamBroken):
                while await stream.read(100, 20):
                    pass
                raise StreamBroken("ended")
            await until(lambda: public.connected_peers >= {_hidden.key})
            assert len(public._links[_hidden.key].connections) == 1

    run(main)
