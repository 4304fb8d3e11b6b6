"""Shards and a tiny model for tests that train."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# machines are shared: no example is judged by the clock
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# a shell that starts us in the background has SIGINT ignored, and our child processes would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token shards of the project's own licence: real English, enough for a tiny model."""
    from psyche_py.data.prepare import prepare_shards

    directory = tmp_path_factory.mktemp("data")
    text = directory / "text.txt"
    text.write_text((ROOT / "LICENSE").read_text() * 3)
    prepare_shards([text], directory / "shards", vocab_size=512)
    return directory / "shards"


@pytest.fixture(scope="session")
def nano() -> Path:
    """Configuration of the tiny model."""
    return ROOT / "configs" / "models" / "nano" / "config.json"
