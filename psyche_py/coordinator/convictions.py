"""Which dispute ejected a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import DisputeState
from psyche_py.coordinator.reasons import REFUSAL_REASONS

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Dispute


def find_conviction(account: CoordinatorAccount, index: int) -> Dispute | None:
    """The dispute that ejected epoch client ``index``: as the accused, or as a false accuser.

    None when none did, or when the account's places have been taken by later ones.
    """
    for dispute in account.disputes:
        if get_convicted(dispute) == index:
            return dispute
    return None


def get_convicted(dispute: Dispute) -> int | None:
    """The epoch client that a dispute ejected; None while it is open, and when it is undecided.

    None also when a refusal was answered after all: that counts against both parties and ejects neither.
    """
    if dispute.state is DisputeState.Guilty:
        return dispute.trainer
    is_false = dispute.state is DisputeState.NotGuilty and dispute.reason not in REFUSAL_REASONS
    return dispute.accuser if is_false else None
