"""Instructions by name and with JSON values, as the rules of the rule book that they are.

Whoever plays histories on the rule book alone derives from ``RuleCalls``: the economy and, with what the
program checks of accounts before any rule, the driver of the conformance tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.state import CoordinatorAccount

START = 1_700_000_000
"""Unix seconds at which histories begin."""
START_SLOT = 10


class RuleCalls(ABC):
    """One method for each instruction, ``_NAME(arguments)``: the account after it, or a CoordinatorError.

    account:  the run now. Wallets are small numbers, bytes are hexadecimal.
    """

    account: CoordinatorAccount

    @abstractmethod
    def get_signer(self, wallet: int) -> bytes:
        """The 32 bytes that stand in the account."""

    @property
    @abstractmethod
    def _time(self) -> dict[str, int]:
        """``now`` (unix seconds) and ``seed`` of an instruction right now."""

    def _tick(self) -> CoordinatorAccount:
        return rules.process_tick(self.account, **self._time)

    def _set_paused(self, paused: bool) -> CoordinatorAccount:
        return rules.process_set_paused(self.account, paused, **self._time)

    def _update(self, **parts: str) -> CoordinatorAccount:
        return rules.process_update(
            self.account, **{name: bytes.fromhex(value) for name, value in parts.items()}
        )

    def _set_future_epoch_rates(self, **rates: int | None) -> CoordinatorAccount:
        return rules.process_set_future_epoch_rates(self.account, **rates)

    def _warmup_witness(self, client: int, index: int) -> CoordinatorAccount:
        signer = self.get_signer(client)
        return rules.process_warmup_witness(self.account, signer=signer, index=index, **self._time)

    def _witness(self, client: int, **arguments: Any) -> CoordinatorAccount:
        for key in ("broadcast_merkle", "state_digest"):
            arguments[key] = bytes.fromhex(arguments[key])
        arguments |= self._time
        return rules.process_witness(self.account, signer=self.get_signer(client), **arguments)

    def _health_check(self, client: int, index: int) -> CoordinatorAccount:
        signer = self.get_signer(client)
        return rules.process_health_check(self.account, signer=signer, index=index, **self._time)

    def _verdict(self, client: int, evidence_hash: str, **arguments: int) -> CoordinatorAccount:
        return rules.process_verdict(
            self.account,
            signer=self.get_signer(client),
            evidence_hash=bytes.fromhex(evidence_hash),
            **arguments,
        )

    def _vote(self, client: int, index: int, evidence_hash: str, is_guilty: bool) -> CoordinatorAccount:
        return rules.process_vote(
            self.account,
            signer=self.get_signer(client),
            index=index,
            evidence_hash=bytes.fromhex(evidence_hash),
            is_guilty=is_guilty,
        )

    def _settle_debt(self, user: int, points: int) -> CoordinatorAccount:
        return rules.process_settle_debt(self.account, user=self.get_signer(user), points=points)
