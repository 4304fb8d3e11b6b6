"""Where a simulated client finds an epoch's model, in the order of ``client.sharing``, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from psyche_py.client.machine import WANTS_MODEL
from psyche_py.client.sharing import LAST_RESORT_SECONDS, RETRY_SECONDS

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.client import SimClient

DISK_SECONDS = 1.0
MANIFEST_SECONDS = 0.2


class ModelSearch:
    """Asks until the model is found or the epoch wants the client no more; then the machine is told."""

    def __init__(self, client: SimClient, donors: tuple[bytes, ...], account: CoordinatorAccount) -> None:
        self._client = client
        self._donors = donors
        self._start = account.start_timestamp
        self._began = client.world.clock.now

    def go_on(self) -> None:
        """Look once, and again later."""
        client = self._client
        account = client.machine.account
        if account is None or account.start_timestamp != self._start or account.run_state not in WANTS_MODEL:
            client.machine.busy = ""
            return
        wanted = account.model_digest
        own = self._find_own(wanted) if wanted is not None else None
        if own is None and not self._take_from_peers(wanted, account):
            own = self._find_last_resort(wanted, account)
            if own is None:
                client.later(RETRY_SECONDS, self.go_on)
        if own is not None:
            client.end_loading(own, DISK_SECONDS)

    def _find_own(self, wanted: bytes) -> bytes | None:
        """In memory or on disk."""
        here = (self._client.weights, *reversed(self._client.disk))
        return next((weights for weights in here if weights.startswith(wanted)), None)

    def _get_offers(self, account: CoordinatorAccount) -> Iterator[tuple[bytes, int]]:
        """Models that peers have for the epoch, and who has them."""
        for key in self._donors:
            peer = self._client.world.get_client(key)
            if peer is not None and peer.offer is not None and self._client.can_reach(peer):
                epoch, weights = peer.offer
                if epoch == account.epoch:
                    yield weights, peer.number

    def _take_from_peers(self, wanted: bytes | None, account: CoordinatorAccount) -> bool:
        offers = [offer for offer in self._get_offers(account) if offer[0].startswith(wanted or b"")]
        if not offers:
            return False
        votes = Counter(weights for weights, _ in offers)
        weights = max(votes, key=lambda weights: (votes[weights], weights))
        holders = [number for offered, number in offers if offered == weights]
        world, own = self._client.world, self._client.number
        share = world.settings.model_bytes // len(holders)
        seconds = max(world.wires.transfer(holder, own, share, "model") for holder in holders)
        self._client.end_loading(weights, MANIFEST_SECONDS + seconds)
        return True

    def _find_last_resort(self, wanted: bytes | None, account: CoordinatorAccount) -> bytes | None:
        """The run's checkpoint, if it is the model; where none is attested our own of the one before."""
        world = self._client.world
        if self._donors and world.clock.now - self._began < LAST_RESORT_SECONDS:
            return None
        posted = world.checkpoints.get(account.model.checkpoint_repo)
        if posted is not None and wanted is not None and posted.startswith(wanted):
            return posted
        older = account.older_digests
        return self._find_own(older[0]) if wanted is None and older else None
