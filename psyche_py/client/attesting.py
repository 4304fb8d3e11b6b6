"""What we attest at the end of a round, when, and whether it then stands in the account. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import ClientState, RunState

if TYPE_CHECKING:
    from psyche_py.client.rounds import RoundRecord
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Round

EMPTY_ROUND_PATIENCE_SECONDS = 30
"""A round that nobody has attested is given so much longer: its end ends the epoch, and no quorum has said
which model the next one starts from."""


def owes_witness(account: CoordinatorAccount, index: int) -> bool:
    """Epoch client ``index`` is elected in the current round and has not attested, by the account."""
    current = account.current_round
    is_elected = bool(current.elected >> index & 1)
    return is_elected and all(witness.index != index for witness in current.witnesses)


def get_patience(account: CoordinatorAccount) -> int:
    """Seconds for which a tick that would end the round without any witness waits for a late one."""
    is_empty = account.run_state is RunState.RoundWitness and not account.current_round.num_witnesses
    return EMPTY_ROUND_PATIENCE_SECONDS if is_empty else 0


class WitnessWatch:
    """Notices that an attestation that had landed is gone: a fork of the chain took it back."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._landed = -1

    def is_undone(self, account: CoordinatorAccount) -> bool:
        """Whether this version of the account lacks what an earlier one showed of the same round."""
        height = account.current_round.height
        if not account.current_round.elected >> self._index & 1:
            return False
        if not owes_witness(account, self._index):
            self._landed = height
        elif self._landed == height:
            self._landed = -1
            return True
        return False


def is_expecting(account: CoordinatorAccount, record: RoundRecord) -> bool:
    """A result may still come: it was announced, or its trainer is still part of the epoch."""
    clients = account.epoch_clients
    return any(
        clients[index].state is ClientState.Healthy or not record.is_given_up(index)
        for index in record.awaited
    )


def is_anybody_busy(
    account: CoordinatorAccount, record: RoundRecord, previous: RoundRecord | None, *, is_verifying: bool
) -> bool:
    """Somebody has not finished the round of ``record`` whose word an attestation has to wait for.

    Not that of the elected witnesses: each attests when it has finished, and the round does not end before
    all of them have, so the chain waits for them, and knows a hop sooner than we. Where a run verifies they
    are waited for too: there a result counts as late that is heard of when the next round has begun, so no
    round may end before everybody has heard of all. Whoever left or was dropped is not waited for.
    """
    clients, elected = account.epoch_clients, 0 if is_verifying else account.current_round.elected
    if any(
        not elected >> index & 1 and clients[index].state is ClientState.Healthy
        for index in record.unfinished
    ):
        return True
    if previous is None or not previous.assignment:
        return False
    # who had no samples in the round that we attest took part by its word alone; who has given it for the
    # round after that has none to give any more
    silent = previous.unfinished - previous.assignment.keys() - record.finished.keys()
    return any(clients[index].state is ClientState.Healthy for index in silent)


def make_witness(
    current: Round,
    record: RoundRecord,
    previous: RoundRecord | None,
    index: int,
    measured: tuple[float, float],
) -> act.SendWitness:
    """What epoch client ``index`` attests in ``current``, of the results of ``previous``.

    ``measured`` are its loss and tokens per second.
    """
    attested = previous if previous is not None and previous.assignment else None
    seed = current.random_seed
    if attested is not None:
        attested.note_attested()
    return act.SendWitness(
        height=current.height,
        step=current.step,
        index=index,
        participants=attested.compute_participants() if attested else (0,) * 4,
        broadcast_bloom=attested.compute_broadcast_bloom(seed) if attested else (0,) * 16,
        broadcast_merkle=attested.compute_broadcast_merkle() if attested else bytes(32),
        state_digest=record.finished.get(index, bytes(32)),
        loss=measured[0],
        tokens_per_second=measured[1],
    )
