"""Verdicts and votes of random histories: those drawn for it, and those who are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from rulebook_driver import Driver, Event

from psyche_py.coordinator.committee import compute_tie_breaker_seats
from psyche_py.coordinator.duties import compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import ClientState
from psyche_py.coordinator.reasons import REASONS
from psyche_py.coordinator.state import CoordinatorAccount, Dispute

Act = Callable[[str, int, dict[str, Any]], Event | None]
"""(name, epoch client index, arguments): the event, sent by that client; None when it has no wallet here."""


class DisputeEvents:
    """Makes them for the driver's present state."""

    def __init__(self, driver: Driver, rng: random.Random, act: Act) -> None:
        self.driver = driver
        self.rng = rng
        self.act = act

    @property
    def account(self) -> CoordinatorAccount:
        """The run as the rule book has it."""
        return self.driver.account

    def _is_healthy(self, index: int) -> bool:
        return self.account.epoch_clients[index].state is ClientState.Healthy

    def make_verdict(self) -> Event | None:
        """By a verifier that was drawn, about its trainer."""
        height = self.account.current_round.height - self.rng.choice([0, 0, 0, 1, 2, 3])
        duties = [duty for duty in compute_duties(self.account, height) if self._is_healthy(duty.verifier)]
        if not duties:
            return None
        duty = self.rng.choice(duties)
        accusation = self._make_accusation(duty.verifier, duty.trainer, height - 1)
        return self.act("verdict", duty.verifier, accusation)

    def _make_accusation(self, index: int, trainer: int, height: int) -> dict[str, Any]:
        rng = self.rng
        evidence = rng.randbytes(4).ljust(32, b"\0").hex()
        known = [d.evidence_hash.hex() for d in self.account.disputes]
        if known and rng.random() < 0.05:
            evidence = rng.choice(known)
        return {
            "index": index,
            "trainer": trainer,
            "height": height,
            "reason": rng.choice(REASONS),
            "evidence_hash": evidence,
        }

    def make_vote(self) -> Event | None:
        """By one that judges and has not voted. What it says depends on the evidence, most of the time."""
        ways = [(d, index) for d in self.account.disputes if d.is_open for index in self._find_judges(d)]
        if not ways:
            return None
        dispute, index = self.rng.choice(ways)
        is_guilty = dispute.evidence_hash[0] % 2 == 0
        if self.rng.random() < 0.2:
            is_guilty = not is_guilty
        evidence = dispute.evidence_hash.hex()
        return self.act("vote", index, {"index": index, "evidence_hash": evidence, "is_guilty": is_guilty})

    def _find_judges(self, dispute: Dispute) -> list[int]:
        round_ = self.account.get_round_at(dispute.judge_height) if dispute.judge_height else None
        if round_ is None:
            return []
        voted = {voter for voter, _ in dispute.votes}
        return [
            index
            for index in compute_tie_breaker_seats(round_)
            if is_tie_breaker(self.account, dispute, index) and index not in voted and self._is_healthy(index)
        ]

    def make_odd_verdict(self, client: int, index: int) -> Event:
        """A client that was not drawn, about anybody, in any round, for any reason."""
        rng, height = self.rng, self.account.current_round.height
        accusation = self._make_accusation(
            index, rng.choice([0, 1, 2, 255, 65535]), rng.choice([height, max(height - 1, 0), 0, 2**32 - 1])
        )
        duties = compute_duties(self.account, height)
        if duties and rng.random() < 0.5:
            duty = rng.choice(duties)
            accusation |= {"trainer": duty.trainer, "height": height - 1}
        if rng.random() < 0.3:
            accusation["reason"] = rng.choice([0, 9, 255])
        return "verdict", {"client": client, **accusation}

    def make_odd_vote(self, client: int, index: int) -> Event:
        """Anybody, about any evidence, in any state."""
        rng = self.rng
        disputes = [d for d in self.account.disputes if d.is_open or rng.random() < 0.3]
        evidence = rng.choice(disputes).evidence_hash if disputes and rng.random() < 0.9 else bytes(32)
        voters = [voter for d in disputes for voter, _ in d.votes]
        if voters and rng.random() < 0.3:
            event = self.act("vote", voter := rng.choice(voters), self._make_ballot(voter, evidence))
            if event is not None:
                return event
        return "vote", {"client": client, **self._make_ballot(index, evidence)}

    def _make_ballot(self, index: int, evidence: bytes) -> dict[str, Any]:
        return {"index": index, "evidence_hash": evidence.hex(), "is_guilty": self.rng.random() < 0.5}
