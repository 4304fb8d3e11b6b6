"""A rate limit. No clock of its own."""

from __future__ import annotations


class TokenBucket:
    """Allows ``burst`` at once and ``rate`` per second in the long run."""

    __slots__ = ("_burst", "_last", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._last = now

    def has_token(self, now: float) -> bool:
        """Would `take` succeed?"""
        self._tokens = min(self._burst, self._tokens + (now - self._last) * self._rate)
        self._last = now
        return self._tokens >= 1.0

    def take(self, now: float) -> bool:
        """Use one token; False when there is none."""
        if not self.has_token(now):
            return False
        self._tokens -= 1.0
        return True

    def spend(self, now: float) -> float:
        """Use one token, now or when it comes: the seconds until then. Nobody else may ask before that."""
        wait = 0.0 if self.has_token(now) else (1.0 - self._tokens) / self._rate
        self._tokens += wait * self._rate - 1.0
        self._last = now + wait
        return wait
