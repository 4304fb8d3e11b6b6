"""Names of the rules that a step of a history shows, read off the account before and after it.

The benchmark counts them, so that "no differences" says what was compared; the vectors are chosen so that
every one of them is shown by a history that bears its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dispute_coverage import find_debt_rules, find_dispute_rules, find_extra_round_rules

from psyche_py.coordinator.layout import MAX_CLIENTS, MAX_U16, MAX_U64, CheckpointKind, ClientState, RunState
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.tick import compute_batch_size
from psyche_py.coordinator.witness import get_quorum

ROUND_STATES = (RunState.RoundTrain, RunState.RoundWitness)
SHARED = (CheckpointKind.P2P, CheckpointKind.P2PGcs)
State = CoordinatorAccount


def find_rules(before: State, name: str, error: str | None, after: State) -> Iterator[str]:
    """Names of the rules that this step shows; ``before`` is ``after`` when nothing changed."""
    if error is not None:
        yield f"{name}: {error}"
        return
    yield f"{name}: accepted"
    if before is after:
        yield f"{name}: accepted, nothing changes"
        return
    if before.run_state is not after.run_state:
        yield f"{before.run_state.name} to {after.run_state.name}"
    if name in _BY_INSTRUCTION:
        yield from _BY_INSTRUCTION[name](before, after)
    yield from find_dispute_rules(name, before, after)
    if after.nonce < before.nonce and name != "init_coordinator":
        yield "the nonce begins anew after the largest u64"
    if after.run_state is RunState.Warmup is not before.run_state:
        yield from _find_epoch_start_rules(before, after)
    if before.run_state is RunState.Warmup is not after.run_state:
        yield from _find_warmup_end_rules(before, after)
    if before.run_state in ROUND_STATES and before.step != after.step:
        yield from _find_round_end_rules(name, before, after)
    if before.run_state is RunState.Cooldown and before.run_state is not after.run_state:
        yield from _find_epoch_end_rules(name, before, after)
    if after.run_state is RunState.RoundTrain and before.current_round.height != after.current_round.height:
        yield from _find_round_start_rules(after)


# ---- by instruction ---------------------------------------------------------------------------------------


def _find_join_rules(before: State, after: State) -> Iterator[str]:
    num = int(after.record["num_entries"])
    if after.config.required_bond:
        yield "join: with a bond"
    if num > int(before.record["num_entries"]):
        yield "join: a new wallet"
        if num == MAX_CLIENTS:
            yield "join: the last of 256 places"
        return
    for number in np.flatnonzero(before.record["entries"] != after.record["entries"]).tolist():
        old, new = before.record["entries"][number], after.record["entries"][number]
        if (old["signer"] != new["signer"]).any():
            yield "join: in the place of one that nobody misses"
            return
        if (old["authorization"] != new["authorization"]).any():
            yield "join: by another authorization"
        if (old["p2p_key"] != new["p2p_key"]).any():
            yield "join: another p2p key between epochs"
        if (old["address_hint"] != new["address_hint"]).any():
            yield "join: another address"
        if old["active"] == 0 and new["active"]:
            yield "join: back after leaving"
        if before.run_state in ROUND_STATES:
            yield "join: for the next epoch while one runs"


def _find_leave_rules(before: State, after: State) -> Iterator[str]:
    is_withdrawn = after.num_healthy < before.num_healthy
    yield "leave: a running epoch" if is_withdrawn else "leave: before the next epoch"


def _find_witness_rules(before: State, after: State) -> Iterator[str]:
    if before.run_state is RunState.RoundWitness:
        yield "witness: after the training time"
    if before.step != after.step:
        yield "witness: the last one ends the round at once"
        if before.current_round.elected.bit_count() > before.current_round.num_witnesses + 1:
            yield "witness: the last Healthy one ends the round at once"
    elif before.run_state is not after.run_state:
        yield "witness: the last one, and somebody is missing, so the round waits"
    if before.current_round.num_witnesses == 31 and before.step != after.step:
        yield "witness: 32 of them"


def _find_removal_rules(before: State, after: State) -> Iterator[str]:
    is_in = after.run_state in ROUND_STATES
    yield "removal: while an epoch runs, for the next one" if is_in else "removal: before the next epoch"


def _find_claim_rules(before: State, after: State) -> Iterator[str]:
    if sum(entry.claimable for entry in before.entries) and not any(e.claimable for e in after.entries):
        yield "claim: all there was"
    if any(entry.slashed for entry in after.entries):
        yield "claim: with points slashed"


def _find_migrate_rules(before: State, after: State) -> Iterator[str]:
    yield "migrate: in a round" if after.run_state in ROUND_STATES else "migrate: between rounds"


def _find_checkpoint_rules(before: State, after: State) -> Iterator[str]:
    is_shared = after.model.checkpoint_kind in SHARED
    yield f"checkpoint: {'shared among peers' if is_shared else after.model.checkpoint_kind.name}"
    if after.is_halted:
        yield "checkpoint: named in a halted run"


def _find_pause_rules(before: State, after: State) -> Iterator[str]:
    if after.is_pause_pending and not before.is_pause_pending:
        yield "pause: waits for the end of the epoch"
    elif after.run_state is RunState.Paused:
        yield "pause: at once"
    elif before.run_state is RunState.Uninitialized:
        yield "resume: for the first time"


_BY_INSTRUCTION: dict[str, Any] = {
    "join_run": _find_join_rules,
    "leave_run": _find_leave_rules,
    "witness": _find_witness_rules,
    "remove_unauthorized": _find_removal_rules,
    "record_claim": _find_claim_rules,
    "settle_debt": find_debt_rules,
    "migrate": _find_migrate_rules,
    "checkpoint": _find_checkpoint_rules,
    "set_paused": _find_pause_rules,
}


# ---- by transition ----------------------------------------------------------------------------------------


def _find_epoch_start_rules(before: State, after: State) -> Iterator[str]:
    if after.is_cold_start_epoch:
        yield "epoch start: cold"
    if before.model.checkpoint_kind in SHARED:
        yield f"epoch start: the model comes from peers, {'attested' if after.model_digest else 'unattested'}"
    if len(after.epoch_clients) < len(after.entries):
        yield "epoch start: without the wallets that did not join again"
    if before.current_rates != after.current_rates:
        yield "epoch start: new rates"


def _find_warmup_end_rules(before: State, after: State) -> Iterator[str]:
    if after.run_state is not RunState.RoundTrain:
        if after.run_state is RunState.Paused:
            return
        if after.num_healthy < after.config.min_clients:
            yield "warmup: aborted, too few clients"
        elif after.model.checkpoint_kind in SHARED:
            yield "warmup: nobody has the model, the one before it is wanted"
        else:
            yield "warmup: nobody has any model, the run's checkpoint is wanted"
        return
    is_ready = after.current_round.healthy & ~after.warmup_ready == 0
    yield "warmup: everybody is ready" if is_ready else "warmup: its time is over"


def _find_round_end_rules(name: str, before: State, after: State) -> Iterator[str]:
    ended = after.get_round_at(before.current_round.height)
    assert ended is not None
    if name in ("health_check", "leave_run"):
        yield f"round end: by a {name}"
    gained = [new.attested_rounds - old.attested_rounds for old, new in _zip_clients(before, after)]
    if any(gained) and not all(gained):
        yield "round end: counted for some clients only"
    yield from _find_judgement_rules(before, after)
    if before.last_step == 0 and after.last_step:
        yield from _find_closing_rules(before, after)
    if after.run_state is not RunState.Cooldown:
        yield from find_extra_round_rules(before, after)
        return
    if ended.num_witnesses == 0:
        yield "round end: no witness, everybody is withdrawn"
    elif after.num_healthy < after.config.min_clients:
        yield "round end: too few Healthy clients"
    elif ended.num_witnesses < get_quorum(after, ended):
        yield "round end: no quorum of witnesses"
    elif after.step >= after.config.total_steps:
        yield "round end: the last step of the run"
    else:
        yield "round end: the last step of the epoch"


def _find_judgement_rules(before: State, after: State) -> Iterator[str]:
    """What the witnesses of a round are found to have done."""
    for old, new in _zip_clients(before, after):
        if new.silent_rounds > old.silent_rounds:
            yield "witnesses: a silent one does not get the round"
        if new.contradictions > old.contradictions:
            if old.state is not new.state:
                yield "witnesses: Dropped, since it contradicts a quorum too often"
            elif old.state is ClientState.Healthy:
                yield "witnesses: contradicts a quorum, and may stay"
            else:
                yield "witnesses: contradicts a quorum after it was lost"


def _find_closing_rules(before: State, after: State) -> Iterator[str]:
    if before.is_pause_pending:
        yield "epoch closing: a pause is wanted"
    elif after.step + 2 >= after.config.total_steps:
        yield "epoch closing: the steps run out"
    else:
        yield "epoch closing: its time is over"


def _find_round_start_rules(after: State) -> Iterator[str]:
    current = after.current_round
    if current.apply_only:
        yield "round start: apply-only"
    elif current.batch_size == after.config.global_batch_size_end:
        yield "round start: full batch"
    elif current.batch_size == compute_batch_size(after.record, current.data_index):
        yield "round start: batch on the ramp"
    if current.height == 4:
        yield "round start: the ring is used again"
    if current.clients_len < len(after.epoch_clients):
        yield "round start: without the clients that are lost"


def _find_epoch_end_rules(name: str, before: State, after: State) -> Iterator[str]:
    rate = before.current_rates.earning_rate_total_shared
    weights = [c.attested_rounds for c in before.epoch_clients if c.state is not ClientState.Ejected]
    if any(c.attested_rounds and c.state is ClientState.Ejected for c in before.epoch_clients):
        yield "points: none for an Ejected client"
    if rate:
        yield "points: shared" if any(weights) else "points: none, nobody was attested"
    if any(rate * weight % sum(weights) for weight in weights if weight):
        yield "points: the largest remainders get the units left over"
    if any(c.attested_rounds and c.state is ClientState.Withdrawn for c in before.epoch_clients):
        yield "points: for a client that left"
    for old, new in zip(before.entries, after.entries, strict=False):  # a join may have added one
        if new.earned == MAX_U64 > old.earned:
            yield "points: stop at the largest u64"
    if before.epoch == after.epoch == MAX_U16:
        yield "epoch end: the number stops at 65535"
    if name != "checkpoint" and before.model.checkpoint_kind != after.model.checkpoint_kind:
        yield f"epoch end: {before.model.checkpoint_kind.name} becomes {after.model.checkpoint_kind.name}"
    if before.current_round.height < 2:
        if after.model_digest:
            yield "epoch end: nothing was applied, the model stays"
    else:
        last, num_older = "attested" if after.model_digest else "not attested", len(after.older_digests)
        yield f"epoch end: the last model is {last}, {num_older} to fall back on"
    yield "epoch end: one round only" if before.previous_round is None else "epoch end: after some rounds"


def _zip_clients(before: State, after: State) -> Any:
    return zip(before.epoch_clients, after.epoch_clients, strict=True)
