"""Where do others see us? A peer in between says from which address and port a connection of ours comes.

Over `/psyche/seen/1`, between peers of the run, and at the port of the mesh, without libp2p:

    subject -> observer   0, key 32 of the one who shall know     <- token 16 (zeros: not now)
    subject -> observer   TCP: SEEN_HELLO 14, token 16            <- ip 16, port u16 little-endian
    reader  -> observer   1, key 32 of the subject                <- ip 16, port u16 (zeros: not seen)

What the observer passes on it has seen itself: the subject's token came over a TCP connection from there. So
no peer can have others dial an address by claiming that it is its own. `run-manager doctor` asks with a
token of its own making: it is told where it is seen, and nobody else is. IPv4 is written as ::ffff:a.b.c.d.
"""

from __future__ import annotations

import secrets
import socket as sockets
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address

import trio

from psyche_py.p2p.dial_back import STEP_SECONDS, TOKEN_BYTES, receive_exactly
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.hint import Address
from psyche_py.p2p.identity import KEY_BYTES
from psyche_py.p2p.libp2p_services import IO_SECONDS, ByteStream
from psyche_py.p2p.listening import resolve

SEEN_PROTOCOL = "/psyche/seen/1"
SEEN_HELLO = b"\0psyche-seen/1"
KEEP_SECONDS = 20.0
"""How long a token is good, a sighting is known, and the connection it came over is kept."""
MAX_TOKENS = MAX_SIGHTINGS = 8
"""Per subject; a client makes `punch.MAX_ATTEMPTS` attempts at a time."""
MAX_KEPT = 2 * MAX_SIGHTINGS
"""Connections of one subject that are kept; they count for no limit of `doors.Doors` any more."""
_SEE_ME, _WHERE = 0, 1
_PLACE = struct.Struct("<16sH")
_NOWHERE = bytes(_PLACE.size)
_NO_TOKEN = bytes(TOKEN_BYTES)


class PortRule(Enum):
    """From which ports two connections come out of our router that begin at one port of ours."""

    SAME = "same"
    OTHER = "other"
    KEPT = "kept"
    """There was one target only, and it saw the port that we used: probably `SAME`."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Expected:
    subject: bytes
    reader: bytes
    until: float


@dataclass(frozen=True, slots=True)
class _Sighting:
    address: Address
    until: float


class Sightings:
    """Who has been seen where, and who may know. No I/O; ``now`` in seconds is given."""

    def __init__(self) -> None:
        self._expected: dict[bytes, _Expected] = {}
        self._seen: dict[tuple[bytes, bytes], _Sighting] = {}

    def expect(self, subject: bytes, reader: bytes, now: float) -> bytes | None:
        """A token (16 B) for a connection of ``subject`` that ``reader`` may know of; None: not now."""
        self._expected = {token: item for token, item in self._expected.items() if item.until > now}
        if sum(item.subject == subject for item in self._expected.values()) >= MAX_TOKENS:
            return None
        token = secrets.token_bytes(TOKEN_BYTES)
        self._expected[token] = _Expected(subject, reader, now + KEEP_SECONDS)
        return token

    def note(self, token: bytes, address: Address, now: float) -> bytes | None:
        """A connection with ``token`` comes from ``address``; whose it is, None: nobody's who has a token."""
        expected = self._expected.pop(token, None)
        if expected is None or expected.until <= now:
            return None
        self._seen = {pair: item for pair, item in self._seen.items() if item.until > now}
        pair = (expected.subject, expected.reader)
        self._seen.pop(pair, None)
        old = [known for known in self._seen if known[0] == expected.subject]
        for known in old[: max(0, len(old) + 1 - MAX_SIGHTINGS)]:
            del self._seen[known]
        self._seen[pair] = _Sighting(address, now + KEEP_SECONDS)
        return expected.subject

    def find(self, subject: bytes, reader: bytes, now: float) -> Address | None:
        """Where ``subject`` has been seen, if it wanted ``reader`` to know."""
        sighting = self._seen.get((subject, reader))
        return sighting.address if sighting is not None and sighting.until > now else None

    def forget_peers(self, keys: Iterable[bytes]) -> None:
        """These are no longer in the run."""
        gone = frozenset(keys)
        self._expected = {token: item for token, item in self._expected.items() if item.subject not in gone}
        self._seen = {pair: item for pair, item in self._seen.items() if gone.isdisjoint(pair)}

    def __len__(self) -> int:
        return len(self._expected) + len(self._seen)


class SeenService:
    """The observer's side."""

    def __init__(self) -> None:
        self.sightings = Sightings()
        self._num_kept: Counter[bytes] = Counter()

    async def serve(self, stream: ByteStream) -> None:
        """Answer one question on `/psyche/seen/1`."""
        head = await stream.read_exactly(1 + KEY_BYTES, IO_SECONDS)
        now, key = trio.current_time(), head[1:]
        if head[0] == _SEE_ME:
            has_place = self._num_kept[stream.key] < MAX_KEPT
            token = self.sightings.expect(stream.key, key, now) if has_place else None
            await stream.write(token or _NO_TOKEN, IO_SECONDS)
        elif head[0] == _WHERE:
            address = self.sightings.find(key, stream.key, now)
            await stream.write(encode_place(address) if address is not None else _NOWHERE, IO_SECONDS)
        else:
            raise StreamBroken(f"unknown mode {head[0]}", "seen_question_malformed")

    async def answer(self, socket: trio.socket.SocketType, on_known: Callable[[], None]) -> None:
        """Tell a connection whose hello has been read where it comes from. The caller closes the socket.

        ``on_known()``: it is a peer's. It is kept as long as the other side keeps it, since a router may
        forget the port with it; a stranger's for `STEP_SECONDS`.
        """
        subject = None
        try:
            with suppress(OSError), trio.move_on_after(STEP_SECONDS) as deadline:
                token = await receive_exactly(socket, TOKEN_BYTES)
                if token is None:
                    return
                address = get_place(socket.getpeername())
                subject = self.sightings.note(token, address, trio.current_time())
                if subject is not None:
                    self._num_kept[subject] += 1
                    on_known()
                    deadline.deadline = trio.current_time() + KEEP_SECONDS
                await socket.send(encode_place(address))
                await socket.recv(1)
        finally:
            if subject is not None:
                self._num_kept[subject] -= 1
                if not self._num_kept[subject]:
                    del self._num_kept[subject]


# ---- the other sides ------------------------------------------------------------------------------------


async def ask_for_token(stream: ByteStream, reader: bytes) -> bytes:
    """A token for a connection to the observer, which shall tell ``reader`` of it. Raises NetworkError."""
    await stream.write(bytes([_SEE_ME]) + reader, IO_SECONDS)
    token = await stream.read_exactly(TOKEN_BYTES, IO_SECONDS)
    if token == _NO_TOKEN:
        raise PeerUnreachable(stream.key, "it has no time to look where we come from")
    return token


async def ask_where(stream: ByteStream, subject: bytes) -> Address:
    """Where the observer has seen ``subject``. Raises NetworkError."""
    await stream.write(bytes([_WHERE]) + subject, IO_SECONDS)
    place = await stream.read_exactly(_PLACE.size, IO_SECONDS)
    if place == _NOWHERE:
        raise PeerUnreachable(subject, "it has not been seen")
    return decode_place(place)


@asynccontextmanager
async def being_seen(
    observer: Address, token: bytes, own_port: int = 0
) -> AsyncIterator[tuple[int, Address]]:
    """Connect to an observer (``host`` an IP) from ``own_port``, 0: a new one.

    Yields the port and where the observer sees it, while the connection stands. Raises PeerUnreachable.
    """
    socket = None
    try:
        try:
            with trio.fail_after(STEP_SECONDS):
                socket = await open_shared_socket(observer.host, own_port)
                # ended by a reset: else the port could not be connected to this observer again for a minute
                socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
                await socket.connect((observer.host, observer.port))
                await socket.send(SEEN_HELLO + token)
                place = await receive_exactly(socket, _PLACE.size)
        except (OSError, trio.TooSlowError) as error:
            raise PeerUnreachable(bytes(32), f"{observer} does not answer") from error
        if place is None:
            raise PeerUnreachable(bytes(32), f"{observer} does not say where it sees us")
        yield int(socket.getsockname()[1]), decode_place(place)
    finally:
        if socket is not None:
            socket.close()


async def compare_ports(observers: Sequence[Address], seed: bytes) -> PortRule:
    """What our router does with ports, as at most two of ``observers`` (hosts) see it. Raises nothing.

    ``seed`` (16 B) is the token that they are shown; no observer has given it out.
    """
    own_port, seen = 0, dict[str, Address]()
    async with AsyncExitStack() as stack:
        for observer in observers:
            ip = next(iter(await resolve(observer.host)), "")
            # a router may go by the target's address alone: two of its ports would tell nothing; and what
            # comes out of it in the other family of addresses is not to be compared
            is_comparable = all((":" in ip) == (":" in other) for other in seen)
            if ip and ip not in seen and is_comparable and len(seen) < 2:
                with suppress(PeerUnreachable):
                    vantage = being_seen(Address(ip, observer.port), seed, own_port)
                    own_port, seen[ip] = await stack.enter_async_context(vantage)
    places = list(seen.values())
    if len(places) == 2:
        return PortRule.SAME if places[0] == places[1] else PortRule.OTHER
    return PortRule.KEPT if places and places[0].port == own_port else PortRule.UNKNOWN


async def open_shared_socket(remote_ip: str, own_port: int) -> trio.socket.SocketType:
    """A TCP socket for the family of ``remote_ip`` at a port that others of ours may have too.

    Port 0: a free one. Raises OSError.
    """
    is_ip6 = ":" in remote_ip
    socket = trio.socket.socket(sockets.AF_INET6 if is_ip6 else sockets.AF_INET, sockets.SOCK_STREAM)
    try:
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        if hasattr(sockets, "SO_REUSEPORT"):
            socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEPORT, 1)
        await socket.bind(("::" if is_ip6 else "0.0.0.0", own_port))
    except BaseException:
        socket.close()
        raise
    return socket


# ---- addresses in bytes ---------------------------------------------------------------------------------


def get_place(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """The address of a socket's other end, as `getpeername` says it."""
    ip = ip_address(name[0].partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return Address(str(ip), name[1])


def encode_place(address: Address) -> bytes:
    """18 bytes for an IP literal and a port."""
    ip = ip_address(address.host)
    raw = IPv6Address(f"::ffff:{ip}").packed if isinstance(ip, IPv4Address) else ip.packed
    return _PLACE.pack(raw, address.port)


def decode_place(place: bytes) -> Address:
    """What `encode_place` has written; any 18 bytes are an address, though perhaps not one to dial."""
    raw, port = _PLACE.unpack(place)
    return get_place((str(IPv6Address(raw)), port))
