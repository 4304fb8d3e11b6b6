"""The rule book with a clock, behind the calls that tests make on it and on the program side by side."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.errors import CoordinatorError
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.sim.bank import AUTHORIZATION
from psyche_py.sim.rule_calls import START, START_SLOT, RuleCalls

HINT = bytes([1, 0, 40, 35, 127, 0, 0, 1]).ljust(64, b"\0")


class Side(Protocol):
    """A run that instructions are sent to, by name; wallets are small numbers."""

    @property
    def account(self) -> CoordinatorAccount:
        """The run now."""

    def get_signer(self, wallet: int) -> bytes:
        """The 32 bytes that stand in the account."""

    def apply(self, name: str, **arguments: Any) -> str | None:
        """Send it; the name of the error, or None. ``advance`` lets seconds and slots pass."""


class RuleBookSide(RuleCalls):
    """The rule book alone. ``bond`` posts a wallet's bond as the treasurer would."""

    def __init__(self, salt: str) -> None:
        """Runs of other ``salt`` see other slot hashes, so other draws."""
        self.account = rules.process_init("run", "test")
        self._salt = salt
        self._now, self._slot = START, START_SLOT
        self._bonds: dict[int, int] = {}

    def get_signer(self, wallet: int) -> bytes:
        """See Side."""
        return hashlib.sha256(f"wallet {wallet}".encode()).digest()

    def apply(self, name: str, **arguments: Any) -> str | None:
        """See Side."""
        if name == "advance":
            self._now += arguments["seconds"]
            self._slot += arguments["slots"]
            return None
        if name == "bond":
            self._bonds[arguments["bond"]] = arguments["amount"]
            return None
        try:
            self.account = getattr(self, f"_{name}")(**arguments)
        except CoordinatorError as error:
            return error.code.name
        return None

    @property
    def _time(self) -> dict[str, int]:
        slot_hash = hashlib.sha256(f"{self._salt} {self._slot}".encode()).digest()
        return {"now": self._now, "seed": rules.compute_seed(self._now, self._slot, slot_hash)}

    def _join_run(
        self, client: int, p2p_key: str, address_hint: str, bond: int | None = None
    ) -> CoordinatorAccount:
        return rules.process_join(
            self.account,
            signer=self.get_signer(client),
            p2p_key=bytes.fromhex(p2p_key),
            address_hint=bytes.fromhex(address_hint),
            authorization=AUTHORIZATION,
            bond=0 if bond is None else self._bonds[bond],
            **self._time,
        )
