"""What peers were asked for in vain in an epoch: payloads, and what a witness's root is over. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from psyche_py.client import actions as act

if TYPE_CHECKING:
    from psyche_py.coordinator.witness import Attestation

Key = tuple[int, bytes, int]
"""Height, root, number of results."""


class Searches:
    """See the module. One instance lives as long as the epoch's session."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._asked: set[Key] = set()
        self._unanswered: set[Key] = set()
        self._unserved: dict[bytes, int] = {}

    def ask(
        self,
        height: int,
        attestation: Attestation,
        said: list[bytes],
        others: tuple[bytes, ...],
        out: list[act.Action],
    ) -> None:
        """Ask what a root is over, unless that is under way. ``said`` are its witnesses, who know, ``others``
        all the epoch's other clients, by their mesh keys."""
        key = (height, *attestation.key)
        if key in self._asked:
            return
        self._asked.add(key)
        holders = [*(k for k in said if k in others), *(k for k in others if k not in said)]
        out.append(act.AskOpening(self._epoch, *key, tuple(holders)))

    def end_question(self, height: int, root: bytes, num_results: int) -> None:
        """The answers are here; the same question may be asked again."""
        self._asked.discard((height, root, num_results))

    def note_unanswered(self, height: int, root: bytes, num_results: int) -> None:
        """None of the answers was of use."""
        self._unanswered.add((height, root, num_results))

    def note_unserved(self, height: int, payload_hash: bytes) -> None:
        """Nobody gave us a payload of round ``height`` in time."""
        self._unserved[payload_hash] = height

    def forget(self, known: Collection[int]) -> None:
        """Only the rounds of these heights matter any more."""
        self._asked = {key for key in self._asked if key[0] in known}
        self._unanswered = {key for key in self._unanswered if key[0] in known}
        self._unserved = {name: height for name, height in self._unserved.items() if height in known}

    def explain_failure(
        self, height: int, unopened: Collection[Attestation], missing: Collection[bytes]
    ) -> str:
        """Why the results of ``height`` will not be complete; "" where nothing was sought in vain yet.

        For an epoch that is over: who knew has forgotten, and one search that failed is enough, since whoever
        completed the epoch gives us its model. Who waited on would not join the next one.
        """
        if any((height, *attestation.key) in self._unanswered for attestation in unopened):
            return f"nobody could tell which results of round {height} the witnesses attested"
        if unserved := sorted(self._unserved.keys() & set(missing)):
            names = ", ".join(digest.hex()[:12] for digest in unserved)
            return f"nobody has the payloads {names} any more, which were accepted of round {height}"
        return ""
