"""A client's way to the chain: transactions out, versions of the account in, and what an RPC endpoint does.

It may be away, answer from behind, allow one request in a while, or hand out blockhashes of a fork that the
cluster does not know. What the sender does about it is what ``client.runtime`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.client.transactions import REFUSED_RETRY_SECONDS, get_key, is_tried_again
from psyche_py.sim.transactions import make_call

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.client import SimClient

CHAIN_RETRY_SECONDS = 1.0
EXPIRY_SECONDS = 60.0
"""150 slots: so long a sender waits for a transaction whose blockhash nobody knows."""

BLOCKHASH_SECONDS = 10.0
"""As ``chain.rpc.backend.CLUSTER_OPTIONS``, which this must not import: an older one is not used."""


class Endpoint:
    """See the module. Each trouble lasts until the virtual time given."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self.gone_until = 0.0
        self.expires_until = 0.0
        self.lags_until = 0.0
        self.lag_seconds = 0.0
        self.limited_until = 0.0
        self.limit_seconds = 0.0
        self._may_send_at = 0.0
        self._may_read_at = 0.0
        self._blockhash_at = -1e9

    @property
    def _now(self) -> float:
        return self._client.world.clock.now

    @property
    def _latency(self) -> float:
        return self._client.world.wires.ports[self._client.number].link.latency_seconds

    # ---- in -----------------------------------------------------------------------------------------

    def see(self, account: CoordinatorAccount, slot: int) -> None:
        """A version of the account arrives, now or later."""
        client, now = self._client, self._now
        if now < self.gone_until:
            return
        if now < self.lags_until:
            client.feed_later(self.lag_seconds, act.AccountChanged(account, slot))
        elif now < self.limited_until:
            if now >= self._may_read_at:
                self._may_read_at = now + self.limit_seconds
                client.later(self.limit_seconds, self._read)
        else:
            client.feed(act.AccountChanged(account, slot))

    def _read(self) -> None:
        """What is read at last is the newest version."""
        if self._now >= self.gone_until:
            chain = self._client.world.chain
            self._client.feed(act.AccountChanged(chain.account, chain.slot))

    # ---- out ----------------------------------------------------------------------------------------

    def send(self, action: act.Action) -> None:
        """Send a transaction; the machine hears SendFailed when it may be tried again."""
        client, world, key = self._client, self._client.world, get_key(action)
        now = self._now
        if now < self.gone_until or (now < self.limited_until and now < self._may_send_at):
            client.feed_later(CHAIN_RETRY_SECONDS, act.SendFailed(key))
            return
        if now < self.expires_until:
            client.feed_later(EXPIRY_SECONDS + CHAIN_RETRY_SECONDS, act.SendFailed(key))
            return
        self._may_send_at = now + self.limit_seconds
        process, arguments = make_call(client, action)
        timeline = world.timeline
        if isinstance(action, act.SendWitness):
            timeline.take_witness(client.number, action.height, is_submitted=False)

        def answer(error: str | None) -> None:
            client.later(self._latency, self._hear, key, error)

        def submit() -> None:
            if isinstance(action, act.SendWitness):
                timeline.take_witness(client.number, action.height, is_submitted=True)
            world.chain.submit(process, arguments, answer)

        # a transaction lands even when its sender dies meanwhile
        world.clock.after(self._get_blockhash() + self._latency, submit)

    def prepare(self) -> None:
        """A transaction is due soon: have a blockhash by then."""
        if self._now >= self.gone_until:
            self._get_blockhash(BLOCKHASH_SECONDS / 2)

    def _get_blockhash(self, max_age_seconds: float = BLOCKHASH_SECONDS) -> float:
        """Seconds until there is one that is young enough."""
        now = self._now
        if now - self._blockhash_at > max_age_seconds:
            self._blockhash_at = now + 2 * self._latency
        return max(self._blockhash_at - now, 0.0)

    def _hear(self, key: str, error: str | None) -> None:
        if error is not None:
            self._client.world.ledger.take_refusal(key, error)
        if error is not None and is_tried_again(key, error):
            self._client.feed_later(REFUSED_RETRY_SECONDS, act.SendFailed(key))
