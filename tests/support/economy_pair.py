"""A simulated economy on the rule book and on the program at once, compared after every call."""

from __future__ import annotations

from typing import Any

from conformance import NOT_INSTRUCTIONS, Pair

from psyche_py.coordinator.state import CoordinatorAccount


class PairSide:
    """See psyche_py.sim.economy.side.Side. Raises conformance.Difference."""

    def __init__(self) -> None:
        self._pair = Pair()
        self.num_calls = 0

    @property
    def account(self) -> CoordinatorAccount:
        """The run now."""
        return self._pair.rules.account

    def get_signer(self, wallet: int) -> bytes:
        """The wallet's key."""
        return self._pair.rules.get_signer(wallet)

    def apply(self, name: str, **arguments: Any) -> str | None:
        """On both."""
        self.num_calls += name not in NOT_INSTRUCTIONS
        return self._pair.apply(name, **arguments)
