"""The replays of ``make bench-exact``, short: all configurations give one result, and a wrong one is seen."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUM_STEPS = 6


@pytest.fixture(scope="module")
def bench() -> Any:
    path = Path(__file__).parents[3] / "benchmarks" / "bench_exact.py"
    spec = importlib.util.spec_from_file_location("bench_exact", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["linear", "signs"])
def run(bench: Any, request: pytest.FixtureRequest) -> Any:
    config = bench.CONFIGS[request.param]
    return config, *bench.train(NUM_STEPS, 2, config)


def test_every_configuration_gives_the_same_bits(bench: Any, run: Any) -> None:
    config, messages, expected = run
    configurations = bench.get_configurations(NUM_STEPS, config)
    assert len(configurations) >= 8
    assert expected.keys() == {0, NUM_STEPS - 1}
    for name, replay in configurations.items():
        assert replay(messages) == expected, name


def test_a_changed_message_is_seen(bench: Any, run: Any) -> None:
    config, messages, expected = run
    messages = [list(payloads) for payloads in messages]
    messages[1][0], messages[1][1] = messages[1][0], messages[1][0]
    assert bench.replay(messages, config)[NUM_STEPS - 1] != expected[NUM_STEPS - 1]
