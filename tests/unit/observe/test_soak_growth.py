"""What `make bench-soak` takes for growth."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROUNDS = range(0, 1001, 5)


@pytest.fixture(scope="module")
def growth() -> ModuleType:
    """benchmarks/soak_growth.py, which is no part of the package."""
    path = Path(__file__).parents[3] / "benchmarks" / "soak_growth.py"
    spec = importlib.util.spec_from_file_location("soak_growth", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_growth"] = module
    spec.loader.exec_module(module)
    return module


def test_a_leak_shows_through_steps_and_noise(growth: ModuleType) -> None:
    rng = random.Random(1)
    leaking = [500 + 1.25 * (n * 10 // 1250) + rng.uniform(-0.5, 0.5) for n in ROUNDS]  # 10 MB in 1,000
    readings = [growth.Reading(float(n), n, (leak,)) for n, leak in zip(ROUNDS, leaking, strict=True)]
    (found,) = growth.compute_growth(readings)
    assert 8.5 < found < 11.5
    assert found > growth.compute_allowed(readings) - growth.STEP_MB


@pytest.mark.parametrize("at", [50, 300, 500, 700, 950])
def test_one_new_peak_is_no_growth(growth: ModuleType, at: int) -> None:
    peaked = [500.0 + (6.0 if n >= at else 0.0) for n in ROUNDS]
    readings = [growth.Reading(float(n), n, (peak, 75.0)) for n, peak in zip(ROUNDS, peaked, strict=True)]
    found, still = growth.compute_growth(readings)
    assert found < growth.compute_allowed(readings)
    assert still == 0


def test_short_runs_see_less(growth: ModuleType) -> None:
    def make(last: int) -> list[object]:
        return [growth.Reading(float(n), n, (1.0,)) for n in range(last + 1)]

    unnoticed = growth.UNNOTICED_MB_PER_1000_ROUNDS + growth.REMEMBERED_MB_PER_1000_ROUNDS
    assert growth.compute_allowed(make(3000)) == unnoticed + 1
    assert growth.compute_allowed(make(300)) == unnoticed + 10
    assert growth.compute_allowed(make(0)) > 1000


def test_the_second_half_begins_after_the_warm_up(growth: ModuleType) -> None:
    readings = [growth.Reading(float(n), n, (1.0,)) for n in range(0, 601, 10)]
    assert growth.get_late(readings, 120)[0].seconds == 300
    assert growth.get_late(readings, 400)[0].seconds == 400


def test_nothing_to_compare_is_no_growth(growth: ModuleType) -> None:
    assert growth.compute_slope([], []) == growth.compute_slope([3], [5.0]) == 0
    assert growth.compute_slope([3, 3], [5.0, 9.0]) == 0
