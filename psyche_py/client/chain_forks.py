"""Rounds as the account showed them, to notice that a fork of the chain has put others in their place. Pure.

A round is what its random seed says: the seed hashes a slot's hash, so two forks never share one. At
commitment ``confirmed`` this does not happen on a sound cluster; at ``processed`` it is ordinary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psyche_py.coordinator.repeats import Backlog
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Round

Finished = Mapping[int, bytes]
"""Digest of the replica (32 B) by epoch client index, of those that have finished a round."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A round's seed, and what was waiting to be assigned again before it began."""

    seed: int
    backlog: Backlog


class SeenRounds:
    """See the module. Lives as long as the epoch's session."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Seen] = {}
        self._finished: dict[int, Finished] = {}
        self._checked: CoordinatorAccount | None = None

    def note(self, round_: Round, backlog: Backlog) -> Finished:
        """A round is shown for the first time. Returns who had finished the one whose place it has taken.

        Nobody says that twice.
        """
        self._rounds[round_.height] = _Seen(round_.random_seed, backlog)
        return self._finished.pop(round_.height, {})

    def find_replaced(self, account: CoordinatorAccount) -> int | None:
        """The first round that this version of the account shows otherwise, or not (yet) at all."""
        if account is self._checked:
            return None
        self._checked = account
        current = account.current_round.height
        for height in sorted(self._rounds):
            round_ = account.get_round_at(height)
            if height > current or (round_ is not None and round_.random_seed != self._rounds[height].seed):
                return height
        return None

    def unwind(self, first: int, finished: Mapping[int, Finished]) -> Backlog:
        """Forget the rounds from ``first`` on; returns the backlog before it."""
        backlog = self._rounds[first].backlog
        self._rounds = {height: seen for height, seen in self._rounds.items() if height < first}
        self._finished.update(finished)
        return backlog

    def forget(self, newest: int) -> None:
        """Rounds up to ``newest`` are too old to matter."""
        self._rounds = {height: seen for height, seen in self._rounds.items() if height > newest}
        self._finished = {height: kept for height, kept in self._finished.items() if height > newest}
