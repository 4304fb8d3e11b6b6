"""Who gets which frame: dedupe, checks, rate limits, memory of the last minute. No I/O; ``now`` is given.

Every node passes a new frame on to its neighbours in the overlay but the one it came from. What gets lost all
the same is repaired: everybody tells a peer what it has, and that one sends what is missing.

Order of checks: seen before (cheap), signer allowed, signature (expensive), what the client says about the
body, rate of the signer. Only a verified frame counts as seen or against the rate, so a forger can make us
deaf neither to one frame nor to a signer. Of what a signer may say once (one key, see `port.Examination`) two
versions are passed on, so that everybody learns of an equivocation, and no third.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from enum import Enum, auto

from psyche_py.p2p.allowlist import AllowList
from psyche_py.p2p.errors import FrameError
from psyche_py.p2p.frames import MAX_HAVE_IDS, SHORT_ID_BYTES, Frame, Have
from psyche_py.p2p.generations import Generations
from psyche_py.p2p.limits import TokenBucket
from psyche_py.p2p.port import Examination, Examine

REPLAY_SECONDS = 60.0
MAX_RECENT = 4_096
MAX_SEEN = 65_536
"""So far back a repeated frame is known, at 130 bytes each together with what its signer said. A minute
is not enough: whoever repeats the old words of a signer would use up its rate with them."""
MAX_VERSIONS = 2
SIGNER_RATE = 50.0
SIGNER_BURST = 500.0
"""New announcements per second one signer may make, and how many at once. A client needs two a round."""
HAVE_RATE, HAVE_BURST = 3.0, 12.0
"""How often one peer may ask what it is missing, per second and at once. It asks about once a second."""
EDGE_SECONDS = 1.0
"""Two nodes learn a frame at different times: at the old end of a window both may be right."""
MAX_OUTBOX_BYTES = 1 << 20
MAX_WRITE_BYTES = 60_000
"""Just below one Yamux frame, which is one Noise record."""


class Verdict(Enum):
    """What became of a received frame."""

    NEW = auto()
    DUPLICATE = auto()
    STRANGER = auto()
    LIMITED = auto()
    INVALID = auto()
    REPEATED = auto()
    """Another version of what its signer has said in two versions already."""
    FAULTY = auto()
    """Signed, but the client says that nobody honest says this now; `Flood.fault` has the kind."""


class Flood:
    """What one node knows about announcements."""

    def __init__(self, allowed: AllowList) -> None:
        self._allowed = allowed
        self._seen: Generations[bytes, bool] = Generations(MAX_SEEN)
        self._recent: deque[tuple[float, Frame]] = deque()
        self._known: dict[bytes, Frame] = {}  # those of `_recent`, by their bytes
        self._versions: Generations[int, int] = Generations(MAX_SEEN)
        self.examine: Examine = lambda body: Examination()
        """What the client says about a body."""
        self.fault = ""
        """Of the frame that was judged FAULTY last."""
        self.num_equivocations = 0
        self._buckets: dict[bytes, TokenBucket] = {}
        self._askers: dict[bytes, TokenBucket] = {}

    def remember(self, frame: Frame, now: float) -> None:
        """Take note of a frame that is known to be good (verified, or our own)."""
        self._seen.put(frame.id, True)
        self._known[frame.raw] = frame
        self._recent.append((now, frame))
        self._expire(now)

    def find_known(self, raw: bytes) -> Frame | None:
        """The frame with exactly these bytes, if it was new within the last minute: most are not."""
        return self._known.get(raw)

    def receive(self, frame: Frame, now: float) -> Verdict:
        """Judge a frame from a neighbour."""
        if frame.id in self._seen:
            return Verdict.DUPLICATE
        if frame.signer not in self._allowed:
            return Verdict.STRANGER
        bucket = self._buckets.get(frame.signer)
        if bucket is None:
            bucket = self._buckets[frame.signer] = TokenBucket(SIGNER_RATE, SIGNER_BURST, now)
        try:
            frame.check_signature()
        except FrameError:
            return Verdict.INVALID
        examination = self.examine(frame.body)
        if examination.fault:
            self.fault = examination.fault
            if self.fault != "frame_future":  # which may be right later
                self._seen.put(frame.id, True)
            return Verdict.FAULTY
        if not bucket.take(now):
            return Verdict.LIMITED
        if not self._count_version(frame.signer, examination.key):
            self._seen.put(frame.id, True)
            return Verdict.REPEATED
        self.remember(frame, now)
        return Verdict.NEW

    def _count_version(self, signer: bytes, key: Hashable) -> bool:
        """Whether a new body under this key may still be heard."""
        if key is None:
            return True
        # the hash alone, a third of the memory: with 64 bits, of a key that is drawn at every start, nobody
        # can look for a collision, and by chance there is one in 10**9 full memories
        place = hash((signer, key))
        versions = self._versions.get(place, 0)
        if versions >= MAX_VERSIONS:
            return False
        self.num_equivocations += versions
        self._versions.put(place, versions + 1)
        return True

    def make_have(self, window_seconds: float, grace_seconds: float, now: float) -> Have:
        """What we have learned lately. When that is too much for one item its window is shorter."""
        ids: set[bytes] = set()
        for learned, frame in reversed(self._recent):
            if learned < now - window_seconds:
                break
            if len(ids) == MAX_HAVE_IDS:
                window_seconds = now - learned
                break
            ids.add(frame.id[:SHORT_ID_BYTES])
        return Have(window_seconds, grace_seconds, frozenset(ids))

    def get_missing(self, asker: bytes, have: Have, now: float) -> list[Frame] | None:
        """Frames that the peer ``asker`` lacks, oldest first; None when it asks too often.

        Also those with its own signature: so it learns of another client with its key.
        """
        bucket = self._askers.get(asker)
        if bucket is None:
            bucket = self._askers[asker] = TokenBucket(HAVE_RATE, HAVE_BURST, now)
        if not bucket.take(now):
            return None
        since, until = now - max(0.0, have.window_seconds - EDGE_SECONDS), now - have.grace_seconds
        missing: list[Frame] = []
        for learned, frame in reversed(self._recent):
            if learned < since:
                break
            if learned <= until and frame.id[:SHORT_ID_BYTES] not in have.short_ids:
                missing.append(frame)
        return missing[::-1]

    def get_recent(self, now: float) -> list[Frame]:
        """Frames of the last minute, oldest first: what a new neighbour may have missed."""
        self._expire(now)
        return [frame for _, frame in self._recent]

    def forget_signers(self, keys: frozenset[bytes]) -> None:
        """Peers left the allow-list: do not pass their words on any more."""
        for key in keys:
            self._buckets.pop(key, None)
            self._askers.pop(key, None)
        if keys:
            self._recent = deque(item for item in self._recent if item[1].signer not in keys)
            self._known = {frame.raw: frame for _, frame in self._recent}

    def _expire(self, now: float) -> None:
        recent, oldest = self._recent, now - REPLAY_SECONDS
        while recent and (recent[0][0] < oldest or len(recent) > MAX_RECENT):
            _, frame = recent.popleft()
            self._known.pop(frame.raw, None)


class Outbox:
    """Frames waiting to be written to one neighbour; bounded, drops the oldest."""

    def __init__(self) -> None:
        self._frames: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_bytes = 0

    def put(self, frame: Frame) -> int:
        """Queue a frame unless it is queued already; returns how many old ones had to go."""
        num_dropped = 0
        if frame.id in self._frames:
            return num_dropped
        self._frames[frame.id] = frame.raw
        self._num_bytes += len(frame.raw)
        while self._num_bytes > MAX_OUTBOX_BYTES:
            _, dropped = self._frames.popitem(last=False)
            self._num_bytes -= len(dropped)
            num_dropped += 1
        return num_dropped

    def discard(self, frame_id: bytes) -> None:
        """The neighbour has this frame already: it has just sent it to us."""
        raw = self._frames.pop(frame_id, None)
        if raw is not None:
            self._num_bytes -= len(raw)

    def take(self) -> list[bytes]:
        """The oldest frames that fit into one write."""
        taken: list[bytes] = []
        size = 0
        while self._frames and size < MAX_WRITE_BYTES:
            _, raw = self._frames.popitem(last=False)
            self._num_bytes -= len(raw)
            size += len(raw)
            taken.append(raw)
        return taken

    def __len__(self) -> int:
        return len(self._frames)
