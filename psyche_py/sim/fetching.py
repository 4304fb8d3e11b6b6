"""Payloads by hash and questions to peers, as ``p2p.transfer`` and the runtime do them, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.client.exchange import ASK_DEADLINE_SECONDS, PAYLOAD_DEADLINE_SECONDS
from psyche_py.p2p.transfer import FIRST_PAUSE_SECONDS, HEDGE_SECONDS, MAX_PAUSE_SECONDS

if TYPE_CHECKING:
    from psyche_py.sim.client import SimClient

GIVE_UP_SECONDS = 0.5
NOT_FOUND_SECONDS = 0.5


class PayloadFetch:
    """Tries holders in order until one has served the bytes that the digest names, or time is over.

    A holder whose uplink is taken for longer than a hedge waits is passed over for one that is free.
    """

    def __init__(self, client: SimClient, action: act.FetchPayload) -> None:
        self._client = client
        self._action = action
        self._deadline = client.world.clock.now + PAYLOAD_DEADLINE_SECONDS
        self._pause = FIRST_PAUSE_SECONDS
        self._at_fault: set[int] = set()

    def try_holders(self) -> None:
        """Begin, or begin anew, a round through the holders."""
        client, digest = self._client, self._action.digest
        world = client.world
        if digest in client.store:
            self._arrive(digest)
            return
        if world.clock.now >= self._deadline:
            client.feed_later(GIVE_UP_SECONDS, act.FetchGaveUp(self._action.height, digest))
            return
        holder, asked = self._choose_holder()
        if holder is None:
            client.later(self._pause, self.try_holders)
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
            return
        num_bytes = world.settings.payload_bytes
        is_own = holder.p2p_key == self._action.holders[0]
        seconds = world.wires.transfer(
            holder.number, client.number, num_bytes, "own" if is_own else "relayed"
        )
        asking = asked * 2 * world.wires.get_latency(holder.number, client.number)
        client.later(asking + seconds, self._end_transfer, holder, holder.generation)

    def _choose_holder(self) -> tuple[SimClient | None, int]:
        """Who serves us, and how many were asked in vain before."""
        client, best, asked = self._client, None, 0
        world, digest = client.world, self._action.digest
        sender = world.get_client(self._action.holders[0])
        if sender is not None and world.num_holders[digest] == 1 and digest in sender.store:
            is_possible = sender.number not in self._at_fault and client.can_reach(sender)
            return (sender if is_possible else None), 0
        shortest = float("inf")
        for key in self._action.holders:
            peer = world.get_client(key)
            if peer is None or peer.number in self._at_fault or not client.can_reach(peer):
                continue
            if digest not in peer.store:
                asked += 1
                continue
            wait = world.wires.get_wait(peer.number)
            if wait <= HEDGE_SECONDS:
                return peer, asked
            if wait < shortest:
                best, shortest = peer, wait
        return best, asked

    def _end_transfer(self, holder: SimClient, generation: int) -> None:
        client, digest = self._client, self._action.digest
        if not client.can_reach(holder) or holder.generation != generation:
            client.later(HEDGE_SECONDS, self.try_holders)
        elif client.world.clock.now < holder.wrong.tampers_until:
            self._at_fault.add(holder.number)
            self.try_holders()
        else:
            self._arrive(digest)

    def _arrive(self, digest: bytes) -> None:
        client = self._client
        is_valid = digest not in client.world.malformed
        if is_valid:
            client.keep(digest)
        client.feed(act.PayloadFetched(self._action.height, digest, is_valid))


def ask_candidates(client: SimClient, action: act.AskCandidates) -> None:
    """Ask every client of the epoch; one that does not answer is waited for until the deadline."""
    world, account = client.world, client.machine.account
    assert account is not None
    found: set[bytes] = set()
    seconds = 0.0
    for epoch_client in account.epoch_clients:
        peer = world.get_client(epoch_client.p2p_key)
        if peer is None or peer is client or not world.wires.is_connected(client.number, peer.number):
            continue
        if client.can_reach(peer):
            found.update(peer.machine.get_candidates(action.epoch, action.height, action.index))
            seconds = max(seconds, 2 * world.wires.get_latency(client.number, peer.number))
        else:
            seconds = ASK_DEADLINE_SECONDS
    heard = act.CandidatesHeard(action.height, action.index, tuple(sorted(found)))
    client.feed_later(seconds + (0.0 if found else NOT_FOUND_SECONDS), heard)
