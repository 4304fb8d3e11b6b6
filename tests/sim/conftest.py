"""Simulations run faster than transformers is imported: load it before the clock starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_py.model.loader import load_from_config


@pytest.fixture(autouse=True, scope="session")
def loaded(nano: Path) -> None:
    """Everything slow is imported."""
    load_from_config(nano, seed=1)
