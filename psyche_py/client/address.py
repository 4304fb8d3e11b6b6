"""Whether peers are told where we are: a client that is started again may listen elsewhere than before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import RunState

if TYPE_CHECKING:
    from psyche_py.client.session import Identity
    from psyche_py.coordinator.state import CoordinatorAccount


def is_sought_elsewhere(account: CoordinatorAccount, identity: Identity) -> bool:
    """Peers dial another address than ours. A new join would say it, but who has joined does not join again.

    Not when nobody dials us: the wallet has left, or another process of it has joined with another mesh key.
    """
    if account.run_state is RunState.Finished:
        return False
    entry = next((entry for entry in account.present if entry.signer == identity.signer), None)
    is_dialed = entry is not None and entry.p2p_key == identity.p2p_key
    return is_dialed and entry is not None and entry.address_hint != identity.address_hint
