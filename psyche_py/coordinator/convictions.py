"""Which dispute an ejected client lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import DisputeState

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Dispute


def find_conviction(account: CoordinatorAccount, index: int) -> Dispute | None:
    """The dispute that epoch client ``index`` lost: as the accused, or as a false accuser.

    None when it lost none, or when the account's places have been taken by later ones.
    """
    for dispute in account.disputes:
        if get_loser(dispute) == index:
            return dispute
    return None


def get_loser(dispute: Dispute) -> int | None:
    """The epoch client that the tie-breakers found against; None while open and when undecided."""
    if dispute.state is DisputeState.Guilty:
        return dispute.trainer
    return dispute.accuser if dispute.state is DisputeState.NotGuilty else None
