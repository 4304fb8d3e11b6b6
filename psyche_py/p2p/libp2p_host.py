"""A libp2p host reduced to what the mesh needs, and hardened.

libp2p is imported here, in libp2p_stream.py and in libp2p_patches.py, and nowhere else. As it comes,
py-libp2p 0.8.1 accepts unauthenticated connections and dies of an exception in any stream handler. Here:
TCP, Noise and Yamux only; no identify, no auto-dialing, no resource manager; a gate by p2p key on every
connection of either direction; every task guarded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.exceptions import ParseError
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from psyche_py.p2p.bulk import BULK_HELLO
from psyche_py.p2p.doors import Doors
from psyche_py.p2p.errors import ListenFailed, PeerUnreachable, StreamBroken
from psyche_py.p2p.identity import key_from_peer_id, peer_id_from_key
from psyche_py.p2p.libp2p_patches import get_socket, get_stream, guard_muxer, patch_libp2p
from psyche_py.p2p.libp2p_services import PING_PROTOCOL, ByteStream
from psyche_py.p2p.libp2p_stream import Carrier, MeshStream, PunchedStream
from psyche_py.p2p.port import Way

MAX_CONNECTIONS = 768
"""Connections and handshakes together; the latter are limited by `doors.Doors`."""
MAX_INBOUND_STREAMS = 64
"""Streams one peer may keep open towards us; more are reset."""
UPGRADE_SECONDS = 6.0
NEGOTIATE_SECONDS = 5

log = logging.getLogger("psyche_py.p2p")
StreamHandler = Callable[[MeshStream], Awaitable[None]]
OnOffence = Callable[[bytes, str], None]
ServeBulk = Callable[[trio.socket.SocketType, Callable[[], None]], Awaitable[None]]


class MeshConnection:
    """One live connection to the peer ``key``."""

    def __init__(self, host: MeshHost, conn: Any, key: bytes) -> None:
        self._host = host
        self._conn = conn
        self.key = key

    @property
    def closed(self) -> trio.Event:
        """Set as soon as the connection is of no more use."""
        event: trio.Event = self._conn.event_closed
        return event

    async def open_stream(self, protocol: str) -> MeshStream:
        """Open a stream and agree on its protocol. Raises PeerUnreachable."""
        stream = None
        try:
            # Cancelled while it sends its one frame, the library would lose the stream's slot for good.
            with trio.CancelScope(shield=True):
                stream = await self._conn.new_stream()
            await self._host.negotiate(stream, protocol)
            stream.set_protocol(protocol)
        except BaseException as error:
            if stream is not None:
                await MeshStream(stream, self.key).reset()
            if isinstance(error, Exception):
                raise PeerUnreachable(self.key, f"no {protocol} stream") from error
            raise
        return MeshStream(stream, self.key)

    @property
    def way(self) -> Way:
        """What carries it."""
        tcp = get_stream(self._conn.muxed_conn)
        if isinstance(tcp, Carrier):
            return Way.RELAYED
        return Way.PUNCHED if isinstance(tcp, PunchedStream) else Way.DIRECT

    @property
    def is_relayed(self) -> bool:
        """Whether a third peer carries it."""
        return self.way is Way.RELAYED

    @property
    def num_streams_in_use(self) -> int:
        """Streams of both sides, without their pings."""
        return sum(stream.get_protocol() != PING_PROTOCOL for stream in self._conn.get_streams())

    def cut(self) -> None:
        """Close the socket now. Everything above it notices by itself; a polite good-bye could block."""
        get_socket(self._conn.muxed_conn).close()


class MeshHost:
    """A libp2p host with one key, one listener and a gate.

    ``is_allowed(key)`` is asked for every connection and stream; ``on_connection`` gets each new connection;
    ``serve_bulk(socket, on_known)`` gets the bulk connections that come in on the same port;
    ``on_offence(key, kind)`` hears of bad input, with an empty key when it is a stranger's.
    """

    def __init__(
        self,
        key_seed: bytes,
        is_allowed: Callable[[bytes], bool],
        on_connection: Callable[[MeshConnection], None],
        serve_bulk: ServeBulk | None = None,
        on_offence: OnOffence | None = None,
    ) -> None:
        patch_libp2p()
        self._on_offence = on_offence if on_offence is not None else _ignore_offence
        self._serve_bulk = serve_bulk
        self._doors = Doors()
        self._half_open: dict[trio.socket.SocketType, str] = {}
        self._is_allowed = is_allowed
        self._on_connection = on_connection
        self._num_streams: Counter[bytes] = Counter()
        keys = create_new_key_pair(key_seed)
        noise = NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)
        self._host = new_host(
            key_pair=keys,
            sec_opt={NOISE_PROTOCOL: noise},
            muxer_opt={YAMUX_PROTOCOL: Yamux},
            connection_config=ConnectionConfig(
                min_connections=0,
                low_watermark=0,
                max_connections=MAX_CONNECTIONS,
                high_watermark=MAX_CONNECTIONS,
                inbound_upgrade_timeout=UPGRADE_SECONDS,
                outbound_upgrade_timeout=UPGRADE_SECONDS,
                inbound_stream_protocol_negotiation_timeout=NEGOTIATE_SECONDS,
            ),
        )
        self._swarm = self._host.get_network()
        self._harden()

    def _harden(self) -> None:
        swarm = self._swarm
        swarm.retry_config = RetryConfig(max_retries=0)
        # Its counters leak a slot for every connection our gate refuses, until it refuses everybody.
        swarm.set_resource_manager(None)
        # Identify runs in system tasks, where an exception ends the process; we know our peers anyway.
        swarm.notifees.clear()
        # Even with all watermarks at zero it would dial whatever is in the address book.
        swarm.auto_connector.maybe_connect = trio.lowlevel.checkpoint
        self._host.get_mux().handlers.clear()
        self._negotiate = self._host.multiselect.negotiate
        self._host.multiselect.negotiate = self._agree_on_protocol
        self._handle_stream = swarm.common_stream_handler
        swarm.set_stream_handler(self._guard_stream)
        self._add_conn = swarm.add_conn
        swarm.add_conn = self._gate
        self._handle_inbound = swarm._handle_inbound_connection
        swarm._handle_inbound_connection = self._open_door
        self._upgrade_inbound = swarm.upgrade_inbound_raw_conn
        swarm.upgrade_inbound_raw_conn = self._serve_inbound

    # ---- guards -------------------------------------------------------------------------------------

    async def _open_door(self, raw: Any, address: Any) -> None:
        """Everything that comes in: turn away whom `Doors` does not let in, and tell the two kinds apart."""
        socket: trio.socket.SocketType = raw.stream.socket
        with suppress(OSError):
            ip = socket.getpeername()[0]
            if self._doors.enter(ip, trio.current_time()):
                self._half_open[socket] = ip
                try:
                    await self._let_in(socket, raw, address)
                finally:
                    self._leave_door(socket, is_failure=True)
            else:
                self._on_offence(b"", "door_closed")
        socket.close()

    async def _let_in(self, socket: trio.socket.SocketType, raw: Any, address: Any) -> None:
        first = b""
        with trio.move_on_after(UPGRADE_SECONDS):
            first = await socket.recv(1, trio.socket.MSG_PEEK)
        if first == BULK_HELLO[:1]:
            if self._serve_bulk is not None:
                await self._serve_bulk(socket, partial(self._leave_door, socket, is_failure=False))
            return
        if first:
            await self._handle_inbound(raw, address)
        if socket in self._half_open:
            self._on_offence(b"", "handshake_failed")

    def _leave_door(self, socket: trio.socket.SocketType, *, is_failure: bool) -> None:
        """The connection is no longer half open. Only the first call for a connection counts."""
        ip = self._half_open.pop(socket, None)
        if ip is not None:
            self._doors.leave(ip, trio.current_time(), is_failure=is_failure)

    async def _gate(self, muxed: Any, direction: str = "unknown") -> Any:
        """Let in only allowed peers; the caller closes the socket when this raises."""
        key = key_from_peer_id(muxed.peer_id.to_bytes())
        if key is None or not self._is_allowed(key):
            raise SwarmException("the peer is not a client of the run")
        self._leave_door(get_socket(muxed), is_failure=False)
        guard_muxer(muxed, partial(self._on_offence, key))
        conn = await self._add_conn(muxed, direction=direction)
        connection = MeshConnection(self, conn, key)
        if not self._is_allowed(key):  # the list may have changed while we waited
            connection.cut()
            raise SwarmException("the peer is no longer a client of the run")
        self._on_connection(connection)
        return conn

    async def _serve_inbound(self, raw: Any, address: Any) -> Any:
        """Stay until the connection ends: the library would keep its slot until the host ends."""
        muxed = await self._upgrade_inbound(raw, address)
        await muxed.event_closed.wait()
        raise SwarmException("the connection has ended")

    async def _guard_stream(self, stream: Any) -> None:
        """Run the handler of one inbound stream so that nothing it raises reaches the host."""
        key = key_from_peer_id(stream.muxed_conn.peer_id.to_bytes())
        if key is None or not self._is_allowed(key):
            await MeshStream(stream, key or b"").reset()
            return
        if self._num_streams[key] >= MAX_INBOUND_STREAMS:
            self._on_offence(key, "stream_surplus")
            await MeshStream(stream, key).reset()
            return
        self._num_streams[key] += 1
        try:
            await self._handle_stream(stream)
        except StreamBroken as error:
            log.debug("stream of %s: %s", key.hex()[:12], error)
            if error.offence:
                self._on_offence(key, error.offence)
        except Exception:  # whatever a peer's bytes provoke must not end the host
            log.debug("stream of %s", key.hex()[:12], exc_info=True)
        finally:
            self._num_streams[key] -= 1
            if not self._num_streams[key]:
                del self._num_streams[key]
            await MeshStream(stream, key).reset()

    async def _agree_on_protocol(self, communicator: Any, seconds: int) -> Any:
        """The library's negotiation of an inbound stream, which keeps to itself what goes wrong."""
        try:
            return await self._negotiate(communicator, seconds)
        except Exception as error:
            key = key_from_peer_id(communicator.read_writer.muxed_conn.peer_id.to_bytes())
            if key is not None and _is_garbage(error):
                self._on_offence(key, "negotiation_garbage")
            raise

    def _guard_tasks(self) -> None:
        """An exception in one connection's task would otherwise cancel all of them."""
        manager = self._swarm.manager
        run_task = manager.run_task

        def run_guarded(function: Callable[..., Awaitable[None]], *args: Any, **options: Any) -> None:
            async def guarded() -> None:
                try:
                    await function(*args)
                except Exception:  # see the docstring
                    log.debug("libp2p task %s", function, exc_info=True)

            run_task(guarded, **options)

        manager.run_task = run_guarded

    # ---- use ----------------------------------------------------------------------------------------

    def set_stream_handler(self, protocol: str, handler: StreamHandler) -> None:
        """Serve a protocol; the stream ends when the handler returns."""

        async def handle(stream: Any) -> None:
            key = key_from_peer_id(stream.muxed_conn.peer_id.to_bytes())
            assert key is not None, "the gate lets only ed25519 keys in"
            mesh_stream = MeshStream(stream, key)
            await handler(mesh_stream)
            await mesh_stream.finish()

        self._host.set_stream_handler(protocol, handle)

    async def negotiate(self, stream: Any, protocol: str) -> None:
        """Agree on the protocol of an outbound stream."""
        await self._host.multiselect_client.select_one_of(
            [protocol], MultiselectCommunicator(stream), NEGOTIATE_SECONDS
        )

    async def dial(self, key: bytes, ip: str, port: int) -> None:
        """Connect to ``key`` at an address; `on_connection` gets the connection. Raises PeerUnreachable."""
        family = "ip6" if ":" in ip else "ip4"
        try:
            await self._swarm.dial_addr(Multiaddr(f"/{family}/{ip}/tcp/{port}"), ID(peer_id_from_key(key)))
        except Exception as error:  # the library raises many kinds, all of them mean the same here
            raise PeerUnreachable(key, f"dialing {ip} port {port} failed") from error

    async def dial_through(self, key: bytes, stream: ByteStream) -> None:
        """Connect to ``key`` over a relay's stream, to the end of the connection. Raises PeerUnreachable."""
        await self._call_over(key, RawConnection(Carrier(stream), True))

    async def take_in_relayed(self, stream: ByteStream) -> None:
        """Serve a connection that a relay brings, to its end."""
        await self._answer_over(stream.key, RawConnection(Carrier(stream), False))

    async def adopt(self, socket: trio.socket.SocketType, key: bytes, is_initiator: bool) -> None:
        """Connect to ``key`` over a TCP connection that both sides opened, to its end. One is the initiator.

        Raises PeerUnreachable. On the other side it may be another allowed peer that shows up.
        """
        tcp = PunchedStream(trio.SocketStream(socket))
        try:
            if is_initiator:
                await self._call_over(key, RawConnection(tcp, True))
            else:
                await self._answer_over(key, RawConnection(tcp, False))
        finally:
            socket.close()

    async def _call_over(self, key: bytes, raw: RawConnection) -> None:
        try:
            with trio.fail_after(UPGRADE_SECONDS):
                conn = await self._swarm.upgrade_outbound_raw_conn(raw, ID(peer_id_from_key(key)))
        except Exception as error:  # as in `dial`
            raise PeerUnreachable(key, "the handshake failed") from error
        await conn.event_closed.wait()

    async def _answer_over(self, key: bytes, raw: RawConnection) -> None:
        try:
            await self._serve_inbound(raw, Multiaddr("/ip4/0.0.0.0/tcp/0"))
        except SwarmException:  # also when a connection has stood and ended
            return
        except Exception as error:  # as in `dial`: what the other side's bytes provoke is of many kinds
            raise PeerUnreachable(key, "the handshake failed") from error

    @asynccontextmanager
    async def run(self, ip: str, port: int) -> AsyncIterator[int]:
        """Listen and yield the port. The caller cuts all connections before it leaves the context."""
        family = "ip6" if ":" in ip else "ip4"
        async with self._host.run([Multiaddr(f"/{family}/{ip}/tcp/{port}")]):
            self._guard_tasks()
            addresses = [address for item in self._swarm.listeners.values() for address in item.get_addrs()]
            if not addresses:
                raise ListenFailed(
                    f"Cannot listen on {ip} port {port}.",
                    "Use an address of this machine, or 0.0.0.0 for all.",
                )
            try:
                yield int(addresses[0].value_for_protocol("tcp"))
            finally:
                # The library closes them under cancellation, hence not at all: the port would stay open.
                with trio.CancelScope(shield=True):
                    for listener in self._swarm.listeners.values():
                        await listener.close()
                self._swarm.listeners.clear()

    async def wait_until_disconnected(self) -> None:
        """Wait until the library has noticed that its connections were cut."""
        while self._swarm.connections:
            await trio.sleep(0.01)


def _ignore_offence(key: bytes, kind: str) -> None:
    """For a host that nobody watches."""


def _is_garbage(error: BaseException) -> bool:
    """Whether a negotiation failed for what the peer said; silence and broken connections are no offence."""
    if isinstance(error, UnicodeDecodeError):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ParseError):
            return True
        cause = cause.__cause__
    return error.__cause__ is None and error.__context__ is None  # another first line than the library's
