"""Which endpoint to ask, and how long to leave one alone. Pure: time and chance are arguments.

Endpoints stand in order of preference. One that fails or asks for rest is passed over for a while; when that
while is over it is preferred again, so a run returns to its first endpoint by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

FIRST_BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 30.0
DEFAULT_REST_SECONDS = 5.0
MAX_REST_SECONDS = 120.0
"""A Retry-After longer than this is cut: asking once more is cheaper than losing an epoch."""


@dataclass(frozen=True, slots=True)
class Health:
    """What we know of an endpoint. Times are seconds on the caller's clock."""

    num_failures: int = 0
    available_at: float = 0.0
    is_limited: bool = False


def compute_backoff(num_failures: int, jitter: float) -> float:
    """Seconds of rest after ``num_failures`` in a row (>= 1): doubling, capped; ``jitter`` in [0, 1).

    The jitter takes up to half away, so that many clients do not come back in one moment.
    """
    full = min(FIRST_BACKOFF_SECONDS * 2.0 ** min(num_failures - 1, 20), MAX_BACKOFF_SECONDS)
    return full * (1 - jitter / 2)


def after_failure(health: Health, now: float, jitter: float) -> Health:
    """The endpoint did not answer, or answered nonsense."""
    num_failures = health.num_failures + 1
    return Health(num_failures, now + compute_backoff(num_failures, jitter))


def after_rate_limit(health: Health, now: float, retry_after: float | None) -> Health:
    """The endpoint asked for rest; ``retry_after`` None when it did not say how long."""
    rest = DEFAULT_REST_SECONDS if retry_after is None else min(max(retry_after, 0.0), MAX_REST_SECONDS)
    return replace(health, available_at=now + rest, is_limited=True)


def choose(healths: Sequence[Health], now: float) -> int | None:
    """Index of the most preferred endpoint that may be asked now; None when all rest."""
    for index, health in enumerate(healths):
        if health.available_at <= now:
            return index
    return None


def compute_wait(healths: Sequence[Health], now: float) -> float:
    """Seconds until the first endpoint may be asked again."""
    return max(min(health.available_at for health in healths) - now, 0.0)


def parse_retry_after(text: str | None) -> float | None:
    """The Retry-After header in seconds. Its date form is not used by Solana providers and gives None."""
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
