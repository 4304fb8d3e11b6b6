"""What every adapter shares: identity, allow-list, announcements, blobs, request handlers, counters.

An adapter derives from `Node` and moves the bytes: `_spread`, `_download`, `_call`, `_apply_changes`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import count
from random import Random

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.allowlist import AllowList, PeerChanges
from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.errors import FetchFailed, FrameError, PeerUnreachable, RequestFailed
from psyche_py.p2p.flood import REPLAY_SECONDS, Flood, Verdict
from psyche_py.p2p.frames import Frame, ItemKind, make_frame, parse_frame, parse_have
from psyche_py.p2p.hint import EMPTY_HINT
from psyche_py.p2p.identity import SigningKey
from psyche_py.p2p.neighbours import Neighbours
from psyche_py.p2p.offences import Offences
from psyche_py.p2p.port import (
    MAX_REQUEST_BYTES,
    Announcement,
    BlobSource,
    Examine,
    PeerInfo,
    RequestHandler,
    TrafficStats,
    Way,
)
from psyche_py.p2p.second import SecondCopies
from psyche_py.p2p.transfer import BlobBuffer, BlobFetch, BlobQuestion
from psyche_py.p2p.uploads import UploadDesk

INBOX_SIZE = 4_096
INBOX_PER_TURN = 64
MAX_KIND_BYTES = 64
HANDLER_SECONDS = 30.0
REPAIR_SECONDS = 1.0
REPAIR_WINDOW_SECONDS = 10.0
LONG_REPAIR_EVERY = 8
"""One question in so many reaches back as far as anybody remembers. Where links lose a third of everything,
ten questions in a row come to nothing now and then."""
MEAN_REPAIR_WINDOW_SECONDS = (
    REPAIR_WINDOW_SECONDS + (REPLAY_SECONDS - REPAIR_WINDOW_SECONDS) / LONG_REPAIR_EVERY
)
REPAIR_GRACE_SECONDS = 0.5
MAX_REPAIR_FRAMES = 64
"""Most that one answer repairs, oldest first; a new connection gets everything."""
OWN_ECHO_SECONDS = REPLAY_SECONDS + 30.0
BLAMED_ON_CARRIER = frozenset({"frame_past", "frame_future"})
"""Anybody can repeat the old words of an honest signer."""

log = logging.getLogger("psyche_py.p2p")


class ReplyStatus(IntEnum):
    """First byte of a response."""

    OK = 0
    NO_HANDLER = 1
    HANDLER_FAILED = 2
    TOO_LARGE = 3
    MALFORMED = 4
    BUSY = 5


class Node(ABC):
    """A `Network` without its wires."""

    def __init__(self, key_seed: bytes, store: BlobStore | None, clock: Callable[[], float]) -> None:
        self._signing_key = SigningKey(key_seed)
        self._clock = clock
        self._hint = EMPTY_HINT
        self._store = store if store is not None else BlobStore()
        self._desk = UploadDesk(self._store)
        self._stats = TrafficStats()
        self._allowed = AllowList(self.key)
        self._offences = Offences(self._stats.offences)
        self._started = clock()
        self._flood = Flood(self._allowed)
        self._second = SecondCopies()
        self._seed = b""
        self._neighbours = Neighbours(self.key)
        self._handlers: dict[str, RequestHandler] = {}
        self._inbox_send, self._inbox_receive = trio.open_memory_channel[Announcement](INBOX_SIZE)

    # ---- the Network port ---------------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        return self._signing_key.public_key

    @property
    def hint(self) -> bytes:
        return self._hint

    @property
    def store(self) -> BlobStore:
        return self._store

    @property
    def stats(self) -> TrafficStats:
        return self._stats

    @property
    def bytes_sent(self) -> int:
        return self._stats.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._stats.bytes_received

    @property
    def num_connected(self) -> int:
        return len(self.connected_peers)

    @property
    @abstractmethod
    def connected_peers(self) -> frozenset[bytes]: ...

    @property
    def ways(self) -> Counter[Way]:
        return Counter({Way.DIRECT: self.num_connected})

    def set_peers(self, peers: Sequence[PeerInfo], seed: bytes = b"") -> None:
        changes = self._allowed.replace(peers)
        self._flood.forget_signers(changes.removed)
        self._second.forget_peers(changes.removed)
        self._desk.forget_peers(changes.removed)
        if seed != self._seed:
            forgiven = self._offences.forgive()
            known = frozenset(key for key in forgiven if key in self._allowed)
            changes = replace(changes, added=changes.added | known)
        if changes.added or changes.removed or seed != self._seed:
            self._seed = seed
            self._neighbours.draw(self._allowed, seed)
        get_address = self._allowed.get_address
        self._neighbours.set_hidden(key for key in self._allowed if get_address(key) is None)
        self._apply_changes(changes)

    def set_examiner(self, examine: Examine) -> None:
        self._flood.examine = examine

    def report(self, peer_key: bytes, kind: str) -> None:
        if peer_key not in self._allowed:
            self._offences.count(kind)
        elif self._offences.blame(peer_key, kind, self._clock()):
            log.warning("peer %s is disconnected for the epoch: %s", peer_key.hex()[:12], kind)
            self._exclude(peer_key)

    def _is_admitted(self, key: bytes) -> bool:
        """Whether a peer may be connected to us. What it signs is heard as long as it is in the run."""
        return key in self._allowed and not self._offences.is_excluded(key)

    async def publish(self, body: bytes) -> None:
        frame = make_frame(self._signing_key, body)
        self._flood.remember(frame, self._clock())
        for target in self._get_own_targets():
            self._send_now(frame, target)
        await trio.lowlevel.checkpoint()

    def announcements(self) -> trio.MemoryReceiveChannel[Announcement]:
        return self._inbox_receive

    async def fetch(
        self, digest: bytes, size: int, holders: Sequence[bytes], *, deadline_seconds: float
    ) -> bytes:
        held = self._store.get(digest)
        if held is not None:
            return held
        if size < 1 or self._store.total_bytes + size > self._store.max_bytes:
            raise FetchFailed(digest, [(self.key, f"{size} bytes do not fit into our store")])
        transfer = BlobFetch(
            digest,
            size,
            lambda: self._order_holders(holders),
            self._download,
            on_wrong_bytes=lambda key: self.report(key, "blob_wrong_bytes"),
        )
        arrival = self._desk.start_arrival(digest)
        try:
            data = await transfer.run(deadline_seconds)
            self._store.put_checked(digest, data)
        finally:
            self._desk.end_arrival(digest, arrival)
        return data

    def set_blob_source(self, source: BlobSource) -> None:
        self._desk.source = source

    async def fetch_from(self, peer_key: bytes, name: bytes, size: int, *, deadline_seconds: float) -> bytes:
        buffer = BlobBuffer()
        with trio.move_on_after(deadline_seconds) as deadline:
            await self._download(peer_key, BlobQuestion(name, size, buffer, True, lambda: None))
        if deadline.cancelled_caught:
            raise PeerUnreachable(peer_key, f"it did not deliver within {deadline_seconds:g} s")
        return buffer.get_bytes()

    def set_request_handler(self, kind: str, handler: RequestHandler) -> None:
        _check_kind(kind)
        self._handlers[kind] = handler

    async def request(
        self, peer_key: bytes, kind: str, body: bytes, *, max_response_bytes: int, deadline_seconds: float
    ) -> bytes:
        _check_kind(kind)
        if len(body) > MAX_REQUEST_BYTES:
            raise RequestFailed(peer_key, kind, f"the body is longer than {MAX_REQUEST_BYTES} bytes")
        status, answer = ReplyStatus.MALFORMED, b""
        with trio.move_on_after(deadline_seconds) as deadline:
            status, answer = await self._call(peer_key, kind, body, max_response_bytes)
        if deadline.cancelled_caught:
            raise RequestFailed(peer_key, kind, f"no answer within {deadline_seconds:g} s")
        if status is not ReplyStatus.OK:
            raise RequestFailed(peer_key, kind, f"the peer replied {status.name}")
        if len(answer) > max_response_bytes:
            raise RequestFailed(peer_key, kind, f"the response is longer than {max_response_bytes} bytes")
        self._stats.sent["request"] += len(body)
        self._stats.received["request"] += len(answer)
        return answer

    # ---- for the adapters ---------------------------------------------------------------------------

    @abstractmethod
    def _apply_changes(self, changes: PeerChanges) -> None:
        """The allow-list changed: cut removed peers at once, look for added ones."""

    @abstractmethod
    def _exclude(self, key: bytes) -> None:
        """Cut the connections to a peer and refuse new ones; `_is_admitted` is False for it."""

    @abstractmethod
    def _send_frame(self, frame: Frame, target: bytes) -> None:
        """Queue a frame for a connected peer; one that is not connected any more does not get it."""

    @abstractmethod
    def _send_news(self, kind: ItemKind, data: bytes, target: bytes) -> None:
        """Tell a connected peer what we have, or whom we are connected to; only the latest matters."""

    def _spread(self, frame: Frame, source: bytes) -> None:
        """Pass on another's frame; ``source`` gave it to us."""
        is_straight = source == frame.signer
        for target in self._get_second_targets(source) if is_straight else self._get_push_targets():
            if target in (source, frame.signer) or (is_straight and self._second.hold(frame, target)):
                continue
            self._send_now(frame, target)

    def _send_now(self, frame: Frame, target: bytes) -> None:
        """Queue a frame and, since they cost next to nothing in one write, the copies that wait."""
        for each in (*self._second.take(target), frame):
            self._send_frame(each, target)

    def _get_own_targets(self) -> list[bytes]:
        """What we say ourselves goes to everybody we are connected to: each hop costs a latency.

        First to those that follow us in the order of keys, or all would tell the same peers first.
        """
        own = self.key
        return sorted(self.connected_peers, key=lambda key: (key < own, key))

    def _get_push_targets(self) -> list[bytes]:
        """Whom to pass on to what we have at second hand."""
        return self._neighbours.choose_push_targets(self.connected_peers)

    def _get_second_targets(self, signer: bytes) -> list[bytes]:
        """Whom to pass on to what ``signer`` itself has said to us."""
        return self._neighbours.choose_second_targets(self.connected_peers, signer)

    def _ask_what_is_missing(self, target: bytes, window_seconds: float, grace_seconds: float) -> None:
        have = self._flood.make_have(window_seconds, grace_seconds, self._clock())
        self._send_news(ItemKind.HAVE, have.encode(), target)

    async def _repair(self, rng: Random) -> None:
        """About every second, send what waits, and ask a peer, not only a neighbour, what we are missing."""
        for number in count(1):
            await trio.sleep(REPAIR_SECONDS * rng.uniform(0.75, 1.25))
            connected = self.connected_peers
            links, uninformed = self._second.tell_links(connected)
            for target in uninformed:
                self._send_news(ItemKind.LINKS, links, target)
            for target in self._second.get_targets():
                for frame in self._second.take(target):
                    self._send_frame(frame, target)
            if connected:
                window = REPAIR_WINDOW_SECONDS if number % LONG_REPAIR_EVERY else REPLAY_SECONDS
                self._ask_what_is_missing(rng.choice(sorted(connected)), window, REPAIR_GRACE_SECONDS)

    def _receive_item(self, kind: int, data: bytes, source: bytes) -> Verdict:
        """Take in an item of the announcement stream of a neighbour."""
        if kind == ItemKind.FRAME:
            return self._receive_frame(data, source)
        if kind not in (ItemKind.HAVE, ItemKind.LINKS):
            self.report(source, "item_unknown")
            return Verdict.INVALID
        try:
            if kind == ItemKind.LINKS:
                self._second.hear_links(source, data)
                return Verdict.DUPLICATE
            have = parse_have(data)
        except FrameError:
            self.report(source, "have_malformed" if kind == ItemKind.HAVE else "links_malformed")
            return Verdict.INVALID
        self._second.discard_known(have.short_ids, source)
        missing = self._flood.get_missing(source, have, self._clock())
        if missing is None:
            self._stats.dropped["have_limited"] += 1
            return Verdict.LIMITED
        # What a busy peer lacks is mostly waiting in its own queue: more of it would only keep it busy.
        limit = MAX_REPAIR_FRAMES if have.grace_seconds else len(missing)
        for frame in missing[:limit]:
            self._send_frame(frame, source)
        return Verdict.DUPLICATE

    def _heard_from(self, frame: Frame, source: bytes) -> None:
        """``source`` has this frame: there is no need to send it there."""
        self._second.discard(frame.id, source)

    @abstractmethod
    async def _download(self, peer_key: bytes, question: BlobQuestion) -> None:
        """See `transfer.Download`."""

    @abstractmethod
    async def _call(
        self, peer_key: bytes, kind: str, body: bytes, max_response_bytes: int
    ) -> tuple[ReplyStatus, bytes]:
        """Send a request and wait for its reply. Raises PeerUnreachable or RequestFailed."""

    def _order_holders(self, holders: Sequence[bytes]) -> list[bytes]:
        """Named holders that are connected, then everybody else who is; in the given order."""
        connected = self.connected_peers
        named = [key for key in holders if key in connected]
        return [*named, *sorted(connected.difference(named))]

    def _receive_frame(self, raw: bytes, source: bytes) -> Verdict:
        """Take in a frame a neighbour sent: deliver and pass on what is new."""
        self._stats.received["announcement"] += len(raw)
        known = self._flood.find_known(raw)
        if known is not None:
            self._heard_from(known, source)
            return Verdict.DUPLICATE
        try:
            frame = parse_frame(raw)
        except FrameError:
            self.report(source, "frame_malformed")
            return Verdict.INVALID
        verdict = self._flood.receive(frame, self._clock())
        if verdict is Verdict.NEW:
            if self._flood.num_equivocations:
                self._stats.offences["equivocation"] = self._flood.num_equivocations
            self._deliver(Announcement(frame.signer, frame.body, frame.signature))
            self._spread(frame, source)
        elif verdict is Verdict.DUPLICATE:
            self._heard_from(frame, source)
        else:
            self._report_frame(frame, source, verdict)
        return verdict

    def _report_frame(self, frame: Frame, source: bytes, verdict: Verdict) -> None:
        """Who is to blame for a refused frame: its signer for what it says, else who passed it on."""
        match verdict:
            case Verdict.INVALID:
                self.report(source, "frame_forged")
            case Verdict.STRANGER if frame.signer == self.key:
                # after a restart our former words come back; later it is another client with our key
                if self._clock() > self._started + OWN_ECHO_SECONDS:
                    self._offences.count("identity_twice")
            case Verdict.STRANGER:
                self.report(source, "frame_stranger")
            case Verdict.FAULTY:
                is_carrier = self._flood.fault in BLAMED_ON_CARRIER
                self.report(source if is_carrier else frame.signer, self._flood.fault)
            case Verdict.LIMITED:
                self.report(frame.signer, "frame_flood")
            case _:
                self.report(frame.signer, "frame_repeated")

    def _deliver(self, announcement: Announcement) -> None:
        """Hand it to the consumer; when that is too slow the oldest makes room, the mesh never waits."""
        while True:
            try:
                self._inbox_send.send_nowait(announcement)
            except trio.WouldBlock:
                self._inbox_receive.receive_nowait()
                self._stats.dropped["inbox_full"] += 1
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._stats.dropped["inbox_closed"] += 1
                return
            else:
                return

    async def _yield_to_consumer(self) -> None:
        """Let the consumer have its turn after a new frame, and more turns the more it has to catch up with.

        It takes one announcement per turn of the event loop, a reader many: without this, a burst would push
        out what a consumer that is not slow at all has had no chance to take.
        """
        for _ in range(1 + self._inbox_receive.statistics().current_buffer_used // INBOX_PER_TURN):
            await trio.lowlevel.checkpoint()

    async def _answer(self, sender_key: bytes, kind: str, body: bytes) -> tuple[ReplyStatus, bytes]:
        """Run a request handler. Its exceptions become a reply and a log line, never a crash."""
        handler = self._handlers.get(kind)
        if handler is None:
            return ReplyStatus.NO_HANDLER, b""
        self._stats.received["request"] += len(body)
        with trio.move_on_after(HANDLER_SECONDS):
            try:
                answer = await handler(sender_key, body)
            except Exception:  # the handler is the client's code, the request a stranger's bytes
                log.exception("request handler %r failed", kind)
                self._stats.dropped["handler_failed"] += 1
                return ReplyStatus.HANDLER_FAILED, b""
            self._stats.sent["request"] += len(answer)
            return ReplyStatus.OK, answer
        self._stats.dropped["handler_failed"] += 1
        return ReplyStatus.BUSY, b""

    def _close_inbox(self) -> None:
        self._inbox_send.close()


def _check_kind(kind: str) -> None:
    if not kind.isascii() or not 1 <= len(kind) <= MAX_KIND_BYTES:
        raise NetworkError(f"A request kind has 1 to {MAX_KIND_BYTES} ASCII characters, not {kind!r}.")
