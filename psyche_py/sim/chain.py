"""The rule book behind slots: transactions land at the end of one, and then everybody hears of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.config import RunConfig
from psyche_py.coordinator.errors import CoordinatorError
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.sim.clock import VirtualClock

SLOT_SECONDS = 0.4
RUN_ID = "simulated"
PROGRAM_ID = hashlib.sha256(b"simulated program").digest()
AUTHORIZATION = hashlib.sha256(b"simulated authorization").digest()

Process = Callable[..., CoordinatorAccount]
Answer = Callable[[str | None], None]
"""Hears the name of the program's error, or None when the transaction landed."""


class SimChain:
    """One run's account. Authorizations and signatures are taken for granted."""

    def __init__(self, clock: VirtualClock, config: RunConfig, points_per_epoch: int) -> None:
        self.account = rules.process_init(RUN_ID, "test")
        self.on_change: list[Callable[[CoordinatorAccount, CoordinatorAccount], None]] = []
        """Called with the account before and after every instruction that changed it."""
        self.on_slot: list[Callable[[CoordinatorAccount], None]] = []
        """Called at the end of a slot that changed the account."""
        self.down_until = 0.0
        self._clock = clock
        self._genesis = clock.now
        self._pending: list[tuple[Process, dict[str, Any], bool, Answer | None]] = []
        self._is_slot_planned = False
        self.execute(
            rules.process_update,
            is_timed=False,
            config=config.config.to_bytes(),
            model=config.model.to_bytes(),
        )
        self.execute(
            rules.process_set_future_epoch_rates,
            is_timed=False,
            earning_rate_total_shared=points_per_epoch,
            slashing_rate_per_client=0,
        )
        self.execute(rules.process_set_paused, paused=False)

    def get_signer(self, seed: bytes) -> bytes:
        """Public key (32 B) of the wallet with a secret seed (32 B)."""
        return hashlib.sha256(seed).digest()

    @property
    def slot(self) -> int:
        """The slot in work."""
        return int((self._clock.now - self._genesis) / SLOT_SECONDS) + 10

    def execute(self, process: Process, *, is_timed: bool = True, **arguments: Any) -> str | None:
        """Run an instruction now. Returns the name of the program's error, or None."""
        if is_timed:
            now, slot = int(self._clock.now), self.slot
            slot_hash = hashlib.sha256(f"slot {slot}".encode()).digest()
            arguments |= {"now": now, "seed": rules.compute_seed(now, slot, slot_hash)}
        before = self.account
        try:
            self.account = process(before, **arguments)
        except CoordinatorError as error:
            return error.code.name
        if self.account is not before:
            for listener in self.on_change:
                listener(before, self.account)
        return None

    def submit(
        self,
        process: Process,
        arguments: dict[str, Any],
        answer: Answer | None = None,
        *,
        is_timed: bool = True,
    ) -> None:
        """Have an instruction land at the end of the slot in work."""
        self._pending.append((process, arguments, is_timed, answer))
        if not self._is_slot_planned:
            self._is_slot_planned = True
            since = max(self._clock.now, self.down_until) - self._genesis
            self._clock.at(
                self._genesis + (math.floor(since / SLOT_SECONDS) + 1) * SLOT_SECONDS, self._end_slot
            )

    def _end_slot(self) -> None:
        if self._clock.now < self.down_until:
            self._clock.at(self.down_until, self._end_slot)
            return
        self._is_slot_planned = False
        pending, self._pending = self._pending, []
        before = self.account
        for process, arguments, is_timed, answer in pending:
            error = self.execute(process, is_timed=is_timed, **arguments)
            if answer is not None:
                answer(error)
        if self.account is not before:
            for listener in self.on_slot:
                listener(self.account)
