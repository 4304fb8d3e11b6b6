"""What the mesh should know about an announcement before it passes it on.

The mesh knows nothing of runs. `make_examiner` tells it which bodies contradict each other, and which no
honest peer says or repeats: another run's, or one so far from now that no slow cluster explains it. What is
merely early or late is left to the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import ROUND_STATES
from psyche_py.p2p.errors import MessageError
from psyche_py.p2p.message import Finished, TrainingResult, decode_message
from psyche_py.p2p.port import Examination, Examine

if TYPE_CHECKING:
    from psyche_py.client.session import Identity
    from psyche_py.coordinator.state import CoordinatorAccount

MAX_LAG_EPOCHS = 1
MAX_LAG_ROUNDS = 1_024
"""Longer than a cluster that answers nobody for some minutes; within it our own view may be the old one."""


def make_examiner(identity: Identity, get_account: Callable[[], CoordinatorAccount | None]) -> Examine:
    """Judges bodies by the account as it stands at that time; see `port.Network.set_examiner`."""

    def examine(body: bytes) -> Examination:
        try:
            message = decode_message(body)
        except MessageError:
            return Examination(fault="message_malformed")
        header = message.header
        if (header.program_id, header.run_id) != (identity.program_id, identity.run_id):
            return Examination(fault="message_other_run")
        account = get_account()
        if account is not None and (fault := _find_fault(account, header.epoch, header.height)):
            return Examination(fault=fault)
        if not isinstance(message, TrainingResult | Finished):
            return Examination()
        return Examination((type(message).__name__, header.epoch, header.height, header.sender_index))

    return examine


def _find_fault(account: CoordinatorAccount, epoch: int, height: int) -> str:
    """Whether it is of a time that is not even near; empty when it may be heard."""
    # outside of its rounds the account still shows the last one of the epoch before
    is_comparable = epoch == account.epoch and account.run_state in ROUND_STATES
    rounds = height - account.current_round.height if is_comparable else 0
    if epoch < account.epoch - MAX_LAG_EPOCHS or rounds < -MAX_LAG_ROUNDS:
        return "frame_past"
    if epoch > account.epoch + MAX_LAG_EPOCHS or rounds > MAX_LAG_ROUNDS:
        return "frame_future"
    return ""


def compute_mesh_seed(account: CoordinatorAccount, identity: Identity) -> bytes:
    """32 bytes that all clients of an epoch compute alike and nobody knows long before it starts."""
    start = account.start_timestamp.to_bytes(8, "little") + account.epoch.to_bytes(4, "little")
    return hashlib.sha256(b"psyche-py/mesh/1" + identity.program_id + identity.run_id + start).digest()
