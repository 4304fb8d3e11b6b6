"""Verification in the machines' virtual world: who cheats is known, checks and judgements find it out.

Whatever the machines say about a result when they check or judge it is compared with what its trainer did.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rulebook_driver import get_p2p_key

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.client.targets import ZERO_MOMENTUM, Finding, Target
from psyche_py.client.transactions import is_tried_again
from psyche_py.coordinator.commitment import Commitment, make_bitmap
from psyche_py.coordinator.reasons import Reason

if TYPE_CHECKING:
    from machine_world import Replica, World

QUIET = frozenset({"NoSuchDispute", "VotingOver", "DuplicateVote", "ClientNotInEpoch", "DuplicateVerdict"})


@dataclass
class Deed:
    """What a trainer did in a round: its commitment, the root it started from, payloads it foresaw."""

    commitment: Commitment
    before_root: bytes | None
    foreseen: dict[int, bytes]


@dataclass
class Court:
    """See the module. Sets hold client numbers."""

    world: World
    cheaters: set[int] = field(default_factory=set)
    refusers: set[int] = field(default_factory=set)
    accusers: set[int] = field(default_factory=set)
    liars: set[int] = field(default_factory=set)
    is_evidence_lost: bool = False
    deeds: dict[tuple[int, int, int], Deed] = field(default_factory=dict)  # by epoch, height, number
    checked: list[Target] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # (kind of transaction, error)
    num_judged: int = 0
    num_known_roots: int = 0
    _asks: list[tuple[Replica, ver.AskReveal, float]] = field(default_factory=list)

    def commit(self, replica: Replica, action: act.Train, digest: bytes) -> Commitment:
        """A trainer's result."""
        epoch = self.world.driver.account.epoch
        own = [key for key in self.deeds if key[0] == epoch and key[2] == replica.number]
        before = self.deeds[max(own)].commitment.momentum_root if own else None
        root = hashlib.sha256(b"root" + digest).digest()
        commitment = Commitment(digest, root, make_bitmap({index for index, _ in action.foreseen}))
        self.deeds[epoch, action.height, replica.number] = Deed(commitment, before, dict(action.foreseen))
        return commitment

    def step(self) -> None:
        """Questions under way."""
        waiting, self._asks = self._asks, []
        for replica, action, deadline in waiting:
            trainer = self._find(action.target.trainer_key)
            target = action.target
            allowed = trainer.machine.may_reveal(
                get_p2p_key(replica.number), target.epoch, target.height, target.verifier
            )
            is_willing = trainer.number not in self.refusers and not trainer.dead and not trainer.stopped
            if is_willing and allowed == target.key and target.key in trainer.answers:
                self.world.post(replica, ver.RevealHeard(target.key, b"tiles"), 0.1)
            elif self.world.time >= deadline:
                self.world.post(replica, ver.RevealHeard(target.key, None), 0.0)
            else:
                self._asks.append((replica, action, deadline))

    def _find(self, p2p_key: bytes) -> Replica:
        return next(r for r in self.world.replicas if get_p2p_key(r.number) == p2p_key)

    def perform(self, replica: Replica, action: ver.VerificationAction) -> None:
        """What a machine wants done."""
        world = self.world
        match action:
            case ver.PrepareReveal(target):
                replica.answers.add(target.key)
                world.post(replica, ver.RevealPrepared(target.key), 0.05)
            case ver.AskReveal():
                self._asks.append((replica, action, world.time + action.deadline_seconds))
            case ver.Check():
                world.post(replica, ver.Checked(action.target.key, self._check(replica, action)), 1.0)
            case ver.ShareEvidence(evidence, _, _, _):
                world.post(replica, ver.EvidenceShared(evidence, True), 0.3)
            case ver.FetchEvidence(evidence, _, target, _, _):
                self._compare(target)
                data = None if self.is_evidence_lost else b"evidence"
                world.post(replica, ver.EvidenceHeard(evidence, data), 0.3)
            case ver.Judge():
                self.num_judged += 1
                is_guilty = self._is_guilty(action.target, action.answer, action.reason)
                if replica.number in self.liars:
                    is_guilty = not is_guilty
                world.post(replica, ver.Judged(action.evidence, is_guilty, "test"), 0.5)
            case ver.SendVerdict() | ver.SendVote():
                self._send(replica, action)

    def _check(self, replica: Replica, action: ver.Check) -> Finding:
        target = action.target
        deed = self._compare(target)
        assert action.commitment == deed.commitment
        assert action.frame[32:] == b"signature" + action.frame[41:]
        self.checked.append(target)
        is_guilty = self._is_guilty(
            target, action.answer, Reason.NO_ANSWER if action.answer is None else Reason.RESIDUAL
        )
        if not is_guilty and replica.number not in self.accusers:
            return Finding(0, "NONE", {"residual": 1}, 1.0)
        reason = Reason.NO_ANSWER if action.answer is None else Reason.RESIDUAL
        evidence = hashlib.sha256(repr((target.epoch, target.key)).encode()).digest()
        return Finding(int(reason), reason.name, {}, 1.0, evidence)

    def _is_guilty(self, target: Target, answer: bytes | None, reason: int) -> bool:
        number = self._find(target.trainer_key).number
        return number in self.cheaters or (reason == Reason.NO_ANSWER and answer is None)

    def _compare(self, target: Target) -> Deed:
        """What is said of a result is what its trainer did, as far as it is said."""
        number = self._find(target.trainer_key).number
        deed = self.deeds[target.epoch, target.height, number]
        if target.before_root is not None:
            self.num_known_roots += 1
            assert target.before_root == (deed.before_root if deed.before_root else ZERO_MOMENTUM)
        for index, payload in deed.foreseen.items():
            assert target.previous[index] in (payload, None)
        return deed

    def _send(self, replica: Replica, action: ver.SendVerdict | ver.SendVote) -> None:
        arguments: dict[str, object] = {"client": replica.number, "evidence_hash": action.evidence.hex()}
        if isinstance(action, ver.SendVerdict):
            names = ("index", "trainer", "height", "reason")
        else:
            names = ("index", "is_guilty")
        arguments |= {name: getattr(action, name) for name in names}
        kind = "verdict" if isinstance(action, ver.SendVerdict) else "vote"
        error = self.world.driver.apply(kind, **arguments)
        if error is None:
            return
        self.refused.append((kind, error))
        if is_tried_again(ver.get_key(action), error):
            self.world.post(replica, act.SendFailed(ver.get_key(action)), 2.0)
        else:
            assert error in QUIET, f"{action}: {error}"
