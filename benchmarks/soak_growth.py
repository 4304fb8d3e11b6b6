"""How fast memory grows, from readings of it that go up in steps; and how fast it may.

An allocator asks the system for more, in steps of 0.1 to some MB, when a process reaches a new peak. These
get rarer, but a client does not reach its highest peak in the first epoch: when its tasks meet is up to
chance. A line through two readings, or by least squares, takes such a step for growth. What does not stop is
seen in most pairs of readings: so growth is the median of the slopes between all of them (Theil-Sen), in the
second half of a run.

What a client may grow by in 1,000 rounds is the sum of

    4 MB      that we would not notice otherwise. A month of rounds of ten seconds is 260,000 rounds: 1 GB
    2 MB      what the mesh remembers of the announcements of eight clients, for the first 4,096 rounds
    3 MB      a step of the allocator, once in the second half: so much more in 1,000 rounds as they are more
              than those of the second half
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

UNNOTICED_MB_PER_1000_ROUNDS = 4.0
REMEMBERED_MB_PER_1000_ROUNDS = 2.0
STEP_MB = 3.0


class Reading(NamedTuple):
    """Seconds since the start, rounds that the first client has applied, memory of every process in MB."""

    seconds: float
    num_rounds: int
    memory: tuple[float, ...]


def get_late(readings: Sequence[Reading], warm_up_seconds: float) -> list[Reading]:
    """The readings of the second half, and none of the warm-up."""
    start = max(readings[-1].seconds / 2, warm_up_seconds)
    return [reading for reading in readings if reading.seconds >= start]


def compute_slope(places: Sequence[float], values: Sequence[float]) -> float:
    """The median slope between any two points that are at different places; 0 when there are none."""
    points = list(zip(places, values, strict=True))
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in _get_pairs(points)]
    return statistics.median(slopes) if slopes else 0.0


def _get_pairs(points: list[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return [(before, after) for before, after in combinations(points, 2) if before[0] != after[0]]


def compute_growth(readings: Sequence[Reading]) -> list[float]:
    """MB per 1,000 rounds, of every process."""
    rounds = [reading.num_rounds / 1000 for reading in readings]
    columns = zip(*(reading.memory for reading in readings), strict=True)
    return [round(compute_slope(rounds, column), 1) for column in columns]


def compute_allowed(readings: Sequence[Reading]) -> float:
    """MB per 1,000 rounds that a client may grow by; see the module."""
    num_rounds = readings[-1].num_rounds - readings[0].num_rounds
    step = STEP_MB * 1000 / max(num_rounds, 1)
    return round(UNNOTICED_MB_PER_1000_ROUNDS + REMEMBERED_MB_PER_1000_ROUNDS + step, 1)
