"""The in-memory mesh: same behaviour as the real one, under a mock clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock

from psyche_py.errors import RunStateError
from psyche_py.p2p import node as node_module
from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.errors import FetchFailed, MessageError, PeerUnreachable, RequestFailed
from psyche_py.p2p.memory import Link, MemoryHub, MemoryNetwork
from psyche_py.p2p.overlay import PUSH_RINGS, choose_neighbours
from psyche_py.p2p.port import Announcement, PeerInfo


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


@asynccontextmanager
async def open_mesh(
    num: int, hub: MemoryHub | None = None
) -> AsyncIterator[tuple[MemoryHub, list[MemoryNetwork]]]:
    hub = hub if hub is not None else MemoryHub()
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(hub.open_network(bytes([n + 1]) * 32)) for n in range(num)]
        introduce(nodes)
        yield hub, nodes


def introduce(nodes: list[MemoryNetwork]) -> None:
    for node in nodes:
        node.set_peers([PeerInfo(other.key, other.hint) for other in nodes])


async def drain(node: MemoryNetwork, seconds: float = 1.0) -> list[Announcement]:
    heard: list[Announcement] = []
    with trio.move_on_after(seconds):
        while True:
            heard.append(await node.announcements().receive())
    return heard


def test_everybody_hears_everybody_once() -> None:
    async def main() -> None:
        async with open_mesh(5) as (_, nodes):
            assert [node.num_connected for node in nodes] == [4] * 5
            for number, node in enumerate(nodes):
                await node.publish(bytes([number]))
            for number, node in enumerate(nodes):
                heard = {(item.sender_key, item.body) for item in await drain(node)}
                assert heard == {(o.key, bytes([n])) for n, o in enumerate(nodes) if n != number}

    run(main)


def test_nobody_is_allowed_before_the_first_set_peers_and_both_must_agree() -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with hub.open_network(b"\1" * 32) as a, hub.open_network(b"\2" * 32) as b:
            a.set_peers([PeerInfo(b.key, b.hint)])
            assert a.num_connected == 0
            b.set_peers([PeerInfo(a.key, a.hint)])
            assert (a.num_connected, b.num_connected) == (1, 1)
            b.set_peers([])
            assert (a.num_connected, b.num_connected) == (0, 0)
            with pytest.raises(PeerUnreachable):
                await a.request(b.key, "x", b"", max_response_bytes=1, deadline_seconds=1)

    run(main)


def test_partition_and_heal_with_replay() -> None:
    async def main() -> None:
        async with open_mesh(4) as (hub, nodes):
            hub.partition([nodes[0].key, nodes[1].key], [nodes[2].key])
            assert [node.num_connected for node in nodes] == [1, 1, 0, 0]
            await nodes[0].publish(b"during")
            assert [item.body for item in await drain(nodes[1])] == [b"during"]
            assert await drain(nodes[2]) == []
            hub.heal()
            assert [item.body for item in await drain(nodes[2])] == [b"during"]
            assert [item.body for item in await drain(nodes[3])] == [b"during"]
            assert await drain(nodes[1]) == []

    run(main)


def test_replay_ends_after_a_minute() -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with hub.open_network(b"\1" * 32) as a, hub.open_network(b"\2" * 32) as b:
            await a.publish(b"old")
            await trio.sleep(61)
            await a.publish(b"new")
            introduce([a, b])
            assert [item.body for item in await drain(b)] == [b"new"]

    run(main)


def test_slow_and_lossy_links() -> None:
    async def main() -> None:
        async with open_mesh(3, MemoryHub(Random(7))) as (hub, (a, b, c)):
            hub.set_link(a.key, b.key, Link(delay_seconds=2.0))
            hub.set_link(a.key, c.key, Link(delay_seconds=2.0))
            started = trio.current_time()
            await a.publish(b"slow")
            await b.announcements().receive()
            assert trio.current_time() - started == pytest.approx(2.0)
            # b cannot hear a any more, but c passes on what it hears
            hub.set_link(a.key, b.key, Link(drop=1.0))
            await a.publish(b"around")
            assert (await b.announcements().receive()).body == b"around"

    run(main)


def test_blobs_come_from_whoever_has_them() -> None:
    async def main() -> None:
        async with open_mesh(4) as (hub, (a, b, c, d)):
            data = bytes(1000)
            digest = a.store.put(data)
            assert await b.fetch(digest, 1000, [a.key], deadline_seconds=5) == data
            assert b.store.has(digest)
            a.store.drop(digest)
            assert await c.fetch(digest, 1000, [a.key], deadline_seconds=5) == data
            hub.tamper = lambda holder, blob: b"\1" * 1000 if holder == b.key else blob
            assert await d.fetch(digest, 1000, [b.key, c.key], deadline_seconds=5) == data
            assert b.stats.sent["blob"] == 2000
            with pytest.raises(FetchFailed):
                await a.fetch(digest, 999, [b.key], deadline_seconds=5)

    run(main)


def test_a_blob_that_cannot_be_kept_is_not_fetched() -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with (
            hub.open_network(b"\1" * 32) as a,
            hub.open_network(b"\2" * 32, BlobStore(max_bytes=10)) as b,
        ):
            introduce([a, b])
            digest = a.store.put(bytes(11))
            with pytest.raises(FetchFailed, match="do not fit"):
                await b.fetch(digest, 11, [a.key], deadline_seconds=5)

    run(main)


def test_requests_and_their_failures() -> None:
    async def main() -> None:
        async with open_mesh(2) as (hub, (a, b)):

            async def echo(sender: bytes, body: bytes) -> bytes:
                return sender + body

            async def broken(sender: bytes, body: bytes) -> bytes:
                raise KeyError("bug")

            async def slow(sender: bytes, body: bytes) -> bytes:
                await trio.sleep(100)
                return b""

            b.set_request_handler("echo", echo)
            b.set_request_handler("broken", broken)
            b.set_request_handler("slow", slow)

            async def ask(kind: str, size: int = 100) -> bytes:
                return await a.request(b.key, kind, b"x", max_response_bytes=size, deadline_seconds=5)

            assert await ask("echo") == a.key + b"x"
            for kind, reason, size in (
                ("echo", "longer than", 8),
                ("broken", "HANDLER_FAILED", 8),
                ("slow", "no answer within 5 s", 8),
                ("unknown", "NO_HANDLER", 8),
            ):
                with pytest.raises(RequestFailed, match=reason):
                    await ask(kind, size)
            with pytest.raises(RequestFailed, match="no answer"):
                hub.set_link(a.key, b.key, Link(drop=1.0))
                await ask("echo")

    run(main)


def test_a_slow_consumer_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "INBOX_SIZE", 5)

    async def main() -> None:
        async with open_mesh(2) as (_, (a, b)):
            for number in range(8):
                await a.publish(bytes([number]))
            await trio.sleep(1)
            assert [item.body for item in await drain(b)] == [bytes([n]) for n in range(3, 8)]
            assert b.stats.dropped["inbox_full"] == 3

    run(main)


def test_long_bodies_are_refused_and_errors_keep_their_class() -> None:
    async def main() -> None:
        with pytest.raises(RunStateError):
            async with MemoryHub().open_network(b"\1" * 32) as a:
                with pytest.raises(MessageError):
                    await a.publish(bytes(4_000))
                raise RunStateError("paused")

    run(main)


def test_consumers_end_when_the_network_closes() -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with hub.open_network(b"\1" * 32) as a:
            channel = a.announcements()
        assert [item async for item in channel] == []

    run(main)


def test_what_got_lost_is_repaired_though_links_lose_a_third() -> None:
    async def main() -> None:
        async with open_mesh(12, MemoryHub(Random(3), Link(delay_seconds=0.05, drop=0.34))) as (_, nodes):
            for number in range(20):
                for node in nodes:
                    await node.publish(number.to_bytes(2, "little"))
                await trio.sleep(0.2)
            await trio.sleep(60)  # as long as anybody remembers them
            for node in nodes:
                heard = await drain(node)
                assert len(heard) == len({(item.sender_key, item.body) for item in heard}) == 11 * 20

    run(main)


def test_an_announcement_is_sent_to_six_peers_not_to_all() -> None:
    async def main() -> None:
        async with open_mesh(40) as (_, nodes):
            await trio.sleep(0.1)
            before = sum(node.stats.sent["announcement"] for node in nodes)
            await nodes[0].publish(b"word")
            await trio.sleep(0.1)
            assert [len(await drain(node, 0.01)) for node in nodes[1:]] == [1] * 39
            copies = (sum(node.stats.sent["announcement"] for node in nodes) - before) / 100
            assert copies <= 6 * 40

    run(main)


def test_without_its_neighbours_a_node_uses_others() -> None:
    async def main() -> None:
        async with open_mesh(30) as (hub, nodes):
            lonely = nodes[0]
            keys = [node.key for node in nodes[1:]]
            neighbours = choose_neighbours(lonely.key, keys, b"", PUSH_RINGS)
            others = [key for key in (lonely.key, *keys) if key not in neighbours]
            hub.partition(others)
            assert lonely.connected_peers == set(others) - {lonely.key}
            await lonely.publish(b"word")
            await trio.sleep(0.1)
            reached = [node for node in nodes[1:] if node.key in others]
            for node in reached:
                assert [item.body for item in await drain(node, 0.01)] == [b"word"]

    run(main)
