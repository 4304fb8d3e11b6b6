"""Verdicts and votes: see psyche_py.coordinator.transition, which shows these as its own.

Neither lets time act: the shuffles that they need and a transition are more than an instruction has compute
units for.
"""

from __future__ import annotations

import numpy as np

from psyche_py.coordinator import tick
from psyche_py.coordinator.disputes import add_vote, find_slot
from psyche_py.coordinator.duties import Duty, compute_duties, is_tie_breaker
from psyche_py.coordinator.errors import CoordinatorError, ErrorCode
from psyche_py.coordinator.events import find_client_entry, finish, is_client, refuse_unless
from psyche_py.coordinator.layout import (
    ACTIVE,
    HALTED,
    NUM_STORED_ROUNDS,
    ROUND_STATES,
    ClientState,
    DisputeState,
    copy_record,
    set_bytes,
)
from psyche_py.coordinator.reasons import REASONS
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.views import Dispute

MAX_ROUNDS_LATE = 2
"""A verdict may come in the verifier's round or in one of the two after it."""
ROUNDS_TO_JUDGE = 1 + MAX_ROUNDS_LATE + NUM_STORED_ROUNDS
"""A result of round h is accused in round h + 1 + MAX_ROUNDS_LATE at the latest, and judged from the round
after on, as long as that one is in the ring: up to round h + 7."""
VERDICT_STATES = ROUND_STATES
VOTE_STATES = ACTIVE


def is_in_time(account: CoordinatorAccount, height: int) -> bool:
    """Whether a result of the round of ``height`` can still be accused."""
    return height + 1 >= account.current_round.height - MAX_ROUNDS_LATE


def process_verdict(
    account: CoordinatorAccount,
    *,
    signer: bytes,
    index: int,
    trainer: int,
    height: int,
    reason: int,
    evidence_hash: bytes,
) -> CoordinatorAccount:
    """Client ``index``, the signer's own, accuses ``trainer`` for its result of the round of ``height``.

    Raises SignerNotAClient, Halted, InvalidRunState, ClientNotInEpoch, InvalidInstructionData (reason),
    NotTheVerifier, DuplicateVerdict, DisputesFull.
    """
    record = copy_record(account.record)
    entry = find_client_entry(record, signer)
    state = tick.get_state(record)
    refuse_unless(state not in HALTED, ErrorCode.Halted)
    refuse_unless(state in VERDICT_STATES, ErrorCode.InvalidRunState)
    refuse_unless(is_client(record, index, entry, is_healthy=True), ErrorCode.ClientNotInEpoch)
    refuse_unless(reason in REASONS, ErrorCode.InvalidInstructionData)
    is_drawn = is_in_time(account, height) and Duty(index, trainer) in compute_duties(account, height + 1)
    refuse_unless(is_drawn, ErrorCode.NotTheVerifier)
    is_new = not any(_is_known(dispute, trainer, height, evidence_hash) for dispute in account.disputes)
    is_in = record["epoch_state"]["clients"]["state"][trainer] != ClientState.Ejected
    refuse_unless(is_new and is_in, ErrorCode.DuplicateVerdict)
    slot = find_slot(record)
    if slot is None:
        raise CoordinatorError(ErrorCode.DisputesFull)
    record["disputes"][slot] = np.zeros((), record["disputes"].dtype)
    d = record["disputes"][slot]
    set_bytes(d, "evidence_hash", evidence_hash)
    d["height"], d["accuser"], d["trainer"], d["reason"] = height, index, trainer, reason
    d["state"] = DisputeState.Open
    return finish(account, record)


def _is_known(dispute: Dispute, trainer: int, height: int, evidence_hash: bytes) -> bool:
    """About the same result, or by the same evidence: votes name the evidence, and with one piece for two
    disputes those about one would count for the other."""
    is_same_result = (dispute.trainer, dispute.height) == (trainer, height)
    return is_same_result or dispute.evidence_hash == evidence_hash


def process_vote(
    account: CoordinatorAccount,
    *,
    signer: bytes,
    index: int,
    evidence_hash: bytes,
    is_guilty: bool,
) -> CoordinatorAccount:
    """Client ``index``, the signer's own and one of the dispute's tie-breakers, votes.

    Raises SignerNotAClient, Halted, InvalidRunState, ClientNotInEpoch, NoSuchDispute, VotingOver,
    NotATieBreaker, DuplicateVote.
    """
    record = copy_record(account.record)
    entry = find_client_entry(record, signer)
    state = tick.get_state(record)
    refuse_unless(state not in HALTED, ErrorCode.Halted)
    refuse_unless(state in VOTE_STATES, ErrorCode.InvalidRunState)
    refuse_unless(is_client(record, index, entry, is_healthy=True), ErrorCode.ClientNotInEpoch)
    dispute = account.find_open_dispute(evidence_hash)
    if dispute is None:
        raise CoordinatorError(ErrorCode.NoSuchDispute)
    is_judged = dispute.judge_height != 0 and account.get_round_at(dispute.judge_height) is not None
    refuse_unless(is_judged, ErrorCode.VotingOver)
    refuse_unless(is_tie_breaker(account, dispute, index), ErrorCode.NotATieBreaker)
    refuse_unless(all(voter != index for voter, _ in dispute.votes), ErrorCode.DuplicateVote)
    add_vote(record, dispute.slot, index, is_guilty)
    return finish(account, record)
