"""The draw: pure, fair, bounded, and never oneself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.coordinator.committee import compute_num_verifiers
from psyche_py.verify import Duty, compute_duties, compute_sampled_tiles

seeds = st.integers(0, 2**64 - 1)
clients = st.sets(st.integers(0, 255), max_size=40)


@pytest.mark.parametrize(
    ("num", "percent", "expected"),
    [
        (0, 5, 0),
        (1, 100, 0),
        (2, 1, 1),
        (2, 0, 0),
        (19, 5, 1),
        (20, 5, 1),
        (40, 5, 2),
        (256, 5, 12),
        (10, 100, 10),
    ],
)
def test_how_many_verify(num: int, percent: int, expected: int) -> None:
    assert compute_num_verifiers(num, percent) == expected


@settings(max_examples=200, deadline=None)
@given(seeds, clients, clients)
def test_everybody_looks_at_one_other(seed: int, verifiers: set[int], committed: set[int]) -> None:
    duties = compute_duties(seed, verifiers, committed)
    assert duties == compute_duties(seed, sorted(verifiers, reverse=True), list(committed))
    looking = [duty.verifier for duty in duties]
    assert looking == sorted(x for x in verifiers if committed - {x})
    assert all(duty.trainer in committed and duty.trainer != duty.verifier for duty in duties)
    counts = Counter(duty.trainer for duty in duties)
    if len(verifiers) <= len(committed) and not verifiers & committed:
        assert all(count == 1 for count in counts.values())


def test_every_trainer_is_equally_likely() -> None:
    counts = Counter(compute_duties(seed, [30], range(20))[0].trainer for seed in range(4000))
    assert set(counts) == set(range(20))
    # 200 each; six standard deviations are 83
    assert all(abs(count - 200) < 83 for count in counts.values())


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 5000), st.integers(1, 100))
def test_tiles_are_different_and_in_range(seed: int, num_tiles: int, num_sampled: int) -> None:
    tiles = compute_sampled_tiles(seed, Duty(1, 2), num_tiles, num_sampled)
    assert tiles == sorted(set(tiles))
    assert len(tiles) == min(num_sampled, num_tiles)
    assert 0 <= tiles[0] <= tiles[-1] < num_tiles
    assert tiles == compute_sampled_tiles(seed, Duty(1, 2), num_tiles, num_sampled)


def test_tiles_depend_on_everything() -> None:
    draws = {
        tuple(compute_sampled_tiles(seed, duty, 10_000))
        for seed in (0, 1)
        for duty in (Duty(1, 2), Duty(2, 1), Duty(1, 3))
    }
    assert len(draws) == 6


def test_every_tile_is_equally_likely() -> None:
    counts = Counter(t for seed in range(3000) for t in compute_sampled_tiles(seed, Duty(0, 1), 30, 10))
    # 1000 each; six standard deviations are 155
    assert all(abs(counts[tile] - 1000) < 155 for tile in range(30))


def test_a_known_draw_stays_as_it_is() -> None:
    """Verifiers and tie-breakers of different versions must agree."""
    assert compute_duties(7, [0, 1, 2], range(8)) == KNOWN_DUTIES
    assert compute_sampled_tiles(7, Duty(1, 2), 1000, 6) == KNOWN_TILES


KNOWN_DUTIES = [Duty(0, 1), Duty(1, 4), Duty(2, 6)]
KNOWN_TILES = [23, 446, 554, 632, 704, 787]
