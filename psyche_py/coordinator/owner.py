"""What a run's owner can do to it. See psyche_py.coordinator.transition, which shows these as its own."""

from __future__ import annotations

import numpy as np

from psyche_py.coordinator import tick
from psyche_py.coordinator.disputes import is_party
from psyche_py.coordinator.errors import CoordinatorError, ErrorCode
from psyche_py.coordinator.events import find_client_entry, finish, refuse_unless, tick_and_finish
from psyche_py.coordinator.handover import forget_models
from psyche_py.coordinator.layout import (
    ACTIVE,
    HALTED,
    MAX_CLIENT_VERSION_BYTES,
    MAX_RUN_ID_BYTES,
    Record,
    RunState,
    copy_record,
    make_record,
    set_bytes,
)
from psyche_py.coordinator.model import CoordinatorConfig, Model
from psyche_py.coordinator.rules import OWN_KINDS, get_config_rules, get_joint_rules, get_model_rules
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.views import compute_debt

MAX_DATA_INDEX = 2**62
"""Farthest sample an owner may start a run at: what is trained after it must still fit into a u64."""


def process_init(run_id: str, client_version: str) -> CoordinatorAccount:
    """A new run, Uninitialized. Raises RunIdInvalidLength (a zero byte too), InvalidInstructionData."""
    name = run_id.encode()
    is_valid = 0 < len(name) <= MAX_RUN_ID_BYTES and b"\0" not in name
    refuse_unless(is_valid, ErrorCode.RunIdInvalidLength)
    record = make_record()
    set_bytes(record, "run_id", name.ljust(MAX_RUN_ID_BYTES, b"\0"))
    record["next_active"] = 1
    _set_client_version(record, client_version)
    return CoordinatorAccount(record)


def process_update_client_version(account: CoordinatorAccount, client_version: str) -> CoordinatorAccount:
    """Set which client release the run asks for. Raises UpdateConfigNotHalted, InvalidInstructionData."""
    refuse_unless(account.run_state in HALTED, ErrorCode.UpdateConfigNotHalted)
    record = copy_record(account.record)
    _set_client_version(record, client_version)
    return finish(account, record)


def _set_client_version(record: Record, client_version: str) -> None:
    text = client_version.encode()
    refuse_unless(len(text) <= MAX_CLIENT_VERSION_BYTES, ErrorCode.InvalidInstructionData)
    set_bytes(record, "client_version", text.ljust(MAX_CLIENT_VERSION_BYTES, b"\0"))


def process_update(
    account: CoordinatorAccount,
    *,
    metadata: bytes | None = None,
    config: bytes | None = None,
    model: bytes | None = None,
    progress: bytes | None = None,
) -> CoordinatorAccount:
    """Replace parts of the run's description, each given as its packed bytes.

    Raises UpdateConfigFinished, UpdateConfigNotHalted, Config-, Model-, ProgressSanityCheckFailed.
    """
    refuse_unless(account.run_state is not RunState.Finished, ErrorCode.UpdateConfigFinished)
    record = copy_record(account.record)
    parts = {"metadata": metadata, "config": config, "model": model, "progress": progress}
    if any(value is not None for name, value in parts.items() if name != "metadata"):
        refuse_unless(account.run_state in HALTED, ErrorCode.UpdateConfigNotHalted)
    for name, value in parts.items():
        if value is not None:
            record[name] = np.frombuffer(value, dtype=record[name].dtype)[0]
    if config is not None:
        _check_config(record)
    if model is not None:
        _check_model(record, may_be_shared=False)
        forget_models(record)
    if progress is not None:
        _check_progress(record)
    # the two halves may come one after the other; once both are there they must fit together
    if record["config"]["epoch_time"] and record["model"]["max_seq_len"]:
        _check_together(record)
    return finish(account, record)


def process_set_future_epoch_rates(
    account: CoordinatorAccount,
    *,
    earning_rate_total_shared: int | None = None,
    slashing_rate_per_client: int | None = None,
) -> CoordinatorAccount:
    """Set the points of the epochs to come; None leaves a rate as it is."""
    record = copy_record(account.record)
    if earning_rate_total_shared is not None:
        record["future_rates"]["earning_rate_total_shared"] = earning_rate_total_shared
    if slashing_rate_per_client is not None:
        record["future_rates"]["slashing_rate_per_client"] = slashing_rate_per_client
    return finish(account, record)


def process_record_claim(account: CoordinatorAccount, *, user: bytes, points: int) -> CoordinatorAccount:
    """The owner has paid ``user`` for ``points``. Raises SignerNotAClient, InDispute, ClaimExceedsEarned."""
    record = copy_record(account.record)
    number = find_client_entry(record, user)
    refuse_unless(not is_party(record, number), ErrorCode.InDispute)
    entry = record["entries"][number]
    earned, slashed, claimed = (int(entry[name]) for name in ("earned", "slashed", "claimed"))
    refuse_unless(points <= max(earned - slashed - claimed, 0), ErrorCode.ClaimExceedsEarned)
    entry["claimed"] = claimed + points
    return finish(account, record)


def process_settle_debt(account: CoordinatorAccount, *, user: bytes, points: int) -> CoordinatorAccount:
    """A bond has paid for ``points`` that ``user`` was slashed beyond what it had earned.

    Raises SignerNotAClient, ClaimExceedsEarned.
    """
    record = copy_record(account.record)
    entry = record["entries"][find_client_entry(record, user)]
    earned, slashed, claimed = (int(entry[name]) for name in ("earned", "slashed", "claimed"))
    refuse_unless(points <= compute_debt(earned, slashed, claimed), ErrorCode.ClaimExceedsEarned)
    entry["slashed"] = slashed - points
    return finish(account, record)


def process_set_paused(
    account: CoordinatorAccount, paused: bool, *, now: int, seed: int
) -> CoordinatorAccount:
    """Pause (after the epoch, if rounds are running) or resume; after a resume everybody joins again.

    Raises Halted, CannotResume, Config-, Model-, ProgressSanityCheckFailed.
    """
    record = copy_record(account.record)
    if paused:
        refuse_unless(account.run_state not in HALTED, ErrorCode.Halted)
        if account.run_state in ACTIVE:  # a pause waits for the end of the epoch
            record["pending_pause"] = 1
        else:
            tick.withdraw_all(record)
            record["epoch_state"]["cold_start_epoch"] = 1
            tick.change_state(record, RunState.Paused, now)
        return finish(account, record)
    if account.run_state is RunState.Uninitialized:
        record["run_state"] = RunState.Paused
        record["progress"]["step"] = max(int(record["progress"]["step"]), 1)
    refuse_unless(tick.get_state(record) is RunState.Paused, ErrorCode.CannotResume)
    _check_config(record)
    _check_model(record, may_be_shared=True)
    _check_together(record)
    _check_progress(record)
    record["next_active"] = int(record["next_active"]) + 1
    tick.change_state(record, tick.get_resting_state(record), now)
    return tick_and_finish(account, record, now, seed)


def _check_config(record: Record) -> None:
    config = CoordinatorConfig.from_record(record["config"])
    is_sound = all(rule.holds for rule in get_config_rules(config))
    refuse_unless(is_sound, ErrorCode.ConfigSanityCheckFailed)


def _check_model(record: Record, *, may_be_shared: bool) -> None:
    try:
        model = Model.from_record(record["model"])
    except ValueError:  # a kind byte that no variant has
        raise CoordinatorError(ErrorCode.ModelSanityCheckFailed) from None
    is_sound = (
        all(rule.holds for rule in get_model_rules(model, may_be_shared=may_be_shared))
        and model.checkpoint_origin in OWN_KINDS
        and int(record["model"]["quantize_1bit"]) == 1
    )
    refuse_unless(is_sound, ErrorCode.ModelSanityCheckFailed)


def _check_together(record: Record) -> None:
    config = CoordinatorConfig.from_record(record["config"])
    model = Model.from_record(record["model"])
    is_sound = all(rule.holds for rule in get_joint_rules(config, model))
    refuse_unless(is_sound, ErrorCode.ModelSanityCheckFailed)


def _check_progress(record: Record) -> None:
    progress = record["progress"]
    is_sound = progress["step"] > 0 and progress["epoch_start_data_index"] <= MAX_DATA_INDEX
    refuse_unless(is_sound, ErrorCode.ProgressSanityCheckFailed)
