"""How one announcement spreads: along which links, and when each link writes.

The nodes of ``p2p`` choose the links: a signer says its own words to everybody it is connected to, others
pass them on to their neighbours in the overlay. A link paces its writes as ``p2p.pacing`` says; what waits
for the next write travels in it. First arrivals are found by Dijkstra's algorithm.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from psyche_py.p2p.pacing import PAUSE_SECONDS, Pacer

HOP_SECONDS = 0.002
"""To check a frame's signature and pass it on."""
WRITE_SECONDS = 0.00015
"""A write to one link: a node does them one after another (measured, see docs/mesh.md)."""
_LONG_AGO = -1e9


class _Link:
    """One direction between two clients: when it may write next."""

    __slots__ = ("_next_write", "_pacer", "other", "seconds")

    def __init__(self, other: int, seconds: float) -> None:
        self.other = other
        self.seconds = seconds
        self._pacer = Pacer(_LONG_AGO)
        self._next_write = _LONG_AGO

    def find_write(self, time: float) -> float:
        """When a frame that is there at ``time`` is written: at once, or with those that wait.

        Frames are asked about in the order in which they were said, and not in which they come here: one that
        is here long before the write that was planned last did not wait for it.
        """
        if time <= self._next_write:
            return self._next_write if self._next_write - time <= PAUSE_SECONDS else time
        self._next_write = time + self._pacer.compute_pause(time)
        return self._next_write


@dataclass(frozen=True, slots=True)
class Spread:
    """Where an announcement arrives: ``times`` (virtual seconds) and ``hops`` by client, its signer's too."""

    times: dict[int, float]
    hops: dict[int, int]


class Flooding:
    """See the module. Clients are numbers; ``get_seconds(a, b)`` is the latency between two of them.

    ``get_own_targets(a)``: whom a signer says its own words to; ``get_second_targets(a, b)``: whom a passes
    on to what it has from signer b itself; ``get_neighbours(a)``: whom it passes all else on to. Each is
    asked once, until :meth:`forget`.
    """

    def __init__(
        self,
        get_own_targets: Callable[[int], Sequence[int]],
        get_second_targets: Callable[[int, int], Sequence[int]],
        get_neighbours: Callable[[int], Sequence[int]],
        get_seconds: Callable[[int, int], float],
    ) -> None:
        self._get_own_targets = get_own_targets
        self._get_second_targets = get_second_targets
        self._get_neighbours = get_neighbours
        self._get_seconds = get_seconds
        self._links: dict[tuple[int, int], _Link] = {}
        self._used: dict[tuple[int, int], list[_Link]] = {}

    def forget(self) -> None:
        """Somebody came, went, or knows other peers; a link that has been written to remembers when."""
        self._used.clear()

    def forget_latencies(self) -> None:
        """A link has become faster or slower."""
        self.forget()
        self._links.clear()

    def _get_links(self, number: int, sender: int, num_hops: int) -> list[_Link]:
        """Where client ``number`` sends what ``sender`` has signed and came here over so many hops."""
        key = number, sender if num_hops < 2 else -1
        found = self._used.get(key)
        if found is None:
            if num_hops == 0:
                targets = self._get_own_targets(number)
            elif num_hops == 1:
                targets = self._get_second_targets(number, sender)
            else:
                targets = self._get_neighbours(number)
            found = self._used[key] = [self._find_link(number, other) for other in targets]
        return found

    def _find_link(self, number: int, other: int) -> _Link:
        link = self._links.get((number, other))
        if link is None:
            seconds = HOP_SECONDS + self._get_seconds(number, other)
            link = self._links[number, other] = _Link(other, seconds)
        return link

    def spread(self, sender: int, now: float, is_passing: Callable[[int], bool]) -> Spread:
        """Say something now. Whoever is not ``is_passing`` hears it and does not pass it on."""
        times, hops, done = {sender: now}, {sender: 0}, dict[int, float]()
        heap = [(now, sender)]
        while heap:
            time, number = heapq.heappop(heap)
            if number in done:
                continue
            done[number] = time
            if number != sender and not is_passing(number):
                continue
            for place, link in enumerate(self._get_links(number, sender, hops[number])):
                other, ready = link.other, time + place * WRITE_SECONDS
                if other in done:
                    if other != sender and done[other] + link.seconds > ready:
                        link.find_write(ready)  # our copy leaves before its own comes
                    continue
                arrival = link.find_write(ready) + link.seconds
                if arrival < times.get(other, float("inf")):
                    times[other], hops[other] = arrival, hops[number] + 1
                    heapq.heappush(heap, (arrival, other))
        return Spread(done, hops)

    def count_copies(self, sender: int, spread: Spread, num_clients: int) -> np.ndarray:
        """To how many clients everybody sends it: not to those that have said it first."""
        copies, times = np.zeros(num_clients, dtype=np.int64), spread.times
        for number, time in times.items():
            for link in self._get_links(number, sender, spread.hops[number]):
                heard_back = times.get(link.other, float("inf")) + link.seconds - HOP_SECONDS
                copies[number] += link.other != sender and heard_back > time
        return copies
