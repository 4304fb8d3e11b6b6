"""When a link writes announcements: a few at once, then with pauses in which more can gather.

A write costs both ends as much as dozens of announcements in it, and what the peer sends us meanwhile need
not be sent at all. So a busy link pauses between writes. One that has been quiet does not: the last word of
a round is awaited by everybody, and seldom comes in a crowd.
"""

from __future__ import annotations

from psyche_py.p2p.limits import TokenBucket

PAUSE_SECONDS = 0.12
"""Between two writes of a busy link: what comes in this time travels together."""
MAX_BURST_WRITES = 4
"""So many writes a link that has been quiet may do without a pause; each is earned by a pause of silence."""


class Pacer:
    """Decides for one link; ``now`` is given."""

    def __init__(self, now: float) -> None:
        self._bucket = TokenBucket(1.0 / PAUSE_SECONDS, MAX_BURST_WRITES, now)

    def compute_pause(self, now: float) -> float:
        """Seconds until the link may write; then it has, and what was queued meanwhile goes with it."""
        return self._bucket.spend(now)
