"""Samples whose trainer was not attested are assigned again, beside a later round's own batch.

Everything follows from what the account showed in the epoch: the witnesses stored in round h+1 say who of
round h's trainers was attested, and at the start of round h+2 the ranges of the others join a backlog. The
round's trainers take from its front. Every client of an epoch sees all of its rounds from the first, so all
have the same backlog; nothing of it is on chain.

A round repeats at most a quarter of a batch's worth of samples. Trainers that just make the round's time
limit would otherwise all miss it because of the repeats, lose more than they win back and never come out of
it. For the same reason a round with repeats that loses something halves the share for the rest of the epoch,
down to a 64th, which is still what the death of one of 64 clients costs in one round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

SampleRange = tuple[int, int]
"""First and last sample id, both included (Psyche's BatchId)."""
Repeats = Mapping[int, tuple[SampleRange, ...]]
"""Ranges assigned again, by epoch client index."""

WHOLE = 256
MAX_SHARE, MIN_SHARE = WHOLE // 4, WHOLE // 64


@dataclass(frozen=True, slots=True)
class Backlog:
    """Ranges that wait to be trained again, in the order in which they were lost.

    share:  of a round's batch size, in 256ths, how many samples the round may repeat
    """

    waiting: tuple[SampleRange, ...] = ()
    share: int = MAX_SHARE


def process_outcome(
    backlog: Backlog, assignment: Mapping[int, SampleRange], repeats: Repeats, attested: Collection[int]
) -> Backlog:
    """Take in what became of a round: who of its trainers was ``attested`` by the next round's witnesses."""
    lost: list[SampleRange] = []
    for index in assignment:
        if index not in attested:
            lost += get_ranges(assignment, repeats, index)
    share = backlog.share
    if repeats and lost:
        share = max(share // 2, MIN_SHARE)
    return Backlog((*backlog.waiting, *lost), share)


def process_round(
    backlog: Backlog, assignment: Mapping[int, SampleRange], batch_size: int
) -> tuple[Repeats, Backlog]:
    """Give a starting round's trainers their part of the backlog: evenly, in the order of their own ranges.

    Returns the ranges by trainer and what is left. A trainer without samples of its own gets none, so that
    every result has a primary range that names it.
    """
    if not assignment or not backlog.waiting:
        return {}, backlog
    taken, left = _split(backlog.waiting, max(batch_size * backlog.share // WHOLE, 1))
    base, extra = divmod(count_samples(taken), len(assignment))
    repeats: dict[int, tuple[SampleRange, ...]] = {}
    for turn, index in enumerate(sorted(assignment, key=lambda index: assignment[index])):
        size = base + (turn < extra)
        if size:
            repeats[index], taken = _split(taken, size)
    return repeats, Backlog(left, backlog.share)


def get_ranges(
    assignment: Mapping[int, SampleRange], repeats: Repeats, index: int
) -> tuple[SampleRange, ...]:
    """All that a trainer's result of a round covers: its own range first. Raises KeyError for no trainer."""
    return assignment[index], *repeats.get(index, ())


def count_samples(ranges: Collection[SampleRange]) -> int:
    """Samples in disjoint ranges."""
    return sum(last - first + 1 for first, last in ranges)


def _split(
    ranges: tuple[SampleRange, ...], num_samples: int
) -> tuple[tuple[SampleRange, ...], tuple[SampleRange, ...]]:
    """The first ``num_samples`` samples of ``ranges``, and the rest."""
    for place, (first, last) in enumerate(ranges):
        size = last - first + 1
        if size >= num_samples:
            head = (*ranges[:place], (first, first + num_samples - 1))
            tail = ((first + num_samples, last),) if size > num_samples else ()
            return head, (*tail, *ranges[place + 1 :])
        num_samples -= size
    return ranges, ()
