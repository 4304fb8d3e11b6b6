"""Keeping one peer connected: dialing with back-off, pings, and the stream of announcements to it.

Several connections to one peer can exist (both sides dialed at once, or the peer restarted and its old
connection is not yet known to be dead). All are watched by pings; the newest that has answered one is
used. Each side writes on streams it opened itself, so the two ends need not agree which one that is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.flood import Outbox
from psyche_py.p2p.frames import Frame, ItemKind, encode_item, encode_length_prefixed
from psyche_py.p2p.hint import Address
from psyche_py.p2p.libp2p_services import PING_PROTOCOL, PING_SECONDS, ping
from psyche_py.p2p.pacing import Pacer
from psyche_py.p2p.port import Way

if TYPE_CHECKING:
    from psyche_py.p2p.libp2p_host import MeshConnection
    from psyche_py.p2p.port import TrafficStats

FLOOD_PROTOCOL = "/psyche/flood/3"
FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 10.0
PAUSE_GROWTH = 1.7
STABLE_SECONDS = 5.0
"""A connection that lived longer was a real one; the next dial starts with the shortest pause again."""
GRACE_SECONDS = 1.0
"""The peer with the larger key lets the other one dial first."""
DIAL_SECONDS = 8.0
DRAIN_POLL_SECONDS = 0.05
"""How soon `drain` notices that the connection it waits for is gone."""
WRITE_DEADLINE_SECONDS = 15.0

Dial = Callable[[bytes, Address], Awaitable[None]]


class PeerLink:
    """The state of one allowed peer. ``dial(key, address)`` raises NetworkError."""

    def __init__(
        self,
        key: bytes,
        *,
        dials_first: bool,
        get_address: Callable[[], Address | None],
        make_greeting: Callable[[], bytes],
        dial: Dial,
        rng: Random,
        stats: TrafficStats,
    ) -> None:
        self.key = key
        self.outbox = Outbox()
        self.connections: list[MeshConnection] = []
        self.ready: MeshConnection | None = None
        self._working: list[MeshConnection] = []
        self._scopes: set[trio.CancelScope] = set()
        self._is_cut = False
        self._dials_first = dials_first
        self._get_address = get_address
        self._make_greeting = make_greeting
        self._news: dict[ItemKind, bytes] = {}
        self._dial = dial
        self._rng = rng
        self._stats = stats
        self._changed = trio.Event()
        self._moved = trio.Event()
        self._outbox_filled = trio.Event()
        self._ping_now = trio.Event()
        self._is_draining = False
        self._writer_ended = trio.Event()

    # ---- used by the network ------------------------------------------------------------------------

    @property
    def way(self) -> Way | None:
        """How the peer is reached; None: not at all."""
        return self.ready.way if self.ready is not None else None

    @property
    def is_direct(self) -> bool:
        """Connected, and not through a relay."""
        return self.ready is not None and not self.ready.is_relayed

    @property
    def has_circuit(self) -> bool:
        """Whether a relay carries one of the connections, used or not."""
        return any(connection.is_relayed for connection in self.connections)

    def notify(self) -> None:
        """Something that `keep_dialed` or `wait_until_ready` waits for may have changed."""
        self._changed.set()
        self._changed = trio.Event()

    def notify_moved(self) -> None:
        """There is a new address, or a new reason to dial: do not wait out the back-off."""
        self._moved.set()
        self._moved = trio.Event()
        self.notify()

    def add(self, connection: MeshConnection) -> None:
        """Take over a new connection; `watch` has to run for it."""
        self.connections.append(connection)
        # An older connection to the same peer is perhaps one to its former life.
        self._ping_now.set()
        self._ping_now = trio.Event()
        self.notify()

    def send(self, frame: Frame) -> None:
        """Queue a frame; without a connection it waits for one, as long as there is hope."""
        self._stats.dropped["outbox_full"] += self.outbox.put(frame)
        self._outbox_filled.set()

    def send_news(self, kind: ItemKind, data: bytes) -> None:
        """Tell the peer what we have, or whom we are connected to; only the latest of a kind matters."""
        self._news[kind] = data
        self._outbox_filled.set()

    async def drain(self) -> None:
        """Wait until the peer has read every announcement we queued for it; no more can follow.

        The caller sets the deadline. A peer that never answered a ping has nothing to wait for.
        """
        self._is_draining = True
        self._outbox_filled.set()
        while self.ready is not None and not self._writer_ended.is_set():
            with trio.move_on_after(DRAIN_POLL_SECONDS):
                await self._writer_ended.wait()

    def cut(self) -> None:
        """End all connections and all tasks of this link, at once."""
        for connection in self.connections:
            connection.cut()
        self.connections.clear()
        self.ready = None
        self._is_cut = True
        for scope in self._scopes:
            scope.cancel()
        self.notify()

    async def wait_until_ready(self, seconds: float) -> MeshConnection:
        """A connection that has answered a ping. Raises PeerUnreachable."""
        with trio.move_on_after(seconds):
            while self.ready is None:
                await self._changed.wait()
        if self.ready is None:
            raise PeerUnreachable(self.key, "no connection")
        return self.ready

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of this link."""
        while not condition():
            await self._changed.wait()

    async def wait_until_direct(self, seconds: float) -> None:
        """Raises PeerUnreachable."""
        with trio.move_on_after(seconds):
            await self.wait_until(lambda: self.is_direct)
        if not self.is_direct:
            raise PeerUnreachable(self.key, "no direct connection")

    async def run(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run one of the tasks below until it ends or the link is cut."""
        with trio.CancelScope() as scope:
            if self._is_cut:
                scope.cancel()
            self._scopes.add(scope)
            try:
                await task(*args)
            finally:
                self._scopes.discard(scope)

    # ---- tasks --------------------------------------------------------------------------------------

    async def keep_dialed(self) -> None:
        """Dial whenever there is no connection, with growing pauses."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            while self.connections or self._get_address() is None:
                await self._changed.wait()
            if not self._dials_first:
                await self._pause(GRACE_SECONDS * self._rng.uniform(1.0, 1.5))
            address = self._get_address()
            if self.connections or address is None:
                continue
            started = trio.current_time()
            try:
                with trio.fail_after(DIAL_SECONDS):
                    await self._dial(self.key, address)
            except (NetworkError, trio.TooSlowError):
                self._stats.dropped["dial_failed"] += 1
            while self.connections:
                await self._changed.wait()
            if trio.current_time() - started > STABLE_SECONDS + DIAL_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            await self._pause(pause * self._rng.uniform(0.7, 1.3))
            pause = min(pause * PAUSE_GROWTH, MAX_PAUSE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._moved.wait()

    async def watch(self, connection: MeshConnection) -> None:
        """Everything that happens on one connection, until it ends."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ping, connection, nursery)
                await connection.closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            connection.cut()
            self._forget(connection)

    def _forget(self, connection: MeshConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        if connection in self._working:
            self._working.remove(connection)
        if self.ready is connection:
            self.ready = None
            if self._working:
                self._use(sorted(self._working, key=lambda other: not other.is_relayed)[-1])
        if not self.connections:
            self.outbox = Outbox()  # whoever comes back asks for what it has missed
        self.notify()

    async def _ping(self, connection: MeshConnection, nursery: trio.Nursery) -> None:
        """Ping until one fails. The first answer also proves that the peer has let us in."""
        number = 0
        try:
            stream = await connection.open_stream(PING_PROTOCOL)
            try:
                while True:
                    await ping(stream, number)
                    if number == 0:
                        self._welcome(connection)
                        nursery.start_soon(self._carry, connection)
                    number += 1
                    with trio.move_on_after(PING_SECONDS * self._rng.uniform(0.8, 1.2)):
                        await self._ping_now.wait()
            finally:
                await stream.reset()
        except (StreamBroken, PeerUnreachable):
            self._stats.dropped["ping_failed" if number else "connection_refused"] += 1
            connection.cut()

    def _welcome(self, connection: MeshConnection) -> None:
        """It works. The newest one is used, but no circuit as long as there is a direct one."""
        self._working.append(connection)
        if not (self.is_direct and connection.is_relayed):
            self._use(connection)

    def _use(self, connection: MeshConnection) -> None:
        """This connection carries the announcements from now on."""
        self.ready = connection
        self.send_news(ItemKind.HAVE, self._make_greeting())
        self.notify()

    async def _carry(self, connection: MeshConnection) -> None:
        """Write the announcements whenever this is the connection that is used."""
        try:
            while not self._writer_ended.is_set():
                await self.wait_until(lambda: self.ready is connection)
                stream = await connection.open_stream(FLOOD_PROTOCOL)
                try:
                    await self._write_outbox(connection, stream.write)
                    # the peer ends its side only after it has read ours: a cut connection loses nothing now
                    await stream.finish()
                    if self._is_draining and self.ready is connection:
                        self._writer_ended.set()
                finally:
                    await stream.reset()
        except (StreamBroken, PeerUnreachable):
            connection.cut()

    async def _write_outbox(
        self, connection: MeshConnection, write: Callable[[bytes, float], Awaitable[None]]
    ) -> None:
        """Send what is queued, until `drain` says that nothing follows or another connection is used.

        What has been taken out of the queue is written in any case: that connection may be of no more use,
        but it may also be a circuit that works and has only become superfluous.
        """
        pacer = Pacer(trio.current_time())
        while True:
            while not self.outbox and not self._news:
                if self._is_draining or self.ready is not connection:
                    return
                self._outbox_filled = trio.Event()
                await self._outbox_filled.wait()
            await trio.sleep(pacer.compute_pause(trio.current_time()))
            if self.ready is not connection:
                return
            frames = self.outbox.take()
            data = encode_length_prefixed(frames)
            while self._news:
                data += encode_item(*self._news.popitem())
            await write(data, WRITE_DEADLINE_SECONDS)
            self._stats.sent["announcement"] += sum(map(len, frames))
