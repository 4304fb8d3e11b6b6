"""Whom a witness reports as silent, by what the witnesses of the round before have seen. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import ROUND_STATES, ClientState
from psyche_py.coordinator.witness import is_client_unhealthy

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount

NUM_HEALTH_CHECKERS = 3
"""Only so many witnesses report a silent client; one transaction is enough, the others cover its loss."""


def find_unseen(account: CoordinatorAccount, own_index: int) -> list[int]:
    """Epoch clients that the last witnesses did not see and that client ``own_index`` is to report.

    Where they saw nobody the links are to blame, and not the clients: to report them all would end the epoch.
    """
    current, clients = account.current_round, account.epoch_clients
    if account.run_state not in ROUND_STATES:
        return []
    if own_index not in current.elected_indices[:NUM_HEALTH_CHECKERS]:
        return []
    present = [index for index in current.healthy_indices if clients[index].state is ClientState.Healthy]
    unseen = [index for index in present if is_client_unhealthy(account, index)]
    return [index for index in unseen if index != own_index] if unseen != present else []
