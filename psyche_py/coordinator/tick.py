"""What time does to a run: every transition of the state machine, on the raw record.

The program runs the same code in Rust (``programs/coordinator``); a conformance test compares all bytes after
every step. A tick makes one transition at most. When :func:`is_due` says no, a tick changes no byte.
"""

from __future__ import annotations

import numpy as np

from psyche_py.coordinator.committee import compute_elected, get_num_elected_of
from psyche_py.coordinator.disputes import expire_all, has_judged, has_unjudged, seat_judges
from psyche_py.coordinator.handover import (
    NUM_APPLY_ROUNDS,
    has_nobody_ready,
    is_shared,
    note_models,
    share_model,
    step_back,
)
from psyche_py.coordinator.layout import (
    HALTED,
    MAX_U16,
    MAX_U64,
    NUM_STORED_ROUNDS,
    ROUND_STATES,
    ClientState,
    Record,
    RunState,
    get_bit_indices,
    get_bitmap,
    set_bitmap,
)
from psyche_py.coordinator.rewards import compute_shares
from psyche_py.coordinator.views import (
    compute_participant_votes,
    get_current_round,
    get_earlier_round,
    get_num_healthy,
    get_pending,
)
from psyche_py.coordinator.witness import compute_quorum

MIN_LAST_STEP = 4
"""An epoch never ends before this step (Psyche's rule)."""


# ---- reading ----------------------------------------------------------------------------------------------


def get_state(record: Record) -> RunState:
    """The run state."""
    return RunState(int(record["run_state"]))


def get_healthy_bitmap(record: Record) -> int:
    """Epoch clients in state Healthy, as a bitmap."""
    epoch = record["epoch_state"]
    states = epoch["clients"]["state"][: int(epoch["num_clients"])]
    packed = np.packbits(states == ClientState.Healthy, bitorder="little")
    return int.from_bytes(packed.tobytes(), "little")


def get_silent_witnesses(record: Record) -> int:
    """Elected witnesses of the current round that could attest and have not, as a bitmap."""
    current = get_current_round(record)
    stored = current["witnesses"]["index"][: int(current["num_witnesses"])]
    witnessed = 0
    for index in stored.tolist():
        witnessed |= 1 << index
    return get_bitmap(current["elected"]) & get_healthy_bitmap(record) & ~witnessed


def has_every_witness(record: Record) -> bool:
    """Every elected witness of the current round that is still Healthy has attested."""
    return get_silent_witnesses(record) == 0


def is_complete(record: Record) -> bool:
    """Every stored witness saw all of the previous round's clients that are still Healthy take part."""
    previous = get_earlier_round(record, 1)
    if previous is None or previous["apply_only"]:
        return True
    expected = get_bitmap(previous["healthy"]) & get_healthy_bitmap(record)
    current = get_current_round(record)
    stored = current["witnesses"]["participants"][: int(current["num_witnesses"])]
    return all(expected & ~get_bitmap(participants) == 0 for participants in stored)


def compute_batch_size(record: Record, data_index: int) -> int:
    """Samples of a round that starts at ``data_index``: a linear ramp over tokens seen (psyche.md 1.8)."""
    config = record["config"]
    start, end = int(config["global_batch_size_start"]), int(config["global_batch_size_end"])
    warmup_tokens = int(config["global_batch_size_warmup_tokens"])
    tokens = data_index * int(record["model"]["max_seq_len"])
    if warmup_tokens == 0 or tokens >= warmup_tokens:
        return end
    return start + ((end - start) * tokens + warmup_tokens // 2) // warmup_tokens


def _get_timeout(record: Record) -> int:
    """Seconds after which the present state ends by itself."""
    config = record["config"]
    keys = {
        RunState.WaitingForMembers: "waiting_for_members_extra_time",
        RunState.Warmup: "warmup_time",
        RunState.RoundTrain: "max_round_train_time",
        RunState.RoundWitness: "round_witness_time",
        RunState.Cooldown: "cooldown_time",
    }
    state = get_state(record)
    timeout = int(config[keys[state]])
    if state is RunState.Cooldown and has_judged(record):
        # tie-breakers get the time that they would have in a round
        return max(timeout, int(config["max_round_train_time"]))
    return timeout


def _is_timed_out(record: Record, now: int) -> bool:
    """Psyche's timer: never in the second in which the state began, so two transitions cannot share one."""
    start = int(record["run_state_start_unix_timestamp"])
    return now != start and now >= start + _get_timeout(record)


def _is_event_due(record: Record) -> bool:
    """Whether a tick would change something whatever the time is."""
    state = get_state(record)
    if state is RunState.Warmup:
        ready = get_bitmap(record["epoch_state"]["warmup_ready"])
        is_short = get_num_healthy(record) < int(record["config"]["min_clients"])
        return is_short or get_healthy_bitmap(record) & ~ready == 0
    if state is RunState.RoundTrain:
        return has_every_witness(record)
    return state is RunState.RoundWitness and has_every_witness(record) and is_complete(record)


def _can_time_out(record: Record) -> bool:
    """Whether the present state's timer means anything."""
    state = get_state(record)
    if state is RunState.WaitingForMembers:
        return len(get_pending(record)) >= int(record["config"]["init_min_clients"])
    return state not in HALTED


def is_due(record: Record, now: int) -> bool:
    """Whether a tick at ``now`` (unix seconds) would change the account."""
    return _is_event_due(record) or (_can_time_out(record) and _is_timed_out(record, now))


def compute_deadline(record: Record) -> int | None:
    """Earliest unix second at which a tick would change the account; None when only an event can."""
    start = int(record["run_state_start_unix_timestamp"])
    if _is_event_due(record):
        return start
    return start + max(_get_timeout(record), 1) if _can_time_out(record) else None


# ---- writing ----------------------------------------------------------------------------------------------


def run_tick(record: Record, now: int, seed: int) -> None:
    """Make the transition that is due at ``now``, if any. ``seed`` becomes a starting round's random seed."""
    if not is_due(record, now):
        return
    state = get_state(record)
    if state is RunState.WaitingForMembers:
        _start_warmup(record, now)
    elif state is RunState.Warmup:
        if get_num_healthy(record) < int(record["config"]["min_clients"]):
            change_state(record, get_resting_state(record), now)
        elif is_shared(record) and has_nobody_ready(record, get_healthy_bitmap(record)):
            step_back(record)
            change_state(record, get_resting_state(record), now)
        else:
            _start_round_train(record, now, seed)
    elif state is RunState.RoundTrain and not (has_every_witness(record) and is_complete(record)):
        change_state(record, RunState.RoundWitness, now)
    elif state in ROUND_STATES:
        _end_round(record, now, seed)
    else:
        _end_cooldown(record, now)


def change_state(record: Record, state: RunState, now: int) -> None:
    """Enter a state at ``now``."""
    record["run_state"] = state
    record["run_state_start_unix_timestamp"] = now


def withdraw_all(record: Record) -> None:
    """Every Healthy client leaves the epoch at the current height."""
    epoch = record["epoch_state"]
    clients = epoch["clients"][: int(epoch["num_clients"])]
    healthy = clients["state"] == ClientState.Healthy
    clients["exited_height"][healthy] = get_current_round(record)["height"]
    clients["state"][healthy] = ClientState.Withdrawn


def get_resting_state(record: Record) -> RunState:
    """Where a run goes between epochs; an epoch needs a round to train and two to apply its results."""
    is_done = int(record["progress"]["step"]) + NUM_APPLY_ROUNDS >= int(record["config"]["total_steps"])
    return RunState.Finished if is_done else RunState.WaitingForMembers


def _start_warmup(record: Record, now: int) -> None:
    """Freeze the clients of a new epoch."""
    pending = get_pending(record)
    epoch = record["epoch_state"]
    kept = {name: epoch[name].copy() for name in ("cold_start_epoch", "model_digest", "older_digests")}
    record["epoch_state"] = np.zeros((), epoch.dtype)
    for name, value in kept.items():
        epoch[name] = value
    epoch["num_clients"] = len(pending)
    epoch["clients"]["entry"][: len(pending)] = pending  # Healthy is 0
    epoch["first_round"] = 1
    epoch["start_step"] = record["progress"]["step"]
    epoch["start_timestamp"] = now
    record["current_rates"] = record["future_rates"]
    record["disputes"] = np.zeros((), record["disputes"].dtype)
    record["entries"]["last_epoch"][pending] = record["progress"]["epoch"]
    change_state(record, RunState.Warmup, now)


def _start_round_train(record: Record, now: int, seed: int) -> None:
    epoch, progress = record["epoch_state"], record["progress"]
    height, data_index = 0, int(progress["epoch_start_data_index"])
    if epoch["first_round"]:
        epoch["rounds_head"] = 0
        record["next_active"] = int(record["next_active"]) + 1
    else:
        before = get_current_round(record)
        height = int(before["height"]) + 1
        data_index = int(before["data_index"]) + int(before["batch_size"])
        epoch["rounds_head"] = (int(epoch["rounds_head"]) + 1) % NUM_STORED_ROUNDS
    head = int(epoch["rounds_head"])
    epoch["rounds"][head] = np.zeros((), epoch["rounds"].dtype)
    current = epoch["rounds"][head]
    healthy = get_healthy_bitmap(record)
    current["height"] = height
    current["data_index"] = data_index
    current["step"] = progress["step"]
    current["random_seed"] = seed
    current["apply_only"] = int(epoch["last_step"]) != 0
    set_bitmap(current, "healthy", healthy)
    current["clients_len"] = healthy.bit_count()
    num_elected = get_num_elected_of(record, current)
    set_bitmap(current, "elected", compute_elected(healthy, num_elected, seed))
    current["tie_breaker_tasks"] = seat_judges(record)
    current["batch_size"] = 0 if current["apply_only"] else compute_batch_size(record, data_index)
    change_state(record, RunState.RoundTrain, now)


def _end_round(record: Record, now: int, seed: int) -> None:
    """Count who took part, then decide whether the epoch goes on."""
    _judge_witnesses(record)
    epoch, progress, config = record["epoch_state"], record["progress"], record["config"]
    current = get_current_round(record)
    epoch["first_round"] = 0
    step, total_steps = int(progress["step"]) + 1, int(config["total_steps"])
    progress["step"] = step
    num_witnesses = int(current["num_witnesses"])
    if num_witnesses == 0:
        withdraw_all(record)
        change_state(record, RunState.Cooldown, now)
        return
    is_short = get_num_healthy(record) < int(config["min_clients"])
    if is_short or num_witnesses < compute_quorum(get_num_elected_of(record, current)):
        change_state(record, RunState.Cooldown, now)
        return
    is_epoch_over = now >= int(epoch["start_timestamp"]) + int(config["epoch_time"])
    if int(epoch["last_step"]) == 0 and (
        is_epoch_over or record["pending_pause"] or step + NUM_APPLY_ROUNDS >= total_steps
    ):
        epoch["last_step"] = max(step + NUM_APPLY_ROUNDS, MIN_LAST_STEP)
    last_step = int(epoch["last_step"])
    is_last = (last_step != 0 and step >= last_step) or step >= total_steps
    # an accusation gets its tie-breakers: those about the last trained round come at most two rounds late
    if is_last and not has_unjudged(record):
        change_state(record, RunState.Cooldown, now)
    else:
        _start_round_train(record, now, seed)


def _judge_witnesses(record: Record) -> None:
    """Count the previous round for everybody a quorum saw, apart from elected witnesses that kept silent.

    Then drop the witnesses that have contradicted a quorum too often.
    """
    previous, current = get_earlier_round(record, 1), get_current_round(record)
    if previous is None or previous["apply_only"]:
        return
    quorum = compute_quorum(get_num_elected_of(record, current))
    votes = np.array(compute_participant_votes(current))
    clients = record["epoch_state"]["clients"]
    silent = get_bit_indices(get_silent_witnesses(record))
    attested = np.flatnonzero(votes >= quorum)
    due = get_bitmap(previous["healthy"])
    for index in attested.tolist():
        if due >> index & 1 and index not in silent:
            clients["attested_rounds"][index] += 1
    for index in silent:
        clients["silent_rounds"][index] = min(int(clients["silent_rounds"][index]) + 1, MAX_U16)
    seen = sum(1 << index for index in attested.tolist())
    unseen_by = int(current["num_witnesses"]) - votes
    missed = sum(1 << index for index in np.flatnonzero(unseen_by >= quorum).tolist())
    _count_contradictions(record, seen, missed)


def _count_contradictions(record: Record, seen: int, missed: int) -> None:
    """A witness contradicts when it leaves out a client in ``seen`` or names one in ``missed``."""
    limit = int(record["config"]["max_witness_contradictions"])
    clients, current = record["epoch_state"]["clients"], get_current_round(record)
    for witness in current["witnesses"][: int(current["num_witnesses"])]:
        participants = get_bitmap(witness["participants"])
        if not (seen & ~participants | participants & missed):
            continue
        client = clients[int(witness["index"])]
        client["contradictions"] = min(int(client["contradictions"]) + 1, MAX_U16)
        if client["contradictions"] > limit and client["state"] == ClientState.Healthy:
            client["state"] = ClientState.Dropped
            client["exited_height"] = current["height"]


def _end_cooldown(record: Record, now: int) -> None:
    """Settle the epoch: disputes, points, the next epoch's first sample, where its model comes from."""
    expire_all(record)
    _settle_points(record)
    note_models(record)
    epoch, progress = record["epoch_state"], record["progress"]
    current, previous = get_current_round(record), get_earlier_round(record, 1)
    progress["epoch"] = min(int(progress["epoch"]) + 1, MAX_U16)
    # the results of the last two rounds were never applied: train their samples again (an apply-only
    # round has none, so after a normal end nothing is repeated)
    first_unapplied = current if previous is None else previous
    progress["epoch_start_data_index"] = first_unapplied["data_index"]
    if int(current["height"]) >= NUM_APPLY_ROUNDS:
        share_model(record)
    if record["pending_pause"]:
        withdraw_all(record)
        record["pending_pause"] = 0
        epoch["cold_start_epoch"] = 1
        change_state(record, RunState.Paused, now)
        return
    state = get_resting_state(record)
    if state is RunState.WaitingForMembers:
        epoch["cold_start_epoch"] = 0
    change_state(record, state, now)


def _settle_points(record: Record) -> None:
    """Share the epoch's points by rounds attested. The sum is exact; Ejected clients get nothing."""
    epoch = record["epoch_state"]
    clients = epoch["clients"][: int(epoch["num_clients"])]
    weights = np.where(clients["state"] == ClientState.Ejected, 0, clients["attested_rounds"]).tolist()
    shares = compute_shares(int(record["current_rates"]["earning_rate_total_shared"]), weights)
    entries = record["entries"]["earned"]
    for entry, share in zip(clients["entry"].tolist(), shares, strict=True):
        if share:
            entries[entry] = min(int(entries[entry]) + share, MAX_U64)
    clients["attested_rounds"] = 0
