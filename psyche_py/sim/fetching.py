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
from psyche_py.client.exchange import (
    ASK_DEADLINE_SECONDS,
    ASKED_AT_ONCE,
    MAX_PARTIAL_ANSWERS,
    PAYLOAD_DEADLINE_SECONDS,
)
from psyche_py.client.openings import decode_opening
from psyche_py.p2p.transfer import FIRST_PAUSE_SECONDS, HEDGE_SECONDS, MAX_PAUSE_SECONDS
from psyche_py.p2p.uploads import ARRIVAL_SECONDS

if TYPE_CHECKING:
    from psyche_py.sim.client import SimClient

GIVE_UP_SECONDS = 0.5
NOT_FOUND_SECONDS = 0.5


class Ask:
    """A question of ``fetch`` to ``holder``, there at ``ready_at``; over once it is ``closed``."""

    __slots__ = ("closed", "fetch", "holder", "is_urgent", "ready_at")

    def __init__(self, fetch: PayloadFetch, holder: SimClient, ready_at: float) -> None:
        self.fetch = fetch
        self.holder = holder
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
        if self.digest in client.store:
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
        holder = self._next_holder()
        if holder is not None:
            ask = Ask(self, holder, sent_at + self._get_latency(holder))
            self._open.append(ask)
            put_question(ask)
        elif not (self._open or self._is_transferring or self._is_pausing):
            self._end_pass()

    def _next_holder(self) -> SimClient | None:
        """The next peer in order that we are connected to and have not asked."""
        client, world, asked = self.client, self.client.world, self._asked
        while (key := self._pop_holder()) is not None:
            if key in asked:
                continue
            asked.add(key)
            holder = world.get_client(key)
            if holder is not None and world.wires.is_connected(client.number, holder.number):
                return holder
        return None

    def _get_latency(self, holder: SimClient) -> float:
        return self.client.world.wires.get_latency(self.client.number, holder.number)

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
            self._answer_waiting()
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

    def follow(self, ask: Ask, others: tuple[bytes, ...]) -> bool:
        """The holder sends us to ``others``. Whether ``ask`` goes on to the next of them."""
        self._was_referred = True
        self._referred.extendleft(reversed(others))
        if ask is not self._open[-1]:
            self._end_ask(ask)  # a later question is open: when that one ends, these are next
            return False
        ask.ready_at = max(self.client.world.clock.now, ask.ready_at) + self._get_latency(ask.holder)
        holder = self._next_holder()
        if holder is None:
            self.hear_nothing(ask)
            return False
        ask.holder = holder
        ask.ready_at += self._get_latency(holder)
        return True

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
        self._answer_waiting()
        client.feed(act.PayloadFetched(self._action.height, self.digest, is_valid))

    def _answer_waiting(self) -> None:
        """It has come, or never will: those who wait for it here are served, sent on or refused."""
        for ask in self.client.waiting.pop(self.digest, ()):
            put_question(ask)

    def _close(self) -> None:
        self._is_over = True
        for ask in self._open:
            ask.closed = True
        self._open.clear()
        self.client.fetches.pop(self.digest, None)  # before those who wait here are answered


def put_question(ask: Ask) -> None:
    """Ask a holder, and those it refers us to, until one serves us, lets us wait or has it not."""
    fetch, digest = ask.fetch, ask.fetch.digest
    clock, key = fetch.client.world.clock, fetch.client.p2p_key
    while not ask.closed:
        holder = ask.holder
        if clock.now < holder.frozen_until:
            clock.at(holder.frozen_until, put_question, ask)
            return
        if digest not in holder.store:
            if digest in holder.fetches:
                holder.waiting.setdefault(digest, []).append(ask)
            else:
                refuse(ask)
            return
        others = holder.node.admit(digest, key, is_urgent=ask.is_urgent)
        if not others:
            if holder.answer(digest) is None:
                holder.node.revoke(digest, key)
                refuse(ask)
            else:
                fetch.begin_transfer(ask)
            return
        if not fetch.follow(ask, others):
            return


def refuse(ask: Ask) -> None:
    """The holder has it not, or is gone: the asker hears it a little later."""
    client, holder = ask.fetch.client, ask.holder
    round_trip = 2 * client.world.wires.get_latency(client.number, holder.number)
    client.later(round_trip, ask.fetch.hear_nothing, ask)


def ask_opening(client: SimClient, action: act.AskOpening) -> None:
    """Ask the holders in order until one knows; one that does not answer is waited for until the deadline."""
    world = client.world
    answers: tuple[bytes, ...] = ()
    partial: list[bytes] = []
    seconds = 0.0
    for key in action.holders:
        peer = world.get_client(key)
        if answers or peer is None or not world.wires.is_connected(client.number, peer.number):
            continue
        if client.can_reach(peer):
            said = peer.machine.get_opening(action.epoch, action.height, action.root, action.num_results)
            answer = b"".join(said)
            if decode_opening(action.root, action.num_results, answer) is not None:
                answers = (answer,)
            elif answer and len(partial) < MAX_PARTIAL_ANSWERS:
                partial.append(answer)
            seconds += 2 * world.wires.get_latency(client.number, peer.number) / ASKED_AT_ONCE
        else:
            seconds += ASK_DEADLINE_SECONDS / ASKED_AT_ONCE
    heard = act.OpeningHeard(action.height, action.root, action.num_results, answers or tuple(partial))
    client.feed_later(seconds + (0.0 if answers else NOT_FOUND_SECONDS), heard)
