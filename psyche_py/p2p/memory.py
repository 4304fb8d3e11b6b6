"""The mesh inside one process: for tests and the simulator.

Same rules as on the internet (allow-lists on both sides, signatures, hashes, overlay, repair of what is
missing), with a clock that may be trio's mock clock, and links that can be slow, lossy or cut.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import trio

from psyche_py.p2p.allowlist import PeerChanges
from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.errors import PeerUnreachable
from psyche_py.p2p.flood import REPLAY_SECONDS
from psyche_py.p2p.frames import Frame, ItemKind
from psyche_py.p2p.hint import pack_hint
from psyche_py.p2p.node import Node, ReplyStatus
from psyche_py.p2p.transfer import BlobQuestion, HolderAtFault, Referred

LOST_SECONDS = 10.0
"""A lost request or blob is noticed after this long, like the deadlines of the libp2p adapter."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two peers: latency, share of messages lost (0..1), and bandwidth."""

    delay_seconds: float = 0.0
    drop: float = 0.0
    bytes_per_second: float = float("inf")


class MemoryHub:
    """The wires. ``rng`` decides which messages get lost."""

    def __init__(self, rng: Random | None = None, default_link: Link | None = None) -> None:
        self._rng = rng if rng is not None else Random(0)
        self._default_link = default_link if default_link is not None else Link()
        self._links: dict[tuple[bytes, bytes], Link] = {}
        self._groups: dict[bytes, int] = {}
        self._nodes: dict[bytes, MemoryNetwork] = {}
        self._neighbours: dict[bytes, set[bytes]] = {}
        self._order = itertools.count()
        self._ports = itertools.count(1)
        self.tamper: Callable[[bytes, bytes], bytes] | None = None
        """``tamper(holder_key, data) -> data``: what a holder serves instead of a blob. For tests."""

    @asynccontextmanager
    async def open_network(
        self, key_seed: bytes, store: BlobStore | None = None
    ) -> AsyncIterator[MemoryNetwork]:
        """A network plugged into this hub; leaving the context is the peer's death."""
        node = MemoryNetwork(self, key_seed, store, next(self._ports))
        if node.key in self._nodes:
            raise ValueError(f"peer {node.key.hex()[:12]} is already plugged in")
        body_error: Exception | None = None
        async with trio.open_nursery() as nursery:
            self._nodes[node.key] = node
            nursery.start_soon(node.run)
            try:
                yield node
            except Exception as error:  # raised again below: the caller's error must not become a group
                body_error = error
            finally:
                self.remove_node(node.key)
                node.close()
                nursery.cancel_scope.cancel()
        if body_error is not None:
            raise body_error

    # ---- controls -----------------------------------------------------------------------------------

    def set_link(self, source: bytes, target: bytes, link: Link, *, both_ways: bool = True) -> None:
        """Change the quality of a link."""
        self._links[source, target] = link
        if both_ways:
            self._links[target, source] = link

    def partition(self, *groups: Iterable[bytes]) -> None:
        """Cut the mesh: peers of different groups, or in none of them, do not reach each other."""
        self._groups = {key: number for number, group in enumerate(groups) for key in group}
        for number, key in enumerate(self._nodes.keys() - self._groups.keys()):
            self._groups[key] = -1 - number
        self.refresh()

    def heal(self) -> None:
        """Undo `partition`."""
        self._groups = {}
        self.refresh()

    # ---- for the nodes ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Connect whoever may be connected now."""
        for key in sorted(self._nodes):
            self.refresh_node(key)

    def refresh_node(self, key: bytes) -> None:
        """Connect one node to whom it may be connected; new neighbours ask each other what they missed."""
        before = self._neighbours.get(key, set())
        now = {other for other in self._nodes if other != key and self._is_connectable(key, other)}
        self._neighbours[key] = now
        for other in before - now:
            self._neighbours[other].discard(key)
        for other in sorted(now - before):
            self._neighbours[other].add(key)
        for other in sorted(now - before):
            for source, target in (sorted((key, other)), sorted((key, other), reverse=True)):
                self._nodes[source].greet(target)

    def remove_node(self, key: bytes) -> None:
        """A peer dies."""
        del self._nodes[key]
        for other in self._neighbours.pop(key, set()):
            self._neighbours[other].discard(key)

    def _is_connectable(self, a: bytes, b: bytes) -> bool:
        if self._groups.get(a, 0) != self._groups.get(b, 0):
            return False
        return self._nodes[a].allows(b) and self._nodes[b].allows(a)

    def get_neighbours(self, key: bytes) -> frozenset[bytes]:
        return frozenset(self._neighbours.get(key, ()))

    def get_link(self, source: bytes, target: bytes) -> Link:
        return self._links.get((source, target), self._default_link)

    def get_peer(self, source: bytes, target: bytes) -> MemoryNetwork:
        """The other end of a live link. Raises PeerUnreachable."""
        if target not in self._neighbours.get(source, ()):
            raise PeerUnreachable(target, "no connection")
        return self._nodes[target]

    async def carry(self, source: bytes, target: bytes, num_bytes: int) -> MemoryNetwork:
        """Wait as long as the bytes take; then the live other end. Raises PeerUnreachable."""
        self.get_peer(source, target)
        link = self.get_link(source, target)
        if self.is_lost(link):
            await trio.sleep(LOST_SECONDS)
            raise PeerUnreachable(target, "no answer")
        await trio.sleep(link.delay_seconds + num_bytes / link.bytes_per_second)
        return self.get_peer(source, target)

    def is_lost(self, link: Link) -> bool:
        return link.drop > 0 and self._rng.random() < link.drop

    def next_order(self) -> int:
        return next(self._order)


class MemoryNetwork(Node):
    """A `Network` plugged into a `MemoryHub`."""

    def __init__(self, hub: MemoryHub, key_seed: bytes, store: BlobStore | None, number: int) -> None:
        super().__init__(key_seed, store, trio.current_time)
        self._hub = hub
        self._hint = pack_hint("127.0.0.1", number)
        self._arrivals: list[tuple[float, int, ItemKind, bytes, bytes]] = []
        self._arrived = trio.Event()

    @property
    def connected_peers(self) -> frozenset[bytes]:
        return self._hub.get_neighbours(self.key)

    def allows(self, key: bytes) -> bool:
        return self._is_admitted(key)

    def _exclude(self, key: bytes) -> None:
        self._hub.refresh_node(self.key)

    def _apply_changes(self, changes: PeerChanges) -> None:
        self._hub.refresh_node(self.key)

    def greet(self, target: bytes) -> None:
        self._second.tell_again(target)
        self._ask_what_is_missing(target, REPLAY_SECONDS, 0.0)

    def _send_frame(self, frame: Frame, target: bytes) -> None:
        self._stats.sent["announcement"] += len(frame.raw)
        self._send(ItemKind.FRAME, frame.raw, target)

    def _send_news(self, kind: ItemKind, data: bytes, target: bytes) -> None:
        self._send(kind, data, target)

    def _send(self, kind: ItemKind, data: bytes, target: bytes) -> None:
        link = self._hub.get_link(self.key, target)
        if target not in self.connected_peers or self._hub.is_lost(link):
            return
        node = self._hub.get_peer(self.key, target)
        due = self._clock() + link.delay_seconds
        heapq.heappush(node._arrivals, (due, self._hub.next_order(), kind, data, self.key))
        node._arrived.set()

    async def run(self) -> None:
        """Everything that a node does by itself."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pump)
            nursery.start_soon(self._repair, Random(self.key))

    async def pump(self) -> None:
        """Take in frames when they are due."""
        while True:
            self._arrived = trio.Event()
            wait = self._arrivals[0][0] - self._clock() if self._arrivals else float("inf")
            if wait > 0:
                with trio.move_on_after(wait):
                    await self._arrived.wait()
                continue
            _, _, kind, data, source = heapq.heappop(self._arrivals)
            if source in self.connected_peers:
                self._receive_item(kind, data, source)
            await trio.lowlevel.checkpoint()

    async def _download(self, peer_key: bytes, question: BlobQuestion) -> None:
        peer = await self._hub.carry(self.key, peer_key, len(question.digest))
        lent = peer._desk.read_source(question.digest, self.key)
        if lent is not None:
            await self._copy(peer, bytes(lent), question)
            return
        data = await peer._desk.find(question.digest)
        if data is None:
            raise PeerUnreachable(peer_key, "it does not have the blob")
        if referrals := peer._desk.admit(question.digest, self.key, is_urgent=question.is_urgent):
            raise Referred(peer_key, referrals)
        try:
            await self._copy(peer, data, question)
        except BaseException:
            peer._desk.revoke(question.digest, self.key)
            raise

    async def _copy(self, peer: MemoryNetwork, data: bytes, question: BlobQuestion) -> None:
        if self._hub.tamper is not None:
            data = self._hub.tamper(peer.key, data)
        question.on_start()
        await self._hub.carry(peer.key, self.key, len(data))
        if len(data) != question.size:
            raise HolderAtFault(f"its blob has {len(data)} bytes, not {question.size}")
        buffer = question.buffer
        peer._stats.sent["blob"] += question.size - len(buffer)
        self._stats.received["blob"] += question.size - len(buffer)
        buffer += data[len(buffer) :]

    async def _call(
        self, peer_key: bytes, kind: str, body: bytes, max_response_bytes: int
    ) -> tuple[ReplyStatus, bytes]:
        peer = await self._hub.carry(self.key, peer_key, len(body))
        status, answer = await peer._answer(self.key, kind, body)
        await self._hub.carry(peer_key, self.key, len(answer))
        return status, answer

    def close(self) -> None:
        self._close_inbox()
