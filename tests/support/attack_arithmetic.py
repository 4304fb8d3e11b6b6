"""Other numbers in a run's account, put there behind the program's back."""

from __future__ import annotations

from typing import Any

import numpy as np
from programs_harness import RunHarness
from solders.pubkey import Pubkey

from psyche_py.coordinator.layout import COORDINATOR_ACCOUNT


def set_field(data: bytes, *path: str | int, value: Any) -> bytes:
    """A run's account with another value in one field."""
    record = np.frombuffer(bytearray(data), dtype=COORDINATOR_ACCOUNT)
    target = record[0]
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return record.tobytes()


def set_points(data: bytes, run: RunHarness, user: Pubkey, sums: tuple[int, int, int]) -> bytes:
    """The account with other points of one client: earned, slashed, claimed."""
    number = run.account.find_entry(bytes(user))
    assert number is not None
    for field, value in zip(("earned", "slashed", "claimed"), sums, strict=True):
        data = set_field(data, "entries", number, field, value=value)
    return data
