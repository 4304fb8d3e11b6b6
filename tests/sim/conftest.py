"""Shards and a tiny model that every whole run trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_py.data.prepare import prepare_shards
from psyche_py.model.loader import load_from_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token shards of the project's own licence: real English, enough for a tiny model."""
    directory = tmp_path_factory.mktemp("data")
    text = directory / "text.txt"
    text.write_text((ROOT / "LICENSE").read_text() * 3)
    prepare_shards([text], directory / "shards", vocab_size=512)
    return directory / "shards"


@pytest.fixture(scope="session")
def nano() -> Path:
    """Configuration of the tiny model, loaded once: importing transformers takes longer than a warm-up here."""
    path = ROOT / "configs" / "models" / "nano" / "config.json"
    load_from_config(path, seed=1)
    return path
