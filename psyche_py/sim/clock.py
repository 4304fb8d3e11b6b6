"""Virtual time: a heap of what happens next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class VirtualClock:
    """``now`` is unix seconds. Of two events at one time the one that was planned first happens first."""

    def __init__(self, start: float) -> None:
        self.now = start
        self.num_events = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()

    def after(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` in so many seconds."""
        self.at(self.now + max(seconds, 0.0), function, *arguments)

    def at(self, time: float, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` at a time, or now when that has passed."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._order), function, arguments))

    def step(self) -> bool:
        """Make the next event happen; False when none is left."""
        if not self._heap:
            return False
        self.now, _, function, arguments = heapq.heappop(self._heap)
        self.num_events += 1
        function(*arguments)
        return True
