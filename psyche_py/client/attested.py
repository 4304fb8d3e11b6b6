"""Which model an epoch starts from, by what the chain says. Pure.

The witnesses of a round report the digest of their weights with that round's results applied. Those of the
last round of an epoch so name the model that the next epoch starts from, and the account shows them until
the next warm-up begins. A client that was not there to see it then has no attested digest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import RunState
from psyche_py.coordinator.witness import get_quorum

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount

_ENDED = (RunState.WaitingForMembers, RunState.Paused, RunState.Finished)
_UNKNOWN = bytes(32)


def compute_attested_model(account: CoordinatorAccount) -> tuple[int, bytes] | None:
    """(epoch, digest): the model with which ``epoch`` starts, as a quorum of the last witnesses attested it.

    None while an epoch runs, and when no quorum agreed.
    """
    if account.run_state is RunState.Cooldown:
        epoch = account.epoch + 1
    elif account.run_state in _ENDED:
        epoch = account.epoch
    else:
        return None
    last = account.current_round
    votes = Counter(witness.state_digest for witness in last.witnesses)
    del votes[_UNKNOWN]  # a witness that had not applied everything yet
    if not votes:
        return None
    digest, count = votes.most_common(1)[0]
    return (epoch, digest) if count >= get_quorum(account, last) else None


class AttestedModels:
    """Remembers what the account showed between two epochs."""

    def __init__(self) -> None:
        self._epoch = -1
        self._digest = _UNKNOWN

    def see(self, account: CoordinatorAccount) -> None:
        """A newer version of the run's account."""
        attested = compute_attested_model(account)
        if attested is not None:
            self._epoch, self._digest = attested

    def get(self, epoch: int) -> bytes | None:
        """The digest (32 B) of the model that ``epoch`` starts from, if we saw it attested."""
        return self._digest if epoch == self._epoch else None
