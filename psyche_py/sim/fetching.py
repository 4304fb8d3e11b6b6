"""Payloads by hash and questions to peers, as ``p2p.transfer`` and the runtime do them, in virtual time.

Who is served and who is referred to whom is decided by the nodes' own upload desks. A chain of referrals is
walked at once, and the time that its questions take is added up; a question to a peer that is itself fetching
waits there. A transfer that breaks off begins anew elsewhere (the mesh would go on where it broke off), so
the bytes counted are an upper bound when peers die.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.client.runtime import ASK_DEADLINE_SECONDS, PAYLOAD_DEADLINE_SECONDS
from psyche_py.p2p.transfer import FIRST_PAUSE_SECONDS, HEDGE_SECONDS, MAX_PAUSE_SECONDS
from psyche_py.p2p.uploads import ARRIVAL_SECONDS

if TYPE_CHECKING:
    from psyche_py.sim.client import SimClient

GIVE_UP_SECONDS = 0.5
NOT_FOUND_SECONDS = 0.5


class Ask:
    """A question of ``fetch`` to ``holder``, there at ``ready_at``; over once it is ``closed``."""

    __slots__ = ("closed", "fetch", "holder", "is_urgent", "ready_at", "sent_at")

    def __init__(self, fetch: PayloadFetch, holder: SimClient, sent_at: float, ready_at: float) -> None:
        self.fetch = fetch
        self.holder = holder
        self.sent_at = sent_at
        self.ready_at = ready_at
        self.is_urgent = fetch.is_urgent
        self.closed = False


class PayloadFetch:
    """One payload on its way to one client; see ``p2p.transfer.BlobFetch``, whose order of things this is."""

    def __init__(self, client: SimClient, action: act.FetchPayload) -> None:
        self.client = client
        self.digest = action.digest
        self.is_urgent = False
        self._action = action
        self._begun = client.world.clock.now
        self._pause = FIRST_PAUSE_SECONDS
        self._at_fault: set[bytes] = set()
        self._asked: set[bytes] = set()
        self._referred: deque[bytes] = deque()
        self._cursor = 0
        self._open: list[Ask] = []
        self._is_transferring = False
        self._was_referred = False
        self._is_over = False
        self._is_pausing = False

    def start(self) -> None:
        """Begin; the client hears PayloadFetched or FetchGaveUp in the end."""
        client = self.client
        if client.has(self.digest):
            self._arrive()
            return
        client.fetches[self.digest] = self
        self._try_holders()
        self._watch_later()

    def _try_holders(self) -> None:
        """Ask every holder once, and every peer that we are referred to."""
        self._is_pausing = False
        if self._is_over:
            return
        self._cursor = 0
        self._asked = set(self._at_fault)
        self._ask_next(self.client.world.clock.now)

    def _ask_next(self, sent_at: float) -> None:
        world, client = self.client.world, self.client
        while (key := self._pop_holder()) is not None:
            if key in self._asked:
                continue
            self._asked.add(key)
            holder = world.get_client(key)
            if holder is None or holder is client or not world.wires.is_connected(client.number, holder.number):
                continue
            arrival = sent_at + world.wires.get_latency(client.number, holder.number)
            ask = Ask(self, holder, sent_at, arrival)
            self._open.append(ask)
            holder.take_question(ask)
            return
        if not (self._open or self._is_transferring or self._is_pausing):
            self._end_pass()

    def _pop_holder(self) -> bytes | None:
        if self._referred:
            return self._referred.popleft()
        holders = self._action.holders
        if self._cursor >= len(holders):
            return None
        self._cursor += 1
        return holders[self._cursor - 1]

    def _end_pass(self) -> None:
        """Nobody served us: at once and urgently where we were sent on, else after a pause."""
        self.is_urgent, self._was_referred = self._was_referred, False
        pause = FIRST_PAUSE_SECONDS if self.is_urgent else self._pause
        if not self.is_urgent:
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        self._is_pausing = True
        self.client.later(pause, self._try_holders)

    def _watch_later(self) -> None:
        self.client.later(HEDGE_SECONDS, self._watch)

    def _watch(self) -> None:
        """A holder that makes no progress gets company; one that has not what we ask for is waited for."""
        now, client = self.client.world.clock.now, self.client
        if self._is_over:
            return
        if now - self._begun >= PAYLOAD_DEADLINE_SECONDS:
            self._close()
            client.feed_later(GIVE_UP_SECONDS, act.FetchGaveUp(self._action.height, self.digest))
            return
        for ask in [a for a in self._open if now - a.ready_at >= ARRIVAL_SECONDS]:
            self._end_ask(ask)
        if not self._is_transferring:
            self._ask_next(now)
        self._watch_later()

    # ---- answers ------------------------------------------------------------------------------------

    def hear_nothing(self, ask: Ask) -> None:
        """The holder does not have it, or its process has ended."""
        if not ask.closed:
            self._end_ask(ask)
            self._ask_next(max(self.client.world.clock.now, ask.ready_at))

    def hear_referral(self, ask: Ask, others: tuple[bytes, ...]) -> None:
        """The holder has given enough copies away."""
        is_newest = bool(self._open) and ask is self._open[-1]
        self._end_ask(ask)
        self._was_referred = True
        self._referred.extendleft(reversed(others))
        if is_newest:
            latency = self.client.world.wires.get_latency(self.client.number, ask.holder.number)
            self._ask_next(max(self.client.world.clock.now, ask.ready_at) + latency)

    def begin_transfer(self, ask: Ask) -> None:
        """The holder serves us: those that have not begun are left."""
        for other in self._open:
            other.closed = True
        self._open.clear()
        self._is_transferring = True
        client, holder, wires = self.client, ask.holder, self.client.world.wires
        kind = "own" if holder.p2p_key == self._action.holders[0] else "relayed"
        size = client.world.get_payload_bytes(self.digest)
        seconds = wires.transfer(holder.number, client.number, size, kind, ask.ready_at)
        client.later(seconds, self._end_transfer, holder, holder.generation)

    def _end_ask(self, ask: Ask) -> None:
        ask.closed = True
        self._open.remove(ask)

    def _end_transfer(self, holder: SimClient, generation: int) -> None:
        self._is_transferring = False
        if self._is_over:
            return
        client, now = self.client, self.client.world.clock.now
        if not client.can_reach(holder) or holder.generation != generation:
            holder.node.revoke(self.digest, client.p2p_key)
            client.later(HEDGE_SECONDS, self._ask_next, now + HEDGE_SECONDS)
        elif holder.answer(self.digest) != self.digest:
            self._at_fault.add(holder.p2p_key)
            self._ask_next(now)
        else:
            self._arrive()

    def _arrive(self) -> None:
        client = self.client
        is_valid = self.digest not in client.world.malformed
        self._close()
        if is_valid:
            client.keep(self.digest)
        client.answer_waiting(self.digest)
        client.feed(act.PayloadFetched(self._action.height, self.digest, is_valid))

    def _close(self) -> None:
        self._is_over = True
        for ask in self._open:
            ask.closed = True
        self._open.clear()
        self.client.fetches.pop(self.digest, None)


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
