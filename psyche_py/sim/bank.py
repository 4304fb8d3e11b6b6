"""What holds the run's account and applies instructions to it: the rule book, or the real programs.

``SimChain`` decides when an instruction lands; a ``Bank`` decides what it does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.config import RunConfig
from psyche_py.coordinator.errors import CoordinatorError
from psyche_py.coordinator.state import CoordinatorAccount

RUN_ID = "simulated"
CLIENT_VERSION = "test"
AUTHORIZATION = hashlib.sha256(b"simulated authorization").digest()

Process = Callable[..., CoordinatorAccount]
"""A rule of ``coordinator.transition``: it names the instruction, whoever carries it out."""


class Bank(Protocol):
    """See the module. ``account`` is the run's account as it is now."""

    account: CoordinatorAccount

    def make_signer(self, seed: bytes) -> bytes:
        """The public key (32 B) of the key pair with a secret seed (32 B), which may sign from now on."""

    def start(self, config: RunConfig, rates: dict[str, int], now: int) -> None:
        """Create the run and let it begin."""

    def execute(self, process: Process, arguments: dict[str, Any], now: int, slot: int) -> str | None:
        """Run an instruction at a time (unix seconds). Returns the name of the program's error, or None."""

    def save(self) -> Any:
        """All state, for :meth:`restore`."""

    def restore(self, saved: Any) -> None:
        """Be as one was."""


TIMELESS = (
    rules.process_announce,
    rules.process_update,
    rules.process_set_future_epoch_rates,
    rules.process_verdict,
    rules.process_vote,
)
"""Instructions whose rules do not ask for the time."""


class RuleBookBank:
    """The Python rule book, which equals the program byte for byte. Signatures are taken for granted."""

    def __init__(self) -> None:
        self.account = rules.process_init(RUN_ID, CLIENT_VERSION)

    def make_signer(self, seed: bytes) -> bytes:
        """See Bank."""
        return hashlib.sha256(seed).digest()

    def start(self, config: RunConfig, rates: dict[str, int], now: int) -> None:
        """See Bank."""
        parts = {"config": config.config.to_bytes(), "model": config.model.to_bytes()}
        for process, arguments in (
            (rules.process_update, parts),
            (rules.process_set_future_epoch_rates, rates),
            (rules.process_set_paused, {"paused": False}),
        ):
            error = self.execute(process, arguments, now, 0)
            assert error is None, error

    def execute(self, process: Process, arguments: dict[str, Any], now: int, slot: int) -> str | None:
        """See Bank."""
        if process not in TIMELESS:
            slot_hash = hashlib.sha256(f"slot {slot}".encode()).digest()
            arguments = {**arguments, "now": now, "seed": rules.compute_seed(now, slot, slot_hash)}
        if process is rules.process_join:
            arguments = {**arguments, "authorization": AUTHORIZATION}
        try:
            self.account = process(self.account, **arguments)
        except CoordinatorError as error:
            return error.code.name
        return None

    def save(self) -> CoordinatorAccount:
        """See Bank. Rules return new accounts, so the old one stays what it is."""
        return self.account

    def restore(self, saved: CoordinatorAccount) -> None:
        """See Bank."""
        self.account = saved
