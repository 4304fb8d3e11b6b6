"""A blob goes out as a tree: each holder gives it to two and refers the others to these."""

from __future__ import annotations

from random import Random

import pytest
import trio
from trio.testing import MockClock

from psyche_py.p2p import uploads as module
from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.errors import FetchFailed
from psyche_py.p2p.memory import Link, MemoryHub, MemoryNetwork
from psyche_py.p2p.port import PeerInfo
from psyche_py.p2p.uploads import MAX_COPIES, UploadDesk

KEYS = [bytes([n]) * 32 for n in range(10)]
DIGEST = b"d" * 32
SIZE = 1_000_000


def test_the_first_get_copies_the_others_their_names_evenly() -> None:
    desk = UploadDesk(BlobStore())
    assert [desk.admit(DIGEST, key, is_urgent=False) for key in KEYS[:MAX_COPIES]] == [()] * MAX_COPIES
    referred = [desk.admit(DIGEST, key, is_urgent=False)[0] for key in KEYS[2:8]]
    assert [referred.count(key) for key in KEYS[:MAX_COPIES]] == [3, 3]
    assert desk.admit(DIGEST, KEYS[0], is_urgent=False) == ()  # it continues a broken transfer
    assert desk.admit(b"e" * 32, KEYS[5], is_urgent=False) == ()  # another blob


def test_complaints_replace_the_doubted_by_two_and_no_more() -> None:
    desk = UploadDesk(BlobStore())
    liars, askers = KEYS[:MAX_COPIES], KEYS[MAX_COPIES:8]
    assert all(desk.admit(DIGEST, key, is_urgent=False) == () for key in liars)
    assert all(set(desk.admit(DIGEST, key, is_urgent=False)) == set(liars) for key in askers)
    assert [desk.admit(DIGEST, key, is_urgent=True) for key in askers[:2]] == [()] * 2
    for key in askers[2:]:  # their complaint is about the same two
        assert set(desk.admit(DIGEST, key, is_urgent=True)) == set(askers[:2])
    assert set(desk.admit(DIGEST, KEYS[9], is_urgent=False)) == set(askers[:2])


def test_who_complains_twice_is_served_and_complaints_about_nobody_change_nothing() -> None:
    desk = UploadDesk(BlobStore())
    for key in KEYS[:MAX_COPIES]:
        desk.admit(DIGEST, key, is_urgent=False)
    before = desk.admit(DIGEST, KEYS[4], is_urgent=False)
    assert set(desk.admit(DIGEST, KEYS[8], is_urgent=True)) == set(before)  # never referred by us
    assert desk.admit(DIGEST, KEYS[8], is_urgent=True) == ()


def test_who_fails_or_leaves_makes_room() -> None:
    desk = UploadDesk(BlobStore())
    for key in KEYS[:MAX_COPIES]:
        desk.admit(DIGEST, key, is_urgent=False)
    desk.revoke(DIGEST, KEYS[0])
    desk.revoke(b"unknown", KEYS[0])
    assert desk.admit(DIGEST, KEYS[3], is_urgent=False) == ()
    assert desk.admit(DIGEST, KEYS[4], is_urgent=False) != ()
    desk.forget_peers(frozenset(KEYS[:5]))
    assert desk.admit(DIGEST, KEYS[5], is_urgent=False) == ()


def test_who_got_a_blob_is_forgotten_with_it() -> None:
    store = BlobStore()
    desk = UploadDesk(store)
    kept = store.put(b"kept")
    for key in KEYS[:MAX_COPIES]:
        desk.admit(kept, key, is_urgent=False)
    for number in range(10 * module.MIN_KNOWN_BLOBS):
        digest = store.put(number.to_bytes(4, "little"))
        desk.admit(digest, KEYS[0], is_urgent=False)
        store.drop(digest)
        assert len(desk._copies) <= module.MIN_KNOWN_BLOBS + 1
    assert desk.admit(kept, KEYS[5], is_urgent=False) != ()  # two have it already


def run_fan_out(num_nodes: int, num_broken: int = 0) -> tuple[list[MemoryNetwork], list[float]]:
    """One sender, everybody fetches at once; nodes and the times at which they had it."""
    times: list[float] = []

    async def fetch(node: MemoryNetwork, digest: bytes, holders: list[bytes]) -> None:
        await node.fetch(digest, SIZE, holders, deadline_seconds=300)
        times.append(trio.current_time() - started)

    async def main() -> list[MemoryNetwork]:
        nonlocal started
        from contextlib import AsyncExitStack

        hub = MemoryHub(Random(1), Link(delay_seconds=0.04, bytes_per_second=SIZE))
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(hub.open_network(bytes([n + 1]) * 32))
                for n in range(num_nodes)
            ]
            for node in nodes:
                node.set_peers([PeerInfo(other.key, other.hint) for other in nodes])
            liars = {node.key for node in nodes[1 : 1 + num_broken]}
            hub.tamper = lambda key, data: bytes(SIZE) if key in liars else data
            digest = nodes[0].store.put(b"x" * SIZE)
            started = trio.current_time()
            async with trio.open_nursery() as nursery:
                for node in nodes[1:]:
                    holders = [nodes[0].key, *(other.key for other in nodes[1:] if other is not node)]
                    nursery.start_soon(fetch, node, digest, holders)
        return nodes

    started = 0.0
    return trio.run(main, clock=MockClock(autojump_threshold=0)), times


def test_a_sender_uploads_twice_its_payload_and_nobody_much_more() -> None:
    nodes, times = run_fan_out(16)
    uploads = [node.stats.sent["blob"] / SIZE for node in nodes]
    assert uploads[0] == MAX_COPIES
    assert max(uploads) <= MAX_COPIES + 1
    assert sum(uploads) == 15  # nothing was sent twice
    assert len(times) == 15


def test_liars_in_the_tree_cost_time_only() -> None:
    for _ in range(30):  # trio shuffles who comes first: now and then both copies go to liars
        nodes, times = run_fan_out(12, num_broken=3)
        assert len(times) == 11
        assert nodes[0].stats.sent["blob"] <= 2 * MAX_COPIES * SIZE


def test_a_question_for_a_blob_on_its_way_waits_for_it() -> None:
    async def main() -> None:
        store = BlobStore()
        desk = UploadDesk(store)
        event = desk.start_arrival(DIGEST)
        assert desk.start_arrival(DIGEST) is None
        found: list[bytes | None] = []

        async def ask() -> None:
            found.append(await desk.find(DIGEST))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            assert found == []
            store.put_checked(DIGEST, b"x")
            desk.end_arrival(DIGEST, event)
        assert found == [b"x"]
        assert await desk.find(b"e" * 32) is None
        assert trio.current_time() < 2

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_blob_nobody_has_fails_at_its_deadline() -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with hub.open_network(b"\1" * 32) as a, hub.open_network(b"\2" * 32) as b:
            for node in (a, b):
                node.set_peers([PeerInfo(other.key, other.hint) for other in (a, b)])
            async with trio.open_nursery() as nursery:
                for node, other in ((a, b), (b, a)):
                    nursery.start_soon(check, node, other)

    async def check(node: MemoryNetwork, other: MemoryNetwork) -> None:
        with pytest.raises(FetchFailed):
            await node.fetch(DIGEST, 5, [other.key], deadline_seconds=30)

    trio.run(main, clock=MockClock(autojump_threshold=0))
