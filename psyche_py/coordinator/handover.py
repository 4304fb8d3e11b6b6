"""Which model an epoch hands over to the next, on the raw record.

Witnesses report the digest of their weights with a round's results applied. The account keeps what a quorum
of an epoch's last witnesses said alike: so a client that was not there knows which model the next epoch
starts from, and everybody who has that model can prove it. The program has the same rules
(``programs/coordinator/src/rules/handover.rs``).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from psyche_py.coordinator.committee import get_num_elected_of
from psyche_py.coordinator.layout import (
    MAX_U32,
    MODEL_PREFIX_BYTES,
    NUM_STORED_ROUNDS,
    SHARED_KINDS,
    CheckpointKind,
    Record,
    get_bitmap,
)
from psyche_py.coordinator.views import get_current_round, get_earlier_round
from psyche_py.coordinator.witness import compute_quorum

NUM_APPLY_ROUNDS = 2
UNKNOWN = bytes(32)
NONE = bytes(MODEL_PREFIX_BYTES)


def is_shared(record: Record) -> bool:
    """Whether clients take the epoch's model from each other."""
    return int(record["model"]["checkpoint_kind"]) in SHARED_KINDS


def get_shared_kind(kind: int) -> CheckpointKind:
    """The kind of a run whose clients share the model of a checkpoint of ``kind``."""
    return CheckpointKind.P2PGcs if kind == CheckpointKind.Gcs else CheckpointKind.P2P


def share_model(record: Record) -> None:
    """From now on joiners take the model from peers."""
    model = record["model"]
    if not is_shared(record):
        model["checkpoint_origin"] = model["checkpoint_kind"]
        model["checkpoint_kind"] = get_shared_kind(int(model["checkpoint_origin"]))


def compute_round_digest(record: Record, round_record: Record) -> bytes:
    """The digest (32 B) that a quorum of the round's elected witnesses reports, zeros when none does.

    Zeros are said by a witness that had not applied everything yet, and are no vote.
    """
    stored = round_record["witnesses"]["state_digest"][: int(round_record["num_witnesses"])]
    votes = Counter(digest.tobytes() for digest in stored)
    del votes[UNKNOWN]
    if not votes:
        return UNKNOWN
    digest, count = votes.most_common(1)[0]
    quorum = compute_quorum(get_num_elected_of(record, round_record))
    return digest if count >= quorum else UNKNOWN


def note_models(record: Record) -> None:
    """At an epoch's end: keep which model its last round led to, and behind it what to fall back on.

    That is the newest that a quorum attested before, and the one that the epoch began with, which clients
    have on disk. Before anything was applied the model is still the one that the epoch began with, as
    far behind the run's step as before.
    """
    epoch, current = record["epoch_state"], get_current_round(record)
    height = int(current["height"])
    if height < NUM_APPLY_ROUNDS:
        for name in ("model_step", "older_step"):
            if record[name]:
                record[name] = min(int(record[name]) + height + 1, MAX_U32)
        return
    start = epoch["model_digest"].tobytes()[:MODEL_PREFIX_BYTES]
    newest = compute_round_digest(record, current)
    older, older_step = _find_attested_before(record, newest)
    start = NONE if start in (older, newest[:MODEL_PREFIX_BYTES]) else start
    step = int(current["step"]) if any(newest) else 0
    _write(record, (newest, older, start), step, older_step)


def _find_attested_before(record: Record, newest: bytes) -> tuple[bytes, int]:
    """First bytes of the newest other model that a quorum attested before the last round, and its step.

    NONE and 0 where the ring has none.
    """
    for back in range(1, NUM_STORED_ROUNDS):
        round_record = get_earlier_round(record, back)
        if round_record is None:
            break
        digest = compute_round_digest(record, round_record)
        if digest not in (UNKNOWN, newest):
            return digest[:MODEL_PREFIX_BYTES], int(round_record["step"])
    return NONE, 0


def step_back(record: Record) -> None:
    """Nobody had the model in a whole warm-up: the one behind it is wanted, at last the run's own.

    What the rounds between had trained is lost to the run.
    """
    epoch, model = record["epoch_state"], record["model"]
    older, oldest = (digest.tobytes() for digest in epoch["older_digests"])
    step = int(record["older_step"])
    if not any(older):
        older, oldest, step = oldest, NONE, 0
    if not any(older):
        model["checkpoint_kind"] = model["checkpoint_origin"]
    _write(record, (older.ljust(len(UNKNOWN), b"\0"), oldest, NONE), step, 0)


def forget_models(record: Record) -> None:
    """The owner has named another model."""
    _write(record, (UNKNOWN, NONE, NONE), 0, 0)


def has_nobody_ready(record: Record, healthy: int) -> bool:
    """No client in ``healthy`` (a bitmap) has said in this warm-up that it has the model."""
    return get_bitmap(record["epoch_state"]["warmup_ready"]) & healthy == 0


def _write(record: Record, digests: tuple[bytes, bytes, bytes], step: int, older_step: int) -> None:
    newest, older, oldest = digests
    epoch = record["epoch_state"]
    epoch["model_digest"] = np.frombuffer(newest, dtype=np.uint8)
    epoch["older_digests"] = np.frombuffer(older + oldest, dtype=np.uint8).reshape(2, MODEL_PREFIX_BYTES)
    record["model_step"], record["older_step"] = step, older_step
