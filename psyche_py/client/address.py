"""Whether peers are told where we are: a client that is started again may listen elsewhere than before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import RunState

if TYPE_CHECKING:
    from psyche_py.client.session import Identity
    from psyche_py.coordinator.state import CoordinatorAccount


class AddressBookEntry:
    """Our line in the account. A new join would write it, but who has joined does not join again."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._was_right = False

    def is_wrong(self, account: CoordinatorAccount) -> bool:
        """Peers dial another address than ours, and we have not corrected it yet.

        Once is enough: who writes over it afterwards is another process with our wallet and key, and the two
        would correct each other for ever. Nobody dials us when the wallet has left, or when another process
        of it has joined with another mesh key.
        """
        if self._was_right or account.run_state is RunState.Finished:
            return False
        own = self._identity
        entry = next((entry for entry in account.present if entry.signer == own.signer), None)
        if entry is None or entry.p2p_key != own.p2p_key:
            return False
        self._was_right = entry.address_hint == own.address_hint
        return not self._was_right
