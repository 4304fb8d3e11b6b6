"""Accounts that an older program wrote, brought to this layout, as the program's ``migrate`` does it."""

from __future__ import annotations

import numpy as np

from psyche_py.coordinator import tick
from psyche_py.coordinator.committee import compute_elected, get_num_elected_of
from psyche_py.coordinator.errors import CoordinatorError, ErrorCode
from psyche_py.coordinator.layout import (
    ACCOUNT_SIZE,
    COORDINATOR_ACCOUNT,
    DEFAULT_MAX_WITNESS_CONTRADICTIONS,
    MAX_U64,
    ROUND_STATES,
    VERSION,
    Record,
    get_bitmap,
    set_bitmap,
)
from psyche_py.coordinator.state import CoordinatorAccount, read_account
from psyche_py.coordinator.views import get_current_round

_SINCE_VERSION_2 = (
    "verified_tiles",
    "min_alignment",
    "max_residual",
    "max_violation",
    "min_jaccard",
    "num_tie_breakers",
    "max_refusals",
    "_pad0",
    "required_bond",
)


def process_migrate(data: bytes) -> CoordinatorAccount:
    """``data`` are the bytes of an account of version 1. Raises NothingToMigrate for any other version."""
    record = np.frombuffer(bytearray(data), dtype=COORDINATOR_ACCOUNT, count=1)[0]
    if len(data) != ACCOUNT_SIZE or record["version"] != 1:
        raise CoordinatorError(ErrorCode.NothingToMigrate)
    _migrate_from_1(record)
    record["nonce"] = (int(record["nonce"]) + 1) & MAX_U64
    return read_account(record.tobytes())


def _migrate_from_1(record: Record) -> None:
    """Version 1 had no limit of contradictions, stored a position with each witness (now padding), drew the
    witnesses anew for each of them, and knew no disputes."""
    record["version"] = VERSION
    record["config"]["max_witness_contradictions"] = DEFAULT_MAX_WITNESS_CONTRADICTIONS
    for name in _SINCE_VERSION_2:  # whatever an owner had put into bytes that meant nothing
        record["config"][name] = 0
    record["disputes"] = np.zeros((), record["disputes"].dtype)
    record["epoch_state"]["rounds"]["witnesses"]["_pad0"] = 0
    if tick.get_state(record) in ROUND_STATES:
        current = get_current_round(record)
        num_elected = get_num_elected_of(record, current)
        elected = compute_elected(get_bitmap(current["healthy"]), num_elected, int(current["random_seed"]))
        set_bitmap(current, "elected", elected)
