"""The mesh over the internet: libp2p hosts, one `PeerLink` per allowed peer.

Each node keeps the connections that overlay.py says, in runs of up to 65 clients to everybody, and dials
others when it needs them.
libp2p itself is imported when a network is opened, since that takes more than a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.allowlist import PeerChanges
from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.bulk_pool import BULK_PROTOCOL, BulkPool
from psyche_py.p2p.dial_back import DialBackService
from psyche_py.p2p.errors import PeerUnreachable, RequestFailed, StreamBroken, unwrap
from psyche_py.p2p.flood import REPLAY_SECONDS, Verdict
from psyche_py.p2p.frames import Frame, ItemKind
from psyche_py.p2p.hint import EMPTY_HINT, Address
from psyche_py.p2p.items import ItemStream
from psyche_py.p2p.lan import search_lan
from psyche_py.p2p.libp2p_link import FLOOD_PROTOCOL, PeerLink
from psyche_py.p2p.libp2p_services import (
    BLOB_PROTOCOL,
    PING_PROTOCOL,
    REQUEST_PROTOCOL,
    BlobService,
    ByteStream,
    download_blob,
    send_request,
    serve_pings,
    serve_request,
)
from psyche_py.p2p.listening import (
    check_port,
    get_interface_address,
    is_public_host,
    make_own_hint,
    resolve,
    resolve_listen_host,
)
from psyche_py.p2p.node import Node, ReplyStatus, log
from psyche_py.p2p.overlay import choose_neighbours
from psyche_py.p2p.plain import PlainServices
from psyche_py.p2p.port import Way
from psyche_py.p2p.punch import PUNCH_PROTOCOL, Puncher
from psyche_py.p2p.relay import RELAY_PROTOCOL, Relay
from psyche_py.p2p.seen import SEEN_PROTOCOL, SeenService
from psyche_py.p2p.transfer import BlobQuestion, Referred

if TYPE_CHECKING:
    from psyche_py.p2p.libp2p_host import MeshConnection, MeshHost
    from psyche_py.p2p.libp2p_stream import MeshStream

DIALED_RINGS = 6
"""Who cannot be dialed keeps also the neighbours in so many rings through those that can be: its other
neighbours may all be of its kind."""
MAX_CONNECTIONS_PER_PEER = 8
"""More than one is normal: both sides dialed, or the peer restarted and its old connection is not gone."""
DEMAND_SECONDS = 120.0
"""How long a peer outside the mesh stays connected after we last needed it."""
READY_SECONDS = 5.0
THROUGH_RELAY = Address("relay", 0)
"""In the place of an address to dial."""
DRAIN_SECONDS = 0.5
FLUSH_SECONDS = 2.0
"""On leaving, for the peers to have read our last announcements: a loaded machine takes its time."""


@asynccontextmanager
async def open_libp2p_network(
    key_seed: bytes,
    listen_host: str = "127.0.0.1",
    listen_port: int = 0,
    announce: str | None = None,
    *,
    store: BlobStore | None = None,
    rng: Random | None = None,
    is_public: bool = False,
    lan: bool = False,
) -> AsyncIterator[Libp2pNetwork]:
    """Open a network; leaving the context closes it within a second or two.

    ``listen_port`` 0 lets the system choose. ``announce`` is the ``host`` or ``host:port`` that others
    should dial when it is not the one we listen on (a forwarded port, a public name); ``"none"``: nobody
    shall, we dial them. ``is_public``: peers are anywhere, no private address is announced or dialed.
    ``lan``: find peers in the same local network by mDNS, and be found.
    Raises PortTaken, ListenFailed, HintError.
    """
    network = Libp2pNetwork(key_seed, store, rng if rng is not None else Random(), is_public=is_public)
    body_error: Exception | None = None
    try:
        async with network.run(listen_host, listen_port, announce, lan=lan):
            try:
                yield network
            except Exception as error:  # raised again below: the caller's error must not become a group
                body_error = error
    except ExceptionGroup as group:
        raise unwrap(group) from group
    if body_error is not None:
        raise body_error


class Libp2pNetwork(Node):
    """A `Network` over libp2p. Made by `open_libp2p_network`."""

    def __init__(
        self, key_seed: bytes, store: BlobStore | None, rng: Random, *, is_public: bool = False
    ) -> None:
        super().__init__(key_seed, store, trio.current_time)
        self._is_public = is_public
        self._port = 0
        self._seen = SeenService()
        self._key_seed = key_seed
        self._rng = rng
        self._links: dict[bytes, PeerLink] = {}
        self._mesh: frozenset[bytes] = frozenset()
        self._demands: dict[bytes, float] = {}
        self._lan: dict[bytes, Address] = {}
        self._blobs = BlobService(self._desk, self._stats)
        self._bulk = BulkPool(
            open_stream=self._open_bulk_protocol,
            get_address=self._allowed.get_address,
            resolve=self._resolve,
            is_dialable=lambda: self._hint != EMPTY_HINT,
            serve=self._blobs.serve,
            spawn=self._spawn_guarded,
            on_offence=self._on_offence,
        )
        dial_back = DialBackService(trio.current_time())
        self._plain = PlainServices(self._bulk, dial_back, self._seen, self._on_offence)
        self._puncher = Puncher(
            self.key,
            links=self._links,
            get_address=self._allowed.get_address,
            open_stream=self._open_ready_stream,
            resolve=self._resolve,
            dial=self._dial,
            adopt=lambda *punched: self._spawn_guarded(self._host.adopt, *punched),
            on_offence=self._on_offence,
            is_public=is_public,
            stats=self._stats,
            rng=rng,
        )
        self._host: MeshHost
        self._nursery: trio.Nursery

    # ---- life ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def run(
        self, listen_host: str, listen_port: int, announce: str | None, *, lan: bool
    ) -> AsyncIterator[None]:
        from psyche_py.p2p.libp2p_host import MeshHost

        ip = await resolve_listen_host(listen_host)
        check_port(ip, listen_port)
        self._host = MeshHost(
            self._key_seed, self._is_admitted, self._on_connection, self._plain.take_in, self._on_offence
        )
        self._host.set_stream_handler(PING_PROTOCOL, serve_pings)
        self._host.set_stream_handler(FLOOD_PROTOCOL, self._serve_flood)
        self._host.set_stream_handler(BLOB_PROTOCOL, self._blobs.serve)
        self._host.set_stream_handler(BULK_PROTOCOL, self._bulk.serve_tickets)
        self._relay = Relay(self._open_ready_stream, self._host.take_in_relayed)
        self._host.set_stream_handler(RELAY_PROTOCOL, self._relay.serve)
        self._host.set_stream_handler(SEEN_PROTOCOL, self._seen.serve)
        self._host.set_stream_handler(PUNCH_PROTOCOL, self._puncher.serve)
        self._host.set_stream_handler(REQUEST_PROTOCOL, partial(serve_request, answer=self._answer))
        async with self._host.run(ip, listen_port) as port:
            self._port = port
            self._hint = make_own_hint(ip, port, announce, is_public=self._is_public)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._repair, self._rng)
                if lan:
                    nursery.start_soon(self._search_lan, get_interface_address(ip))
                try:
                    yield
                finally:
                    await self._close()
                    nursery.cancel_scope.cancel()

    async def _close(self) -> None:
        with trio.CancelScope(deadline=trio.current_time() + FLUSH_SECONDS, shield=True):
            async with trio.open_nursery() as nursery:
                for link in self._links.values():
                    nursery.start_soon(link.drain)
        self._allowed.replace(())  # the gate lets nobody in while we go
        for link in self._links.values():
            link.cut()
        self._links.clear()
        self._bulk.cut_all()
        self._close_inbox()
        with trio.CancelScope(deadline=trio.current_time() + DRAIN_SECONDS, shield=True):
            await self._host.wait_until_disconnected()

    # ---- peers --------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The TCP port we listen on, whatever we announce."""
        return self._port

    @property
    def connected_peers(self) -> frozenset[bytes]:
        return frozenset(key for key, link in self._links.items() if link.ready is not None)

    @property
    def ways(self) -> Counter[Way]:
        return Counter(link.way for link in self._links.values() if link.way is not None)

    def _apply_changes(self, changes: PeerChanges) -> None:
        for key in changes.removed:
            self._links.pop(key).cut()
            self._bulk.cut(key)
            self._demands.pop(key, None)
            self._lan.pop(key, None)
        self._seen.sightings.forget_peers(changes.removed)
        self._puncher.start_epoch(self._seed)
        for key in changes.added:
            self._start_link(key)
        self._mesh = self._neighbours.links
        if self._hint == EMPTY_HINT:
            dialable = [key for key in self._allowed if self._allowed.get_address(key) is not None]
            self._mesh |= choose_neighbours(self.key, dialable, self._seed, DIALED_RINGS)
        for key, link in self._links.items():
            if key in changes.moved:
                self._bulk.forget_obstacles(key)
                link.notify_moved()
            else:
                link.notify()

    def _start_link(self, key: bytes) -> None:
        link = PeerLink(
            key,
            dials_first=self.key < key,
            get_address=partial(self._get_dial_address, key),
            make_greeting=partial(self._make_greeting, key),
            dial=self._dial,
            rng=self._rng,
            stats=self._stats,
        )
        self._links[key] = link
        self._nursery.start_soon(link.run, link.keep_dialed)
        self._nursery.start_soon(link.run, self._puncher.improve, link)

    def _exclude(self, key: bytes) -> None:
        self._links[key].cut()
        self._bulk.cut(key)

    def _on_offence(self, key: bytes, kind: str) -> None:
        """Bad input that an adapter's part has seen; without a key it is a stranger's."""
        self.report(key, kind)

    async def _search_lan(self, ip: str) -> None:
        """Until the network ends; a network without multicast has no LAN to search."""
        try:
            async with search_lan(self.key, ip, self._port, self._allowed.__contains__, self._on_lan_peer):
                await trio.sleep_forever()
        except OSError as error:
            log.warning("no mDNS on %s: %s", ip, error)

    def _on_lan_peer(self, key: bytes, address: Address) -> None:
        link = self._links.get(key)
        if link is not None:
            self._lan[key] = address
            link.notify_moved()

    def _make_greeting(self, key: bytes) -> bytes:
        """What we say first on a connection: whoever has been away gets what it missed."""
        self._second.tell_again(key)
        return self._flood.make_have(REPLAY_SECONDS, 0.0, self._clock()).encode()

    def _get_dial_address(self, key: bytes) -> Address | None:
        """Where to dial a peer, or None when we do not want to (or cannot). A relay only when in need."""
        is_needed = self._demands.get(key, 0.0) > self._clock()
        address = None
        if is_needed or key in self._mesh:
            address = self._lan.get(key) or self._allowed.get_address(key)
        return THROUGH_RELAY if address is None and is_needed else address

    def _demand(self, key: bytes) -> PeerLink:
        """The link to a peer we need now, dialed if it is not. Raises PeerUnreachable."""
        link = self._links.get(key)
        if link is None:
            raise PeerUnreachable(key, "it is not a client of the run")
        is_news = self._get_dial_address(key) is None
        self._demands[key] = self._clock() + DEMAND_SECONDS
        if is_news:
            link.notify_moved()
        return link

    async def _dial(self, key: bytes, address: Address) -> None:
        if address is THROUGH_RELAY:
            direct = [peer for peer, link in self._links.items() if link.is_direct]
            self._rng.shuffle(direct)
            link, ended = self._links[key], trio.Event()
            stream = await self._relay.call(key, direct)
            self._spawn_guarded(self._run_circuit, link, stream, ended)
            # else there would be more circuits the longer the ways are
            await link.wait_until(lambda: bool(link.connections) or ended.is_set())
            return
        error: NetworkError = PeerUnreachable(key, f"{address.host} has no address")
        is_lan = self._lan.get(key) == address
        if is_lan:
            del self._lan[key]  # a rumour is tried once; next time the peer's own word counts again
        for ip in [address.host] if is_lan else await self._resolve(address.host):
            try:
                await self._host.dial(key, ip, address.port)
            except PeerUnreachable as failure:
                error = failure
            else:
                return
        raise error

    async def _resolve(self, host: str) -> list[str]:
        """The addresses of a peer that we dial: no hint makes us knock on doors of our own network."""
        return [ip for ip in await resolve(host) if not self._is_public or is_public_host(ip)]

    def _on_connection(self, connection: MeshConnection) -> None:
        link = self._links.get(connection.key)
        if link is None:
            connection.cut()
            return
        if len(link.connections) >= MAX_CONNECTIONS_PER_PEER:
            connection.cut()
            self.report(connection.key, "connection_surplus")
            return
        link.add(connection)
        self._nursery.start_soon(link.run, link.watch, connection)

    # ---- announcements ------------------------------------------------------------------------------

    def _send_frame(self, frame: Frame, target: bytes) -> None:
        link = self._links.get(target)
        if link is not None:
            link.send(frame)

    def _send_news(self, kind: ItemKind, data: bytes, target: bytes) -> None:
        link = self._links.get(target)
        if link is not None and link.ready is not None:
            link.send_news(kind, data)

    def _heard_from(self, frame: Frame, source: bytes) -> None:
        super()._heard_from(frame, source)
        link = self._links.get(source)
        if link is not None:
            link.outbox.discard(frame.id)

    async def _serve_flood(self, stream: MeshStream) -> None:
        """Announcements of one neighbour, until it stops or misbehaves."""
        items = ItemStream(stream)
        while (received := await items.receive()) is not None:
            for kind, item in received:
                await items.wait_for_turn()
                if self._receive_item(kind, item, stream.key) is Verdict.NEW:
                    await self._yield_to_consumer()
                if not self._is_admitted(stream.key):
                    raise StreamBroken("the peer has been cut off")

    # ---- blobs and requests -------------------------------------------------------------------------

    def _order_holders(self, holders: Sequence[bytes]) -> list[bytes]:
        for key in holders:
            if key in self._links and self._allowed.get_address(key) is not None:
                self._demand(key)
        # a relay would carry what it needs itself: others, the relay among them, have it as soon
        return sorted(super()._order_holders(holders), key=lambda key: not self._links[key].is_direct)

    async def _download(self, peer_key: bytes, question: BlobQuestion) -> None:
        link = self._links.get(peer_key)
        if link is None or self._allowed.get_address(peer_key) is not None:
            link = self._demand(peer_key)  # but nobody is reached through a relay for a payload
        connection = await link.wait_until_ready(0)
        bulk = await self._bulk.acquire(peer_key)
        if bulk is not None:
            is_reusable = False
            try:
                await download_blob(bulk, question, self._stats)
                is_reusable = True
            except (PeerUnreachable, Referred):
                is_reusable = True
                raise
            finally:
                self._bulk.release(bulk, is_reusable=is_reusable)
            return
        stream = await connection.open_stream(BLOB_PROTOCOL)
        try:
            await download_blob(stream, question, self._stats)
            await stream.close()
        finally:
            await stream.reset()

    async def _open_bulk_protocol(self, peer_key: bytes) -> MeshStream:
        return await self._open_ready_stream(peer_key, BULK_PROTOCOL)

    async def _open_ready_stream(self, peer_key: bytes, protocol: str) -> MeshStream:
        """A stream to a peer that is connected directly. Raises PeerUnreachable."""
        link = self._links.get(peer_key)
        if link is None or not link.is_direct:
            raise PeerUnreachable(peer_key, "no direct connection")
        connection = await link.wait_until_ready(0)
        return await connection.open_stream(protocol)

    async def _run_circuit(self, link: PeerLink, stream: ByteStream, ended: trio.Event) -> None:
        try:
            await self._host.dial_through(link.key, stream)
        finally:
            ended.set()
            link.notify()
            await stream.reset()

    def _spawn_guarded(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task beside everything else; its failure must not end the network."""

        async def guarded() -> None:
            try:
                await task(*args)
            except NetworkError as error:
                log.debug("task %s: %s", task, error)

        self._nursery.start_soon(guarded)

    async def _call(
        self, peer_key: bytes, kind: str, body: bytes, max_response_bytes: int
    ) -> tuple[ReplyStatus, bytes]:
        connection = await self._demand(peer_key).wait_until_ready(READY_SECONDS)
        stream = await connection.open_stream(REQUEST_PROTOCOL)
        try:
            return await send_request(stream, kind, body, max_response_bytes)
        except StreamBroken as error:
            raise RequestFailed(peer_key, kind, str(error)) from error
        finally:
            await stream.reset()
