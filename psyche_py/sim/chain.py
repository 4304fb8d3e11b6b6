"""The chain in virtual time: transactions land at the end of a slot, and then everybody hears of it.

What an instruction does is the bank's business (``bank``, ``programs``). Here is what a cluster adds: slots
that are short, long or do not end at all, and a fork that takes the last ones back.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from psyche_py.coordinator.config import RunConfig
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.sim.bank import RUN_ID, Bank, Process, RuleBookBank
from psyche_py.sim.clock import VirtualClock

__all__ = ["PROGRAM_ID", "RUN_ID", "SLOT_SECONDS", "SimChain"]

SLOT_SECONDS = 0.4
KEPT_SLOTS = 32
"""So far can a fork take the chain back: by then a block is rooted."""
PROGRAM_ID = hashlib.sha256(b"simulated program").digest()

Answer = Callable[[str | None], None]
"""Hears the name of the program's error, or None when the transaction landed."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One instruction under way."""

    process: Process
    arguments: dict[str, Any]
    answer: Answer | None = None


@dataclass(slots=True)
class _Slot:
    """A slot that has ended: what everything was before it, and what landed in it."""

    number: int
    before: list[Any]
    landed: list[Transaction]


class Rewindable(Protocol):
    """What follows the chain, and can go back with it."""

    def save(self) -> Any:
        """All of its state."""

    def restore(self, saved: Any) -> None:
        """Be as one was."""


def _count_whole(seconds: float, length: float) -> int:
    """How many slots of a length have ended in so many seconds.

    The clock has a resolution of 2.4e-7 s: the end of a slot must not be taken for the slot before.
    """
    return math.floor(seconds / length + 1e-3)


class SimChain:
    """One run's account. ``listeners`` hear every change, ``on_slot`` the end of a slot that changed it."""

    def __init__(
        self, clock: VirtualClock, config: RunConfig, rates: dict[str, int], bank: Bank | None = None
    ) -> None:
        self.bank: Bank = RuleBookBank() if bank is None else bank
        self.on_change: list[Callable[[CoordinatorAccount, CoordinatorAccount], None]] = []
        """Called with the account before and after every instruction that changed it."""
        self.on_slot: list[Callable[[CoordinatorAccount], None]] = []
        """Called at the end of a slot that changed the account."""
        self.rewindable: list[Rewindable] = [self.bank]
        """What goes back to where it was when a fork takes slots back."""
        self.down_until = 0.0
        self.slot_seconds = SLOT_SECONDS
        self.is_forkable = False
        """Remember the last slots; it costs time."""
        self._clock = clock
        self._genesis = clock.now
        self._pending: list[Transaction] = []
        self._is_slot_planned = False
        self._slots: deque[_Slot] = deque(maxlen=KEPT_SLOTS)
        self.bank.start(config, rates, int(clock.now))

    @property
    def account(self) -> CoordinatorAccount:
        """The account as it is now."""
        return self.bank.account

    @property
    def slot(self) -> int:
        """The slot in work."""
        return _count_whole(self._clock.now - self._genesis, SLOT_SECONDS) + 10

    def submit(self, process: Process, arguments: dict[str, Any], answer: Answer | None = None) -> None:
        """Have an instruction land at the end of the slot in work."""
        self._pending.append(Transaction(process, arguments, answer))
        if not self._is_slot_planned:
            self._is_slot_planned = True
            length = self.slot_seconds
            since = max(self._clock.now, self.down_until) - self._genesis
            self._clock.at(self._genesis + (_count_whole(since, length) + 1) * length, self._end_slot)

    def fork(self, num_slots: int, lost: float, rng: random.Random) -> None:
        """Take the last slots back. What landed in them lands again, later and in another order.

        A share of ``lost`` does not: its senders think that it has.
        """
        last_kept = self.slot - num_slots  # the slot that has just ended has the number of the one in work
        taken = [slot for slot in self._slots if slot.number > last_kept]
        if not taken:
            return
        self._slots = deque((s for s in self._slots if s.number <= last_kept), maxlen=KEPT_SLOTS)
        for one, saved in zip(self.rewindable, taken[0].before, strict=True):
            one.restore(saved)
        again = [transaction for slot in taken for transaction in slot.landed if rng.random() >= lost]
        rng.shuffle(again)
        for transaction in again:
            self.submit(transaction.process, transaction.arguments)
        for slot_listener in self.on_slot:
            slot_listener(self.account)

    def _execute(self, transaction: Transaction) -> str | None:
        before, now = self.account, int(self._clock.now)
        error = self.bank.execute(transaction.process, transaction.arguments, now, self.slot)
        if self.account is not before:
            for listener in self.on_change:
                listener(before, self.account)
        return error

    def _end_slot(self) -> None:
        if self._clock.now < self.down_until:
            self._clock.at(self.down_until, self._end_slot)
            return
        self._is_slot_planned = False
        pending, self._pending = self._pending, []
        before = self.account
        slot = _Slot(self.slot, [one.save() for one in self.rewindable], []) if self.is_forkable else None
        for transaction in pending:
            error = self._execute(transaction)
            if slot is not None and error is None:
                slot.landed.append(transaction)
            if transaction.answer is not None:
                transaction.answer(error)
        if slot is not None:
            self._slots.append(slot)
        if self.account is not before:
            for listener in self.on_slot:
                listener(self.account)
