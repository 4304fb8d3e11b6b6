"""What peers did that no honest peer does, and who has done it too often. No I/O; ``now`` is given.

Everything is counted by kind. A peer that a kind can be proved against, over its authenticated connection or
by its signature, is excluded after `MAX_OFFENCES` of them, until `forgive`. Some kinds happen to honest peers
in small numbers, when lists or clocks differ for a moment: so many a second are counted but forgiven.
"""

from __future__ import annotations

from collections import Counter

from psyche_py.p2p.limits import TokenBucket

MAX_OFFENCES = 8
TOLERATED = {
    "frame_stranger": (1.0, 512.0),
    "frame_past": (1.0, 4096.0),
    "frame_future": (1.0, 512.0),
    "frame_flood": (1.0, 4096.0),
    "stream_surplus": (1.0, 64.0),
    "connection_surplus": (0.1, 16.0),
    "punch_surplus": (0.1, 16.0),
    "message_of_another": (0.1, 16.0),
}
"""Per kind: how many a second and at once are counted without blame. 512: two frames of 256 clients each.
4,096: what peers remember at most (flood.MAX_RECENT); a newcomer hears all of it at once. 16 in the name of
another: three rounds, or more, of a fork of the chain whose epoch lists its clients in another order."""


class Offences:
    """Counts offences; ``counts`` (by kind) is shared with the node's statistics."""

    def __init__(self, counts: Counter[str], max_offences: int = MAX_OFFENCES) -> None:
        self._counts = counts
        self._max_offences = max_offences
        self._by_peer: Counter[bytes] = Counter()
        self._buckets: dict[tuple[bytes, str], TokenBucket] = {}

    def count(self, kind: str) -> None:
        """Something that cannot be laid at anybody's door: a stranger's, or an innocent carrier's."""
        self._counts[kind] += 1

    def blame(self, key: bytes, kind: str, now: float) -> bool:
        """Count an offence of the peer ``key`` (32 B); whether it is the one that excludes the peer."""
        self._counts[kind] += 1
        if kind in TOLERATED:
            bucket = self._buckets.get((key, kind))
            if bucket is None:
                bucket = self._buckets[key, kind] = TokenBucket(*TOLERATED[kind], now)
            if bucket.take(now):
                return False
        self._by_peer[key] += 1
        return self._by_peer[key] == self._max_offences

    def is_excluded(self, key: bytes) -> bool:
        """Whether the peer has used up its offences."""
        return self._by_peer[key] >= self._max_offences

    def forgive(self) -> frozenset[bytes]:
        """A new epoch: start over. Returns who had been excluded."""
        excluded = frozenset(key for key in self._by_peer if self.is_excluded(key))
        self._by_peer.clear()
        self._buckets.clear()
        return excluded
