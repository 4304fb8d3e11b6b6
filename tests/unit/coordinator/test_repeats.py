"""Lost samples are given out again: each one once, in bounded portions, and never for ever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection

from hypothesis import given
from hypothesis import strategies as st

from psyche_py.coordinator.repeats import (
    MAX_SHARE,
    MIN_SHARE,
    WHOLE,
    Backlog,
    Repeats,
    SampleRange,
    count_samples,
    get_ranges,
    process_outcome,
    process_round,
)

Judge = Callable[[int, dict[int, SampleRange], Repeats], Collection[int]]
"""Which trainers of a round are attested: (height, assignment, repeats)."""


class Epoch:
    """Rounds of one epoch with batches of ``batch_size`` over some of 8 clients; ``judge`` decides."""

    def __init__(self, batch_size: int, judge: Judge, seed: int = 1) -> None:
        self.backlog = Backlog()
        self.applied: Counter[int] = Counter()
        self.rounds: list[tuple[dict[int, SampleRange], Repeats]] = []
        self.end = 0
        self._batch_size, self._judge = batch_size, judge
        self._rng = random.Random(seed)

    def play(self) -> None:
        """One more round."""
        height = len(self.rounds)
        if height >= 2:
            assignment, repeats = self.rounds[height - 2]
            attested = self._judge(height - 2, assignment, repeats)
            self.backlog = process_outcome(self.backlog, assignment, repeats, attested)
            for index in assignment.keys() & set(attested):
                self.applied.update(expand(get_ranges(assignment, repeats, index)))
        trainers = self._rng.sample(range(8), self._rng.randint(1, 8))
        assignment, before = self._assign(trainers), self.backlog
        repeats, self.backlog = process_round(before, assignment, self._batch_size)
        self._check(assignment, repeats, before)
        self.rounds.append((assignment, repeats))

    def _assign(self, trainers: list[int]) -> dict[int, SampleRange]:
        """As compute_assignment does: contiguous, and who gets nothing is left out."""
        base, extra = divmod(self._batch_size, len(trainers))
        assignment = {}
        for turn, index in enumerate(trainers):
            size = base + (turn < extra)
            if size:
                assignment[index] = (self.end, self.end + size - 1)
                self.end += size
        return assignment

    def _check(self, assignment: dict[int, SampleRange], repeats: Repeats, before: Backlog) -> None:
        """Bounded, even, in order, nothing made up and nothing dropped."""
        given_out = [part for index in assignment for part in repeats.get(index, ())]
        assert [*expand(given_out), *expand(self.backlog.waiting)] == list(expand(before.waiting))
        limit = max(self._batch_size * before.share // WHOLE, 1)
        assert count_samples(given_out) == min(limit, count_samples(before.waiting))
        assert limit <= max(self._batch_size // 4, 1)
        sizes = [count_samples(repeats.get(index, ())) for index in assignment]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert repeats.keys() <= assignment.keys()

    def count_all(self) -> Counter[int]:
        """Applied, waiting, or in one of the last two rounds."""
        in_work = [
            part
            for assignment, repeats in self.rounds[-2:]
            for index in assignment
            for part in get_ranges(assignment, repeats, index)
        ]
        return self.applied + Counter(expand(self.backlog.waiting)) + Counter(expand(in_work))


def expand(ranges: Collection[SampleRange]) -> list[int]:
    return [sample for first, last in ranges for sample in range(first, last + 1)]


@given(batch_size=st.integers(1, 40), seed=st.integers(0, 2**32 - 1), missing=st.floats(0, 1))
def test_no_sample_is_dropped_or_applied_twice(batch_size: int, seed: int, missing: float) -> None:
    rng = random.Random(seed)
    epoch = Epoch(batch_size, lambda _h, a, _r: [index for index in a if rng.random() >= missing], seed)
    for _ in range(30):
        epoch.play()
        assert epoch.count_all() == Counter(range(epoch.end))


@given(batch_size=st.integers(1, 40), bad=st.sets(st.integers(0, 9)), seed=st.integers(0, 2**32 - 1))
def test_the_backlog_is_worked_off_when_all_is_well_again(batch_size: int, bad: set[int], seed: int) -> None:
    """Rounds in which nobody at all was attested included."""
    epoch = Epoch(batch_size, lambda height, a, _r: () if height in bad else a, seed)
    for _ in range(10):
        epoch.play()
    for _ in range(10 * batch_size + 60):
        epoch.play()
    assert epoch.backlog.waiting == ()
    assert epoch.applied == Counter(range(epoch.rounds[-2][0][next(iter(epoch.rounds[-2][0]))][0]))


def test_trainers_without_time_for_repeats_go_on_with_their_own() -> None:
    """A tenth more than its own and a trainer misses the round: the share falls until it fits."""

    def judge(height: int, assignment: dict[int, SampleRange], repeats: Repeats) -> Collection[int]:
        if height == 0:
            return ()
        return [
            index
            for index, own in assignment.items()
            if 10 * count_samples(repeats.get(index, ())) <= count_samples([own])
        ]

    epoch = Epoch(160, judge)
    for _ in range(200):
        epoch.play()
    lost = count_samples(epoch.backlog.waiting)
    assert lost < epoch.end // 10, "most rounds keep what they train"


def test_a_share_falls_with_loss() -> None:
    carried: Repeats = {0: ((0, 3),)}
    start = Backlog()
    assert start.share == MAX_SHARE
    assert process_outcome(start, {0: (8, 9)}, carried, {0}) == start
    assert process_outcome(start, {0: (8, 9)}, carried, ()) == Backlog(((8, 9), (0, 3)), MAX_SHARE // 2)
    assert process_outcome(start, {0: (8, 9)}, {}, ()).share == MAX_SHARE, "no repeats, nothing learned"
    lowest = Backlog(share=MIN_SHARE)
    assert process_outcome(lowest, {0: (8, 9)}, carried, ()).share == MIN_SHARE


def test_a_round_without_trainers_repeats_nothing() -> None:
    """The rounds at an epoch's end that only apply."""
    backlog = Backlog(((3, 9),))
    assert process_round(backlog, {}, 0) == ({}, backlog)


def test_an_example_by_hand() -> None:
    backlog = Backlog(((2, 3), (8, 12)))
    repeats, left = process_round(backlog, {5: (30, 39), 1: (20, 29)}, 20)
    assert repeats == {1: ((2, 3), (8, 8)), 5: ((9, 10),)}, "by the order of their own ranges"
    assert left == Backlog(((11, 12),))
