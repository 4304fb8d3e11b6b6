"""Whole libp2p nodes in one process, over loopback: what a run needs from the mesh."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio

from psyche_py.errors import RunStateError
from psyche_py.p2p import libp2p_link
from psyche_py.p2p import node as node_module
from psyche_py.p2p.errors import (
    FetchFailed,
    HintError,
    ListenFailed,
    PeerUnreachable,
    PortTaken,
    RequestFailed,
)
from psyche_py.p2p.hint import EMPTY_HINT, Address, unpack_hint
from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo


def run(main: Callable[[], Awaitable[None]], seconds: float = 240) -> None:
    async def bounded() -> None:
        with trio.fail_after(seconds):
            await main()

    trio.run(bounded)


def seed(number: int) -> bytes:
    return bytes([number + 1]) * 32


def introduce(nodes: Sequence[Libp2pNetwork]) -> None:
    for node in nodes:
        node.set_peers([PeerInfo(other.key, other.hint) for other in nodes])


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


@asynccontextmanager
async def open_mesh(num: int) -> AsyncIterator[list[Libp2pNetwork]]:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(open_libp2p_network(seed(n))) for n in range(num)]
        introduce(nodes)
        await until(lambda: all(node.num_connected == num - 1 for node in nodes))
        yield nodes


async def hear(node: Libp2pNetwork) -> bytes:
    with trio.fail_after(60):
        return (await node.announcements().receive()).body


def test_five_nodes_hear_everything_once() -> None:
    async def main() -> None:
        async with open_mesh(5) as nodes:
            for turn in range(4):
                for number, node in enumerate(nodes):
                    await node.publish(bytes([turn, number]))
            for number, node in enumerate(nodes):
                heard = [await hear(node) for _ in range(16)]
                assert sorted(heard) == sorted(
                    bytes([turn, other]) for turn in range(4) for other in range(5) if other != number
                )
            await trio.sleep(0.2)
            for node in nodes:
                assert node.announcements().statistics().current_buffer_used == 0
                assert not {key for key in node.stats.dropped if key.startswith("frame")}
                assert node.bytes_sent == node.stats.sent["announcement"] > 0

    run(main)


def test_nodes_tell_each_other_whom_they_are_connected_to_also_after_a_change() -> None:
    async def main() -> None:
        async with open_mesh(3) as (a, b, c):
            for node, one, other in itertools.permutations((a, b, c)):
                await until(
                    lambda node=node, one=one, other=other: node._second.is_linked(one.key, other.key)
                )
            a.set_peers([PeerInfo(c.key, c.hint)])  # a and b are not connected any more
            await until(lambda: not c._second.is_linked(a.key, b.key))
            await until(lambda: not c._second.is_linked(b.key, a.key))
            await a.publish(b"around")
            assert [await hear(b), await hear(c)] == [b"around"] * 2

    run(main)


def test_a_burst_does_not_push_out_what_the_consumer_had_no_turn_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_module, "INBOX_SIZE", 150)
    monkeypatch.setattr(node_module, "INBOX_PER_TURN", 4)

    async def main() -> None:
        async with open_mesh(4) as nodes:
            heard = 0

            async def listen() -> None:
                nonlocal heard
                async for _ in nodes[0].announcements():
                    heard += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                for number in range(300):
                    for node in nodes[1:]:
                        await node.publish(number.to_bytes(2, "little"))
                await until(lambda: heard == 900)
                nursery.cancel_scope.cancel()
            assert not nodes[0].stats.dropped["inbox_full"]

    run(main)


def test_announcements_go_around_a_missing_link() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            a, b, c = [await stack.enter_async_context(open_libp2p_network(seed(n))) for n in range(3)]
            a.set_peers([PeerInfo(b.key, b.hint)])
            b.set_peers([PeerInfo(a.key, a.hint), PeerInfo(c.key, c.hint)])
            # c knows a as a signer but has no connection to it, since a does not know c
            c.set_peers([PeerInfo(b.key, b.hint), PeerInfo(a.key, EMPTY_HINT)])
            await until(lambda: b.num_connected == 2)
            await a.publish(b"around")
            assert await hear(c) == b"around"

    run(main)


def test_a_late_peer_gets_what_was_said_before() -> None:
    async def main() -> None:
        async with open_mesh(2) as nodes:
            await nodes[0].publish(b"early")
            assert await hear(nodes[1]) == b"early"
            async with open_libp2p_network(seed(2)) as late:
                introduce([*nodes, late])
                assert await hear(late) == b"early"
                await trio.sleep(0.2)
                assert late.announcements().statistics().current_buffer_used == 0

    run(main)


def test_a_stranger_gets_in_neither_by_dialing_nor_by_being_dialed() -> None:
    async def main() -> None:
        async with open_mesh(2) as (a, b), open_libp2p_network(seed(9)) as stranger:
            stranger.set_peers([PeerInfo(a.key, a.hint), PeerInfo(b.key, b.hint)])
            await trio.sleep(1.5)
            assert stranger.stats.dropped["connection_refused"] + stranger.stats.dropped["dial_failed"] >= 2
            assert stranger.num_connected == 0
            assert (a.connected_peers, b.connected_peers) == ({b.key}, {a.key})
            with pytest.raises(PeerUnreachable, match="not a client"):
                await a.request(stranger.key, "x", b"", max_response_bytes=1, deadline_seconds=1)
            await stranger.publish(b"let me in")
            await a.publish(b"between us")
            assert await hear(b) == b"between us"
            assert stranger.announcements().statistics().current_buffer_used == 0

    run(main)


def test_nobody_is_dialed_or_let_in_before_set_peers() -> None:
    async def main() -> None:
        async with open_libp2p_network(seed(0)) as a, open_libp2p_network(seed(1)) as b:
            a.set_peers([PeerInfo(b.key, b.hint)])
            await trio.sleep(1)
            assert (a.num_connected, b.num_connected) == (0, 0)
            b.set_peers([PeerInfo(a.key, a.hint)])
            await until(lambda: a.num_connected == b.num_connected == 1)

    run(main)


def test_a_removed_peer_is_cut_off_at_once() -> None:
    async def main() -> None:
        async with open_mesh(3) as (a, b, c):
            a.set_peers([PeerInfo(b.key, b.hint)])
            b.set_peers([PeerInfo(a.key, a.hint)])
            assert a.connected_peers == {b.key}
            await until(lambda: c.num_connected == 0)
            await c.publish(b"still here?")
            await a.publish(b"no")
            assert await hear(b) == b"no"
            assert b.announcements().statistics().current_buffer_used == 0
            introduce([a, b, c])
            await until(lambda: all(node.num_connected == 2 for node in (a, b, c)))

    run(main)


def test_blob_from_the_sender_then_from_another_holder() -> None:
    async def main() -> None:
        async with open_mesh(3) as (a, b, c):
            data = os.urandom(3_000_000)
            digest = a.store.put(data)
            assert await b.fetch(digest, len(data), [a.key], deadline_seconds=60) == data
            assert (a.stats.sent["blob"], b.stats.received["blob"]) == (len(data), len(data))
            # the sender dies, the other holder is not even named
            introduce([b, c])
            assert await c.fetch(digest, len(data), [a.key], deadline_seconds=60) == data
            with pytest.raises(FetchFailed):
                await c.fetch(b"x" * 32, 5, [a.key, b.key], deadline_seconds=0.5)

    run(main)


def test_a_sender_that_dies_in_the_middle_is_replaced() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            a, b, c = [await stack.enter_async_context(open_libp2p_network(seed(n))) for n in range(3)]
            introduce([a, b, c])
            await until(lambda: all(node.num_connected == 2 for node in (a, b, c)))
            data = os.urandom(8_000_000)
            digest = a.store.put(data)
            b.store.put(data)
            async with trio.open_nursery() as nursery:
                fetch = partial(c.fetch, digest, len(data), [a.key, b.key], deadline_seconds=60)
                nursery.start_soon(fetch)
                await until(lambda: a.stats.sent["blob"] > 1_000_000)
                introduce([b, c])
            assert c.store.get(digest) == data
            assert c.stats.received["blob"] < 2 * len(data)

    run(main)


def test_a_holder_with_other_bytes_is_skipped() -> None:
    async def main() -> None:
        async with open_mesh(3) as (a, b, c):
            data = os.urandom(100_000)
            digest = b.store.put(data)
            a.store._blobs[digest] = bytes(len(data))
            assert await c.fetch(digest, len(data), [a.key, b.key], deadline_seconds=60) == data
            a.store._blobs[digest] = bytes(5)
            c.store.drop(digest)
            assert await c.fetch(digest, len(data), [a.key, b.key], deadline_seconds=60) == data

    run(main)


def test_many_blobs_at_once() -> None:
    async def main() -> None:
        async with open_mesh(3) as nodes:
            blobs = [[os.urandom(300_000) for _ in range(4)] for _ in nodes]
            digests = [
                [node.store.put(blob) for blob in mine] for node, mine in zip(nodes, blobs, strict=True)
            ]
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    for owner, listed in zip(nodes, digests, strict=True):
                        for digest in listed:
                            fetch = partial(node.fetch, digest, 300_000, [owner.key], deadline_seconds=60)
                            nursery.start_soon(fetch)
            assert all(node.store.total_bytes == 12 * 300_000 for node in nodes)

    run(main)


def test_requests() -> None:
    async def main() -> None:
        async with open_mesh(2) as (a, b):

            async def echo(sender: bytes, body: bytes) -> bytes:
                return sender + body

            async def broken(sender: bytes, body: bytes) -> bytes:
                raise KeyError("bug")

            b.set_request_handler("echo", echo)
            b.set_request_handler("broken", broken)
            b.set_request_handler("slow", lambda sender, body: trio.sleep_forever())

            async def ask(kind: str, body: bytes, size: int) -> bytes:
                return await a.request(b.key, kind, body, max_response_bytes=size, deadline_seconds=1)

            big = os.urandom(1 << 20)
            assert await ask("echo", big, 2 << 20) == a.key + big
            logging.getLogger("psyche_py.p2p").setLevel(logging.CRITICAL)
            for kind, size, reason in (
                ("broken", 9, "HANDLER_FAILED"),
                ("slow", 9, "no answer within 1 s"),
                ("unknown", 9, "NO_HANDLER"),
                ("echo", 31, "TOO_LARGE"),
            ):
                with pytest.raises(RequestFailed, match=reason):
                    await ask(kind, b"", size)
            logging.getLogger("psyche_py.p2p").setLevel(logging.NOTSET)
            assert await ask("echo", b"alive", 100) == a.key + b"alive"

    run(main)


def test_a_peer_that_restarts_on_another_port_is_found_again() -> None:
    async def main() -> None:
        async with open_mesh(2) as (a, b):
            async with open_libp2p_network(seed(2)) as first:
                introduce([a, b, first])
                await until(lambda: all(node.num_connected == 2 for node in (a, b, first)))
                old_hint = first.hint
            await until(lambda: a.num_connected == b.num_connected == 1)
            async with open_libp2p_network(seed(2)) as second:
                assert second.key == first.key
                assert second.hint != old_hint
                introduce([a, b, second])
                await until(lambda: all(node.num_connected == 2 for node in (a, b, second)))
                await second.publish(b"back")
                assert [await hear(a), await hear(b)] == [b"back", b"back"]

    run(main)


def test_a_restarted_peer_that_moved_finds_the_others_by_itself() -> None:
    """The others still have its old address: only the new life can dial."""

    async def main() -> None:
        async with open_libp2p_network(seed(0)) as a:
            async with open_libp2p_network(seed(1)) as first:
                old = PeerInfo(first.key, first.hint)
                introduce([a, first])
                await until(lambda: a.num_connected == first.num_connected == 1)
            await until(lambda: a.num_connected == 0)
            async with open_libp2p_network(seed(1)) as second:
                a.set_peers([old])
                second.set_peers([PeerInfo(a.key, a.hint)])
                await until(lambda: a.num_connected == second.num_connected == 1)

    run(main)


def test_both_dial_at_once() -> None:
    """Two connections to one peer are no problem: everything still arrives, once."""

    async def main() -> None:
        async with open_libp2p_network(seed(0)) as a, open_libp2p_network(seed(1)) as b:
            for link_owner in (a, b):
                link_owner.set_peers([PeerInfo(other.key, EMPTY_HINT) for other in (a, b)])
            addresses = {node.key: unpack_hint(node.hint) for node in (a, b)}
            async with trio.open_nursery() as nursery:
                for node, other in ((a, b), (b, a)):
                    nursery.start_soon(node._dial, other.key, addresses[other.key])
            await until(lambda: a.num_connected == b.num_connected == 1)
            for number in range(50):
                await a.publish(bytes([number]))
                await b.publish(bytes([number]))
            assert sorted([await hear(a) for _ in range(50)]) == [bytes([n]) for n in range(50)]
            assert sorted([await hear(b) for _ in range(50)]) == [bytes([n]) for n in range(50)]

    run(main)


def test_a_hung_peer_is_noticed_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from psyche_py.p2p import libp2p_services

    monkeypatch.setattr(libp2p_link, "PING_SECONDS", 0.2)
    monkeypatch.setattr(libp2p_services, "PING_DEADLINE_SECONDS", 0.5)

    async def main() -> None:
        async with open_mesh(2) as (a, b):

            async def no_answer(stream: object) -> None:
                await trio.sleep_forever()

            for connection in a._links[b.key].connections:
                a._host.set_stream_handler(libp2p_services.PING_PROTOCOL, no_answer)
                connection._conn.muxed_conn.secured_conn.read = lambda n=None: trio.sleep_forever()
            await until(lambda: b.num_connected == 0)

    run(main)


def test_a_taken_port_and_an_impossible_address_are_explained() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(PortTaken) as caught:
                async with open_libp2p_network(seed(0), listen_port=port):
                    pass
            assert str(port) in str(caught.value)
            assert caught.value.exit_code == 5
        async with open_libp2p_network(seed(0)) as a:
            address = unpack_hint(a.hint)
            assert address is not None
            with pytest.raises(PortTaken):
                async with open_libp2p_network(seed(1), listen_port=address.port):
                    pass
        for host in ("198.51.100.7", "no-such-host.invalid"):
            with pytest.raises(ListenFailed):
                async with open_libp2p_network(seed(0), listen_host=host):
                    pass

    run(main)


def test_the_announced_address() -> None:
    async def main() -> None:
        async with open_libp2p_network(seed(0), announce="node.example:4001") as a:
            assert unpack_hint(a.hint) == Address("node.example", 4001)
        async with open_libp2p_network(seed(0), announce="203.0.113.7") as a:
            address = unpack_hint(a.hint)
            assert address is not None
            assert address.host == "203.0.113.7"
        async with open_libp2p_network(seed(0), listen_host="0.0.0.0") as a:
            assert unpack_hint(a.hint) is not None
        async with open_libp2p_network(seed(0), listen_host="localhost") as a:
            address = unpack_hint(a.hint)
            assert address is not None
            assert address.host in ("127.0.0.1", "::1")
        with pytest.raises(HintError):
            async with open_libp2p_network(seed(0), announce="not an address"):
                pass

    run(main)


def test_errors_of_the_caller_keep_their_class_and_closing_is_quick_and_complete() -> None:
    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        with pytest.raises(RunStateError):
            async with open_mesh(3):
                raise RunStateError("paused")
        started = trio.current_time()
        async with open_libp2p_network(seed(0)) as a:
            consumer = a.announcements()
        assert trio.current_time() - started < 2
        assert [item async for item in consumer] == []
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= before)

    run(main)


def test_what_was_published_last_still_leaves() -> None:
    async def main() -> None:
        async with open_libp2p_network(seed(0)) as a:
            async with open_libp2p_network(seed(1)) as b:
                introduce([a, b])
                await until(lambda: a.num_connected == b.num_connected == 1)
                await b.publish(b"good-bye")
            assert await hear(a) == b"good-bye"

    run(main)
