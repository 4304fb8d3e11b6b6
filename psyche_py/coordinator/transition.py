"""The rule book: every event that can happen to a run, as account in, account out.

Each ``process_*`` does what the program's instruction of that name does, byte for byte, once the program has
checked signers, owners and authorizations. It returns a new account, or the same one when nothing changes,
and raises CoordinatorError with the program's code. ``now`` is unix seconds, ``seed`` comes from
:func:`compute_seed`; pubkeys are 32 raw bytes. psyche.md 1.6 to 1.14 describe the original.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from psyche_py.coordinator import tick
from psyche_py.coordinator.accusations import process_verdict, process_vote
from psyche_py.coordinator.errors import CoordinatorError, ErrorCode
from psyche_py.coordinator.events import (
    find_client_entry,
    find_healthy_client,
    is_client,
    refuse_unless,
    remove_client,
    tick_and_finish,
)
from psyche_py.coordinator.handover import get_shared_kind
from psyche_py.coordinator.layout import (
    HALTED,
    MAX_WITNESSES,
    ROUND_STATES,
    SHARED_KINDS,
    CheckpointKind,
    ClientState,
    RunState,
    copy_record,
    get_bitmap,
    set_bitmap,
    set_bytes,
)
from psyche_py.coordinator.membership import (
    process_announce,
    process_join,
    process_leave,
    process_remove_unauthorized,
)
from psyche_py.coordinator.migration import process_migrate
from psyche_py.coordinator.owner import (
    process_init,
    process_record_claim,
    process_set_future_epoch_rates,
    process_set_paused,
    process_settle_debt,
    process_update,
    process_update_client_version,
)
from psyche_py.coordinator.rules import OWN_KINDS
from psyche_py.coordinator.state import CoordinatorAccount, Round
from psyche_py.coordinator.views import get_current_round
from psyche_py.coordinator.witness import is_client_unhealthy

__all__ = [
    "CoordinatorError",
    "ErrorCode",
    "compute_next_deadline",
    "compute_seed",
    "is_tick_due",
    "process_announce",
    "process_checkpoint",
    "process_health_check",
    "process_init",
    "process_join",
    "process_leave",
    "process_migrate",
    "process_record_claim",
    "process_remove_unauthorized",
    "process_set_future_epoch_rates",
    "process_set_paused",
    "process_settle_debt",
    "process_tick",
    "process_update",
    "process_update_client_version",
    "process_verdict",
    "process_vote",
    "process_warmup_witness",
    "process_witness",
]


def compute_seed(unix_timestamp: int, slot: int, slot_hash: bytes) -> int:
    """Random seed of a tick: first 8 bytes of sha256(timestamp i64 || slot u64 || newest slot hash)."""
    return int.from_bytes(
        hashlib.sha256(struct.pack("<qQ", unix_timestamp, slot) + slot_hash).digest()[:8], "little"
    )


def is_tick_due(account: CoordinatorAccount, now: int) -> bool:
    """Whether a tick at ``now`` would change the account."""
    return tick.is_due(account.record, now)


def compute_next_deadline(account: CoordinatorAccount) -> int | None:
    """Earliest unix second at which a tick could change the account without any other event; None: never.

    It may lie in the past: then a tick is due now (at the latest one second after the last transition).
    """
    return tick.compute_deadline(account.record)


# ---- time -------------------------------------------------------------------------------------------------


def process_tick(account: CoordinatorAccount, *, now: int, seed: int) -> CoordinatorAccount:
    """Let time act on the run. Raises Halted."""
    refuse_unless(account.run_state not in HALTED, ErrorCode.Halted)
    if not is_tick_due(account, now):
        return account
    return tick_and_finish(account, copy_record(account.record), now, seed)


# ---- clients ----------------------------------------------------------------------------------------------


def process_warmup_witness(
    account: CoordinatorAccount, *, signer: bytes, index: int, now: int, seed: int
) -> CoordinatorAccount:
    """Client ``index``, which must be the signer's own, has its model in place.

    Raises SignerNotAClient, Halted, InvalidRunState, InvalidWitness. In RoundTrain it is merely late.
    """
    record = copy_record(account.record)
    entry = find_client_entry(record, signer)
    state = tick.get_state(record)
    refuse_unless(state not in HALTED, ErrorCode.Halted)
    if state is not RunState.RoundTrain:
        refuse_unless(state is RunState.Warmup, ErrorCode.InvalidRunState)
        refuse_unless(is_client(record, index, entry, is_healthy=True), ErrorCode.InvalidWitness)
        epoch = record["epoch_state"]
        set_bitmap(epoch, "warmup_ready", get_bitmap(epoch["warmup_ready"]) | 1 << index)
    return tick_and_finish(account, record, now, seed)


def process_witness(
    account: CoordinatorAccount,
    *,
    signer: bytes,
    index: int,
    step: int,
    participants: Sequence[int],
    broadcast_bloom: Sequence[int],
    broadcast_merkle: bytes,
    state_digest: bytes,
    now: int,
    seed: int,
) -> CoordinatorAccount:
    """An elected witness attests, in the round of ``step``, the results of the round before.

    ``participants`` are 4 words and ``broadcast_bloom`` 16 words of u64. Raises SignerNotAClient, Halted,
    InvalidRunState, InvalidWitness, DuplicateWitness, WitnessesFull.
    """
    record = copy_record(account.record)
    entry = find_client_entry(record, signer)
    state = tick.get_state(record)
    refuse_unless(state not in HALTED, ErrorCode.Halted)
    refuse_unless(state in ROUND_STATES, ErrorCode.InvalidRunState)
    current = account.current_round
    refuse_unless(step == current.step, ErrorCode.InvalidWitness)
    refuse_unless(_is_elected(account, current, index, entry), ErrorCode.InvalidWitness)
    seen = sum(word << 64 * i for i, word in enumerate(participants))
    previous = account.previous_round
    possible = previous.healthy if previous is not None and not previous.apply_only else 0
    refuse_unless(seen & ~possible == 0, ErrorCode.InvalidWitness)
    refuse_unless(all(w.index != index for w in current.witnesses), ErrorCode.DuplicateWitness)
    refuse_unless(current.num_witnesses < MAX_WITNESSES, ErrorCode.WitnessesFull)
    round_record = get_current_round(record)
    witness = round_record["witnesses"][current.num_witnesses]
    witness["index"] = index
    witness["participants"] = np.array(participants, dtype="<u8")
    witness["broadcast_bloom"] = np.array(broadcast_bloom, dtype="<u8")
    set_bytes(witness, "broadcast_merkle", broadcast_merkle)
    set_bytes(witness, "state_digest", state_digest)
    round_record["num_witnesses"] = current.num_witnesses + 1
    return tick_and_finish(account, record, now, seed)


def _is_elected(account: CoordinatorAccount, round_: Round, index: int, entry: int) -> bool:
    return is_client(account.record, index, entry, is_healthy=False) and bool(round_.elected >> index & 1)


def process_health_check(
    account: CoordinatorAccount, *, signer: bytes, index: int, now: int, seed: int
) -> CoordinatorAccount:
    """Drop client ``index``, which the previous round's witnesses did not see take part.

    Raises SignerNotAClient, Halted, InvalidRunState, InvalidHealthCheck.
    """
    record = copy_record(account.record)
    find_client_entry(record, signer)
    state = tick.get_state(record)
    refuse_unless(state not in HALTED, ErrorCode.Halted)
    refuse_unless(state in ROUND_STATES, ErrorCode.InvalidRunState)
    refuse_unless(is_client_unhealthy(account, index), ErrorCode.InvalidHealthCheck)
    remove_client(record, index, ClientState.Dropped)
    return tick_and_finish(account, record, now, seed)


def process_checkpoint(
    account: CoordinatorAccount,
    *,
    signer: bytes,
    kind: int,
    repo: bytes,
    revision: bytes,
    now: int,
    seed: int,
) -> CoordinatorAccount:
    """A Healthy client names where it has put a new checkpoint (``repo`` 128 bytes, ``revision`` 64).

    Raises SignerNotAClient, ClientNotInEpoch, InvalidCheckpoint. Accepted in a halted run too, so that the
    last epoch's checkpoint can be named.
    """
    record = copy_record(account.record)
    entry = find_client_entry(record, signer)
    refuse_unless(find_healthy_client(record, entry) is not None, ErrorCode.ClientNotInEpoch)
    is_known = kind in (CheckpointKind.Hub, CheckpointKind.Gcs, CheckpointKind.Local)
    refuse_unless(is_known and repo[0], ErrorCode.InvalidCheckpoint)
    model = record["model"]
    present = CheckpointKind(int(model["checkpoint_kind"]))
    refuse_unless(present in OWN_KINDS + SHARED_KINDS, ErrorCode.InvalidCheckpoint)
    model["checkpoint_kind"] = kind
    if present in SHARED_KINDS:
        model["checkpoint_kind"] = get_shared_kind(kind)
    model["checkpoint_origin"] = kind
    set_bytes(model, "checkpoint_repo", repo)
    set_bytes(model, "checkpoint_revision", revision)
    return tick_and_finish(account, record, now, seed)
