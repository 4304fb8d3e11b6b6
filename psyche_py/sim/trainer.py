"""What a simulated client computes, commits to and answers: one ``Trainer`` per process, chosen by its mode.

A mode is a name in ``MODES``. "honest" trains in name only: its weights are a hash chain, so that replicas
that apply other results, in another order of rounds or twice, end with other digests. "real" trains the
run's tiny model (``real_trainer``). A mode of another kind, a cheat for example, derives from one of these
and overrides what it does otherwise: docs/simulator.md shows how. Time is the client's: a trainer only says
what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from psyche_py.coordinator.reasons import Reason

if TYPE_CHECKING:
    from psyche_py.client import actions as act
    from psyche_py.client.targets import Finding, Target
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.world import World

GENESIS = hashlib.sha256(b"the first model").digest()
"""Digest of an honest trainer's first model; zeros would say that there is none."""
SAMPLE_TOKENS = 32
"""max_seq_len of the run's template."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a trainer commits to: SHA-256 of the payload (32 B), its length in bytes, the loss it reports.

    ``effort``: the share of a batch's time that it took. A payload that is not ``is_well_formed`` does not
    decode for this model. One with a ``broken_rule`` is not the batch's: that rule of a check finds it out.
    """

    digest: bytes
    size: int
    loss: float = 1.0
    effort: float = 1.0
    is_well_formed: bool = True
    broken_rule: Reason = Reason.NONE


class Trainer(Protocol):
    """See the module. ``weights`` is the digest of the replica (32 B).

    ``is_equivocator``: it signs another result beside each. ``is_late``: it announces a result only when it
    is known who will be looked at.
    """

    weights: bytes
    is_equivocator: bool
    is_late: bool

    def load(self, account: CoordinatorAccount, weights: bytes | None) -> None:
        """Take the model with this digest, from a peer or a checkpoint; None: the run's first one."""

    def train(self, job: act.Train) -> Result | None:
        """Train a batch and commit to a result; None: there is none, as if training had been cancelled."""

    def conclude(self, result: Result, others: tuple[bytes, ...]) -> Result:
        """What we commit to when the time of ``result`` is over.

        ``others``: digests of the round's payloads that have come from others by then.
        """

    def apply(self, job: act.Apply) -> None:
        """Apply accepted results to the weights."""

    def export(self) -> bytes:
        """Offer the replica to joiners; the digest of what is offered (32 B)."""

    def answer(self, digest: bytes) -> bytes | None:
        """Digest of the bytes that are handed out for a payload that we have; None: we say we have it not."""

    def attest(self, witness: act.SendWitness) -> act.SendWitness:
        """What we attest, given what an honest witness would."""

    def reveals(self, target: Target) -> bool:
        """Whether the verifier of a result of ours gets an answer."""

    def report(self, target: Target, finding: Finding) -> Finding:
        """What we say that our check of another's result found."""

    def vote(self, is_guilty: bool) -> bool:
        """How we vote as a tie-breaker, given what we found."""


class HonestOfficer:
    """The part of a trainer that verification asks for, without a cheat."""

    is_equivocator = False
    is_late = False

    def reveals(self, target: Target) -> bool:
        """See Trainer."""
        return True

    def report(self, target: Target, finding: Finding) -> Finding:
        """See Trainer."""
        return finding

    def vote(self, is_guilty: bool) -> bool:
        """See Trainer."""
        return is_guilty


class HashTrainer(HonestOfficer):
    """Mode "honest": see the module."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.weights = GENESIS

    def load(self, account: CoordinatorAccount, weights: bytes | None) -> None:
        """See Trainer."""
        self.weights = GENESIS if weights is None else weights

    def train(self, job: act.Train) -> Result | None:
        """See Trainer."""
        name = f"{self.number} {job.step} {job.batch_start} {self.weights.hex()}"
        return Result(hashlib.sha256(name.encode()).digest(), self.world.settings.payload_bytes)

    def conclude(self, result: Result, others: tuple[bytes, ...]) -> Result:
        """See Trainer."""
        return result

    def apply(self, job: act.Apply) -> None:
        """See Trainer."""
        if job.digests:
            self.weights = hashlib.sha256(self.weights + b"".join(sorted(job.digests))).digest()

    def export(self) -> bytes:
        """See Trainer."""
        return self.weights

    def answer(self, digest: bytes) -> bytes | None:
        """See Trainer."""
        return digest

    def attest(self, witness: act.SendWitness) -> act.SendWitness:
        """See Trainer."""
        return witness


def _make_real(world: World, number: int) -> Trainer:
    from psyche_py.sim.real_trainer import RealTrainer

    return RealTrainer(world, number)


def _make_cheat(name: str) -> Callable[[World, int], Trainer]:
    def make(world: World, number: int) -> Trainer:
        from psyche_py.sim.cheats import CHEATS

        return CHEATS[name].make(world, number)

    return make


CHEAT_NAMES = (
    "no-work",
    "negated",
    "scaled",
    "random-signs",
    "half-batch",
    "quarter-batch",
    "other-data",
    "stale-model",
    "forged-momentum",
    "copy",
    "lazy",
    "refuser",
    "false-accuser",
    "lying-judge",
    "silent-verifier",
    "equivocator",
    "late",
    "absent",
)
MODES: dict[str, Callable[[World, int], Trainer]] = {
    "honest": HashTrainer,
    "real": _make_real,
    **{name: _make_cheat(name) for name in CHEAT_NAMES},
}
"""Trainers by the name that a script gives; made anew with every process of the client."""
