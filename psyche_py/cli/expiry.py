"""Points in time as people write them: 30d, 2026-12-31, 2026-12-31T18:00Z."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from psyche_py.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")
_REMEDY = "Write a duration (90m, 12h, 30d, 4w) or a UTC date or time (2026-12-31, 2026-12-31T18:00Z)."
NEVER = 0


def parse_expiry(text: str, now: int) -> int:
    """Unix seconds, for a duration counted from ``now``; ``never`` is 0. A date means its first second.

    Raises UsageError for what is no time, or not after ``now``.
    """
    if text == "never":
        return NEVER
    match = _DURATION.fullmatch(text)
    moment = now + int(match[1]) * _UNITS[match[2]] if match else _parse_date(text)
    if moment <= now:
        raise UsageError(f"--expires {text} is not in the future (now {show_time(now)}).", _REMEDY)
    return moment


def _parse_date(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--expires {text!r} is no time.", _REMEDY) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp())


def show_time(unix_timestamp: int) -> str:
    """2026-12-31T18:00:00Z; seconds beyond the calendar as a number."""
    try:
        return datetime.fromtimestamp(unix_timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"second {unix_timestamp}"
