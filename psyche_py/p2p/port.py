"""What the client needs from a mesh, and nothing about how one is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import trio

    from psyche_py.p2p.blob import BlobStore

MAX_BODY_BYTES = 3_900
"""Longest announcement body; with key and signature a frame stays below 4 KiB."""
MAX_REQUEST_BYTES = 1 << 20
"""Longest body of a request."""

RequestHandler = Callable[[bytes, bytes], Awaitable[bytes]]
"""``await handler(sender_key, body) -> response``; an exception becomes an error reply."""


BlobSource = Callable[[bytes, bytes], bytes | memoryview | None]
"""``source(asker_key, name) -> bytes, or None`` when there is no such thing, or not for this asker."""


class Way(StrEnum):
    """How a connected peer is reached."""

    DIRECT = "direct"
    PUNCHED = "punched"
    """Directly, through two routers at the same moment (punch.py)."""
    RELAYED = "through_relay"


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One allowed peer: its ed25519 p2p public ``key`` (32 B) and packed address ``hint`` (64 B)."""

    key: bytes
    hint: bytes


@dataclass(frozen=True, slots=True)
class Announcement:
    """A body whose ``signature`` (64 B) by ``sender_key`` (32 B, an allowed peer) has been verified."""

    sender_key: bytes
    body: bytes
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Examination:
    """What the client says about a body. Two bodies with the same ``key`` contradict each other.

    ``key`` None: there may be any number of such bodies. ``fault``: the kind of offence it is to say this
    now: ``"frame_past"`` or ``"frame_future"`` (whoever passes it on is blamed), any other (the signer is).
    """

    key: Hashable = None
    fault: str = ""


Examine = Callable[[bytes], Examination]


@dataclass(slots=True)
class TrafficStats:
    """Payload bytes by kind (``announcement``, ``blob``, ``request``), and counters of what was dropped.

    Framing, encryption and control traffic are not counted. ``offences``: bad input by kind, see offences.py.
    ``punches``: attempts to punch a hole: ``tried`` and ``failed`` of our own, ``refused`` of others, and
    ``connected`` of both.
    """

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    offences: Counter[str] = field(default_factory=Counter)
    punches: Counter[str] = field(default_factory=Counter)

    @property
    def bytes_sent(self) -> int:
        return self.sent.total()

    @property
    def bytes_received(self) -> int:
        return self.received.total()


class Network(Protocol):
    """A mesh that knows its peers by their p2p keys.

    Before the first `set_peers` nobody is allowed in and nobody is dialed.
    """

    @property
    def key(self) -> bytes:
        """Our p2p public key, 32 bytes."""

    @property
    def hint(self) -> bytes:
        """Where we can be dialed, packed as on chain, 64 bytes."""

    @property
    def store(self) -> BlobStore:
        """The blobs we have; every allowed peer may fetch them."""

    @property
    def stats(self) -> TrafficStats: ...

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

    @property
    def num_connected(self) -> int:
        """How many allowed peers have a connection that has answered a ping."""

    @property
    def connected_peers(self) -> frozenset[bytes]:
        """The keys of those peers."""

    @property
    def ways(self) -> Counter[Way]:
        """How many of them are reached in which way."""

    def set_peers(self, peers: Sequence[PeerInfo], seed: bytes = b"") -> None:
        """Replace the allow-list and address book.

        Takes effect before it returns: connections of peers no longer listed are cut, their frames and
        requests are refused. Our own key in the list is ignored.
        ``seed`` (at most 64 B, the same for everybody, best the random seed of the epoch) draws anew who
        passes announcements to whom, and forgives what peers have done (see `report`).
        """

    def set_examiner(self, examine: Examine) -> None:
        """Let the client judge bodies before they are passed on. ``examine`` must be quick and not raise."""

    def report(self, peer_key: bytes, kind: str) -> None:
        """The client has caught a peer at something no honest one does; ``kind`` is a short word for it.

        Counted in ``stats.offences``. After a few the peer is disconnected until `set_peers` has a new seed.
        """

    async def publish(self, body: bytes) -> None:
        """Sign ``body`` and flood it. Peers that connect within a minute still get it.

        Raises MessageError when it is longer than `MAX_BODY_BYTES`. Never waits for a peer.
        """

    def announcements(self) -> trio.MemoryReceiveChannel[Announcement]:
        """Other peers' announcements, each once. One consumer; when it is too slow the oldest are dropped."""

    async def fetch(
        self, digest: bytes, size: int, holders: Sequence[bytes], *, deadline_seconds: float
    ) -> bytes:
        """The blob with this SHA-256, from the store or from a peer, and put it into the store.

        ``holders`` are tried in order, then any other connected peer. Raises FetchFailed.
        """

    def set_blob_source(self, source: BlobSource) -> None:
        """Serve what is not in the store: bytes that are read when they are asked for, by a 32-byte name."""

    async def fetch_from(self, peer_key: bytes, name: bytes, size: int, *, deadline_seconds: float) -> bytes:
        """What one peer serves under ``name``: ``size`` bytes that are neither checked nor stored.

        Raises NetworkError: PeerUnreachable when it has not got them, or not in time.
        """

    def set_request_handler(self, kind: str, handler: RequestHandler) -> None:
        """Answer requests of ``kind`` (at most 64 ASCII characters)."""

    async def request(
        self, peer_key: bytes, kind: str, body: bytes, *, max_response_bytes: int, deadline_seconds: float
    ) -> bytes:
        """Ask one peer. Raises PeerUnreachable or RequestFailed."""
