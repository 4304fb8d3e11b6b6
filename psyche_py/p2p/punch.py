"""Hole punching: two peers behind routers, connected through a relay, agree on a moment and connect directly.

A router lets in what answers something that went out. So both connect to each other in the same instant, each
from a port of its own where a third peer has just seen it come from (seen.py). `/psyche/punch/1`, over the
circuit; the side with the smaller key is the caller, later the Noise initiator:

    caller -> other   number u8, keys 32 each: peers that can be dialed and that I am connected to
    other  -> caller  u8, which of them is to look at us; NOBODY: none, or not now
    both              SEEN: it has seen me             then both ask it where the other is
    other  -> caller  READY
    caller -> other   PING, and back; then GO          the caller connects half a round trip later

The port is a new one for each attempt and not the listening port. With two fixed ports and addresses there is
at most one TCP connection between the two, whether the calls cross or one side accepts, so the roles of the
handshake are settled before; a second attempt is not kept waiting by the first one's ports; and what comes in
at the listening port is a stranger's as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import IntEnum
from ipaddress import ip_address
from random import Random
from typing import TYPE_CHECKING, TypeVar

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.hint import Address
from psyche_py.p2p.identity import KEY_BYTES
from psyche_py.p2p.libp2p_services import ByteStream
from psyche_py.p2p.listening import is_public_host
from psyche_py.p2p.port import Way
from psyche_py.p2p.seen import (
    SEEN_PROTOCOL,
    ask_for_token,
    ask_where,
    being_seen,
    get_place,
    open_shared_socket,
)

if TYPE_CHECKING:
    from psyche_py.p2p.libp2p_host import MeshConnection
    from psyche_py.p2p.libp2p_link import PeerLink
    from psyche_py.p2p.port import TrafficStats

PUNCH_PROTOCOL = "/psyche/punch/1"
PAUSES = (0.0, 15.0, 90.0)
"""Seconds before the first and every further attempt with a peer; there are no more in an epoch."""
MAX_ANSWERED = 3 * len(PAUSES)
"""Failed attempts of one peer in an epoch that we take part in: its epoch may begin later, it may restart."""
MAX_ATTEMPTS = 4
"""At a time, of our own; and as many of others."""
MAX_OBSERVERS = 4
NOBODY = 255
MIN_PORT = 1_024
"""Routers give out no lower ports, and well-known services have no higher ones."""
STEP_SECONDS = 10.0
ATTEMPT_SECONDS = 40.0
MEET_SECONDS = 5.0
CONNECT_SECONDS = 2.5
CONNECT_PAUSE_SECONDS = 0.1
MAX_CONNECTS = 5
READY_SECONDS = 8.0
RETIRE_POLL_SECONDS = 0.5
"""How soon a circuit that nothing uses any more is given up."""

Answer = TypeVar("Answer")
OpenStream = Callable[[bytes, str], Awaitable[ByteStream]]


class Step(IntEnum):
    """What the two tell each other, a byte each."""

    SEEN = 1
    READY = 2
    PING = 3
    GO = 4


class Puncher:
    """Looks for a direct way to peers that a relay leads to, and takes part when they look for one.

    ``links``: those to all allowed peers; ``get_address(key)``: where anybody can dial a peer.
    ``open_stream(key, protocol)`` to one that is connected directly, ``resolve(host)`` to IP addresses that
    may be dialed, ``dial(key, address)`` raises NetworkError, ``adopt(socket, key, is_initiator)`` starts to
    run a connection over a socket, ``on_offence(key, kind)`` hears of bad input.
    """

    def __init__(
        self,
        key: bytes,
        *,
        links: Mapping[bytes, PeerLink],
        get_address: Callable[[bytes], Address | None],
        open_stream: OpenStream,
        resolve: Callable[[str], Awaitable[list[str]]],
        dial: Callable[[bytes, Address], Awaitable[None]],
        adopt: Callable[[trio.socket.SocketType, bytes, bool], None],
        on_offence: Callable[[bytes, str], None],
        is_public: bool,
        stats: TrafficStats,
        rng: Random,
    ) -> None:
        self._key = key
        self._links = links
        self._get_address = get_address
        self._open_stream = open_stream
        self._resolve = resolve
        self._dial = dial
        self._adopt = adopt
        self._on_offence = on_offence
        self._is_public = is_public
        self._counts = stats.punches
        self._rng = rng
        self._epoch = b""
        self._tried: Counter[bytes] = Counter()
        self._answered: Counter[bytes] = Counter()
        self._calling = trio.CapacityLimiter(MAX_ATTEMPTS)
        self._answering = trio.CapacityLimiter(MAX_ATTEMPTS)

    def start_epoch(self, seed: bytes) -> None:
        """With another seed than before everybody may be tried again."""
        if seed != self._epoch:
            self._epoch = seed
            self._tried.clear()
            self._answered.clear()

    # ---- our own attempts ---------------------------------------------------------------------------

    async def improve(self, link: PeerLink) -> None:
        """Whenever only a circuit leads to a peer, look for a direct way; then end the circuit."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._seek, link)
            if self._key < link.key:  # one of the two decides
                nursery.start_soon(self._retire_circuits, link)

    async def _seek(self, link: PeerLink) -> None:
        key = link.key
        while True:
            await link.wait_until(lambda: link.way is Way.RELAYED and self._may_try(key))
            await trio.sleep(PAUSES[self._tried[key]] * self._rng.uniform(0.8, 1.2))
            async with self._calling:
                circuit = link.ready
                if circuit is None or not circuit.is_relayed or not self._may_try(key):
                    continue
                self._tried[key] += 1
                epoch = self._epoch
                if await self._try(link, circuit) and epoch == self._epoch:
                    self._tried[key] -= 1  # what works may be done again

    async def _retire_circuits(self, link: PeerLink) -> None:
        """End what nothing uses any more. The other side's stream of announcements is the last to leave."""
        while True:
            await link.wait_until(lambda: link.is_direct and link.has_circuit)
            await trio.sleep(RETIRE_POLL_SECONDS)
            for connection in link.connections:
                if connection.is_relayed and link.is_direct and not connection.num_streams_in_use:
                    connection.cut()

    def _may_try(self, key: bytes) -> bool:
        is_caller = self._key < key or self._get_address(key) is not None
        return is_caller and self._tried[key] < len(PAUSES)

    async def _try(self, link: PeerLink, circuit: MeshConnection) -> bool:
        """One attempt; whether there is a direct connection now."""
        address = self._get_address(link.key)
        if address is not None:  # it has called us through a relay, but we can dial it
            with suppress(NetworkError, trio.TooSlowError):
                with trio.fail_after(READY_SECONDS):
                    await self._dial(link.key, address)
                await link.wait_until_direct(READY_SECONDS)
            return link.is_direct
        self._counts["tried"] += 1
        try:
            with trio.fail_after(ATTEMPT_SECONDS):
                stream = await circuit.open_stream(PUNCH_PROTOCOL)
                try:
                    socket = await self._call(stream)
                finally:
                    await stream.reset()
            self._adopt(socket, link.key, True)
            await link.wait_until_direct(READY_SECONDS)
        except (NetworkError, trio.TooSlowError) as error:
            self._counts["failed"] += 1
            if isinstance(error, StreamBroken) and error.offence:
                self._on_offence(link.key, error.offence)
        else:
            self._counts["connected"] += 1
        return link.is_direct

    async def _call(self, stream: ByteStream) -> trio.socket.SocketType:
        observers = self._get_observers()
        keys = self._rng.sample(sorted(observers), min(MAX_OBSERVERS, len(observers)))
        if not keys:
            raise PeerUnreachable(stream.key, "nobody is there to say where we are seen")
        await stream.write(bytes([len(keys)]) + b"".join(keys), STEP_SECONDS)
        (choice,) = await stream.read_exactly(1, ATTEMPT_SECONDS)
        if choice == NOBODY:
            raise PeerUnreachable(stream.key, "it does not take part in hole punching now")
        if choice >= len(keys):
            raise StreamBroken(f"there is no choice {choice}", "punch_malformed")
        async with self._prepare(stream, keys[choice], observers[keys[choice]]) as (listener, target):
            await _expect(stream, Step.READY)
            started = trio.current_time()
            await stream.write(bytes([Step.PING]), STEP_SECONDS)
            await _expect(stream, Step.PING)
            round_trip = trio.current_time() - started
            await stream.write(bytes([Step.GO]), STEP_SECONDS)
            await trio.sleep(round_trip / 2)
            return await meet(listener, target)

    # ---- attempts of others -------------------------------------------------------------------------

    async def serve(self, stream: ByteStream) -> None:
        """Take part in one attempt of a peer."""
        key = stream.key
        (number,) = await stream.read_exactly(1, STEP_SECONDS)
        if not 1 <= number <= MAX_OBSERVERS or key > self._key:
            raise StreamBroken("this is no call to punch a hole", "punch_malformed")
        names = await stream.read_exactly(number * KEY_BYTES, STEP_SECONDS)
        keys = [names[start : start + KEY_BYTES] for start in range(0, len(names), KEY_BYTES)]
        link, observers = self._links.get(key), self._get_observers()
        common = [name for name in keys if name in observers]
        if self._answered[key] >= MAX_ANSWERED:
            self._on_offence(key, "punch_surplus")
            common = []
        if link is None or link.is_direct or not common:
            self._counts["refused"] += 1
            await stream.write(bytes([NOBODY]), STEP_SECONDS)
            return
        self._answered[key] += 1
        epoch = self._epoch
        async with self._answering:
            with trio.move_on_after(ATTEMPT_SECONDS):
                socket = await self._answer(stream, keys.index(common[0]), common[0], observers[common[0]])
                self._adopt(socket, key, False)
                await link.wait_until_direct(READY_SECONDS)
                if epoch == self._epoch:
                    self._answered[key] -= 1
                self._counts["connected"] += 1

    async def _answer(
        self, stream: ByteStream, choice: int, observer: bytes, address: Address
    ) -> trio.socket.SocketType:
        await stream.write(bytes([choice]), STEP_SECONDS)
        async with self._prepare(stream, observer, address) as (listener, target):
            await stream.write(bytes([Step.READY]), STEP_SECONDS)
            await _expect(stream, Step.PING)
            await stream.write(bytes([Step.PING]), STEP_SECONDS)
            await _expect(stream, Step.GO)
            return await meet(listener, target)

    # ---- both ---------------------------------------------------------------------------------------

    def _get_observers(self) -> dict[bytes, Address]:
        """Peers that we are connected to, and where both of us can dial them."""
        direct = [key for key, link in self._links.items() if link.is_direct]
        addresses = {key: self._get_address(key) for key in direct}
        return {key: address for key, address in addresses.items() if address is not None}

    @asynccontextmanager
    async def _prepare(
        self, stream: ByteStream, observer: bytes, address: Address
    ) -> AsyncIterator[tuple[trio.socket.SocketType, Address]]:
        """Have the observer see both; yields a listening socket at our port, and where the other is."""
        key = stream.key
        ips = sorted(await self._resolve(address.host), key=lambda ip: ":" in ip)
        if not ips:
            raise PeerUnreachable(observer, f"{address.host} has no address that we dial")
        token = await self._ask(observer, ask_for_token, key)
        async with being_seen(Address(ips[0], address.port), token) as (port, own_place):
            await stream.write(bytes([Step.SEEN]), STEP_SECONDS)
            await _expect(stream, Step.SEEN)
            target = await self._ask(observer, ask_where, key)
            check_target(target, own_place, is_public=self._is_public)
            async with _open_listener(target.host, port) as listener:
                yield listener, target

    async def _ask(
        self, observer: bytes, question: Callable[[ByteStream, bytes], Awaitable[Answer]], key: bytes
    ) -> Answer:
        stream = await self._open_stream(observer, SEEN_PROTOCOL)
        try:
            return await question(stream, key)
        finally:
            await stream.reset()


@asynccontextmanager
async def _open_listener(remote_ip: str, port: int) -> AsyncIterator[trio.socket.SocketType]:
    """At a port that another socket of ours has too. Raises PeerUnreachable."""
    listener = None
    try:
        try:
            listener = await open_shared_socket(remote_ip, port)
            listener.listen(MAX_CONNECTS)
        except OSError as error:
            raise PeerUnreachable(bytes(32), f"port {port} cannot be shared") from error
        yield listener
    finally:
        if listener is not None:
            listener.close()


def check_target(target: Address, own_place: Address, *, is_public: bool) -> None:
    """Raises PeerUnreachable unless a peer's router can be there.

    In a public run no address of our own network is dialed, whatever an observer says; nowhere one that no
    machine can have, a port of the well-known services, or our own place.
    """
    ip = ip_address(target.host)
    is_possible = not (ip.is_unspecified or ip.is_multicast or ip.is_reserved) and target.port >= MIN_PORT
    is_allowed = is_public_host(target.host) or not is_public
    is_same_family = (":" in target.host) == (":" in own_place.host)
    if not (is_possible and is_allowed and is_same_family) or target == own_place:
        raise PeerUnreachable(bytes(32), f"{target} is not where we would look for a peer")


async def meet(listener: trio.socket.SocketType, target: Address) -> trio.socket.SocketType:
    """The TCP connection between the listener's port and ``target``. Raises PeerUnreachable."""
    port = int(listener.getsockname()[1])
    met: list[trio.socket.SocketType] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + MEET_SECONDS

            def take(socket: trio.socket.SocketType) -> None:
                if met:
                    socket.close()
                met.append(socket)
                nursery.cancel_scope.cancel()

            nursery.start_soon(_accept, listener, target, take)
            nursery.start_soon(_connect, port, target, take)
    except BaseException:  # cancelled in the moment in which they met
        for socket in met:
            socket.close()
        raise
    if not met:
        raise PeerUnreachable(bytes(32), f"{target} lets nothing of ours in")
    return met[0]


async def _accept(
    listener: trio.socket.SocketType, target: Address, take: Callable[[trio.socket.SocketType], None]
) -> None:
    """The other side's call where our router lets it in, even from another port than the expected one."""
    with suppress(OSError):
        while True:
            socket, name = await listener.accept()
            if get_place(name).host == target.host:
                take(socket)
                return
            socket.close()


async def _connect(port: int, target: Address, take: Callable[[trio.socket.SocketType], None]) -> None:
    for _ in range(MAX_CONNECTS):
        with suppress(OSError, trio.TooSlowError):
            take(await _connect_once(port, target))
            return
        await trio.sleep(CONNECT_PAUSE_SECONDS)


async def _connect_once(port: int, target: Address) -> trio.socket.SocketType:
    socket = await open_shared_socket(target.host, port)
    try:
        with trio.fail_after(CONNECT_SECONDS):
            await socket.connect((target.host, target.port))
    except BaseException:  # also when cancelled: the port must be free for the next attempt
        socket.close()
        raise
    return socket


async def _expect(stream: ByteStream, step: Step) -> None:
    said = await stream.read_exactly(1, STEP_SECONDS)
    if said[0] != step:
        raise StreamBroken(f"it said {said[0]}, not {step.name}", "punch_malformed")
