"""Cheats: trainers that do in a simulated run what no client can be told to do in a real one.

What a mode does, and what has to become of it in a run that verifies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from psyche_py.client.targets import Finding, Target
from psyche_py.coordinator.reasons import Reason
from psyche_py.sim.court import make_evidence
from psyche_py.sim.trainer import HashTrainer, Result

if TYPE_CHECKING:
    from psyche_py.client import actions as act
    from psyche_py.sim.world import World

NO_EFFORT = 0.05
"""Share of a batch's time that it takes to make a message up."""
LAZY_ROUNDS = 4
"""A lazy trainer skips one round in so many."""
UNPAID_SHARE = 0.1
"""Of what the best paid earns."""


class Fate(Enum):
    """What becomes of who cheats; the value is how a script says it."""

    EJECTED = "convicted"
    """Found out, judged, ejected and slashed."""
    UNPAID = "unpaid"
    """Nobody attests what it trains; rounds without training pay it as everybody."""
    HARMLESS = "acquitted"
    """It keeps its place and its pay, and honest clients theirs."""


class FalseResult(HashTrainer):
    """Commits to a message that is not its batch's.

    ``rule`` is the one of ``verify.check`` that finds it, and ``effort`` the share of a batch's time that it
    costs to make: both as measured on real trainers (docs/verification.md).
    """

    name = "noise"
    rule = Reason.ALIGNMENT
    effort = NO_EFFORT

    def train(self, job: act.Train) -> Result | None:
        """See Trainer."""
        name = f"{self.name} {self.number} {job.step} {job.batch_start} {self.weights.hex()}"
        digest = hashlib.sha256(name.encode()).digest()
        size = self.world.settings.payload_bytes
        return Result(digest, size, effort=self.effort, broken_rule=self.rule)


class NoWork(FalseResult):
    """Commits to noise, in no time."""


class Negated(FalseResult):
    """Trains, and turns the message around."""

    name, effort = "negated", 1.0


class Scaled(FalseResult):
    """Trains, and makes its gradient ten times as large: its momentum outweighs its batch."""

    name, rule, effort = "scaled", Reason.RESIDUAL, 1.0


class RandomSigns(FalseResult):
    """Names the right coefficients, with signs by lot."""

    name, rule, effort = "random-signs", Reason.ALIGNMENT, 1.0


class HalfBatch(FalseResult):
    """Trains half of its batch."""

    name, rule, effort = "half-batch", Reason.RESIDUAL, 0.5


class QuarterBatch(FalseResult):
    """Trains a quarter of its batch."""

    name, rule, effort = "quarter-batch", Reason.RESIDUAL, 0.25


class OtherData(FalseResult):
    """Trains on samples that it was not given."""

    name, rule, effort = "other-data", Reason.RESIDUAL, 1.0


class StaleModel(FalseResult):
    """Trains weights of ten rounds ago."""

    name, rule, effort = "stale-model", Reason.RESIDUAL, 1.0


class ForgedMomentum(FalseResult):
    """Trains, and commits to a momentum that is not what its batch made of the one before."""

    name, rule, effort = "forged-momentum", Reason.RESIDUAL, 1.0


class Copier(FalseResult):
    """Waits for another's result of the round, and says that it has the same; noise, where none has come."""

    name, rule, effort = "copy", Reason.RESIDUAL, 1.0

    def conclude(self, result: Result, others: tuple[bytes, ...]) -> Result:
        """See Trainer."""
        return replace(result, digest=others[0]) if others else result


class Absent(HashTrainer):
    """Never has a result: reported as silent and dropped, its batches are trained by others."""

    def train(self, job: act.Train) -> Result | None:
        """See Trainer."""
        return None


class Lazy(NoWork):
    """Skips a round now and then."""

    def train(self, job: act.Train) -> Result | None:
        """See Trainer."""
        is_skipped = job.height % LAZY_ROUNDS == 0
        return super().train(job) if is_skipped else HashTrainer.train(self, job)


class Refuser(NoWork):
    """Does no work, and shows nothing."""

    def reveals(self, target: Target) -> bool:
        """See Trainer."""
        return False


class FalseAccuser(HashTrainer):
    """Works, and accuses whomever it looks at."""

    def report(self, target: Target, finding: Finding) -> Finding:
        """See Trainer."""
        return replace(
            finding,
            reason=int(Reason.RESIDUAL),
            reason_name=Reason.RESIDUAL.name,
            evidence=make_evidence(target),
        )


class LyingJudge(HashTrainer):
    """Works, and votes against what it finds."""

    def vote(self, is_guilty: bool) -> bool:
        """See Trainer."""
        return not is_guilty


class SilentVerifier(HashTrainer):
    """Works, and accuses nobody."""

    def report(self, target: Target, finding: Finding) -> Finding:
        """See Trainer."""
        return Finding(0, "NONE", {}, finding.seconds)


class Equivocator(HashTrainer):
    """Signs two results of every batch."""

    is_equivocator = True


class Late(HashTrainer):
    """Announces a result when it knows who will be looked at, and trains only what will be."""

    is_late = True


@dataclass(frozen=True, slots=True)
class Cheat:
    """``needs``: a cheat without which it has nothing to do."""

    make: Callable[[World, int], HashTrainer]
    fate: Fate
    needs: str = ""


CHEATS: dict[str, Cheat] = {
    "no-work": Cheat(NoWork, Fate.EJECTED),
    "negated": Cheat(Negated, Fate.EJECTED),
    "scaled": Cheat(Scaled, Fate.EJECTED),
    "random-signs": Cheat(RandomSigns, Fate.EJECTED),
    "half-batch": Cheat(HalfBatch, Fate.EJECTED),
    "quarter-batch": Cheat(QuarterBatch, Fate.EJECTED),
    "other-data": Cheat(OtherData, Fate.EJECTED),
    "stale-model": Cheat(StaleModel, Fate.EJECTED),
    "forged-momentum": Cheat(ForgedMomentum, Fate.EJECTED),
    "copy": Cheat(Copier, Fate.EJECTED),
    "lazy": Cheat(Lazy, Fate.EJECTED),
    "refuser": Cheat(Refuser, Fate.EJECTED),
    "false-accuser": Cheat(FalseAccuser, Fate.EJECTED),
    "lying-judge": Cheat(LyingJudge, Fate.HARMLESS, needs="negated"),
    "silent-verifier": Cheat(SilentVerifier, Fate.HARMLESS, needs="negated"),
    "equivocator": Cheat(Equivocator, Fate.UNPAID),
    "late": Cheat(Late, Fate.UNPAID),
    "absent": Cheat(Absent, Fate.UNPAID),
}
"""By the name of the mode."""


def find_injustice(world: World) -> list[str]:
    """What verification owes and has not done, at the end of a run: sentences.

    Nobody honest is ejected or slashed, and, where the run verifies, a cheat has its fate; or what the script
    says becomes of a client.
    """
    found = []
    account = world.account
    most = max((entry.earned for entry in account.entries), default=0)
    is_verified = account.config.verification_percent > 0
    for client in world.clients:
        cheat = CHEATS.get(client.role.mode)
        index = account.find_entry(client.signer)
        entry = account.entries[index] if index is not None else None
        earned, slashed = (entry.earned, entry.slashed) if entry is not None else (0, 0)
        is_ejected = client.stopped == "ejected"
        usual = cheat.fate if cheat is not None and is_verified else Fate.HARMLESS
        fate = Fate(client.role.end) if client.role.end else usual
        who = f"client {client.number} ({client.role.mode})"
        if fate is Fate.EJECTED and not is_ejected:
            found.append(f"{who} is not ejected")
        if fate is Fate.UNPAID and earned > UNPAID_SHARE * most:
            found.append(f"{who} earns {earned} points")
        if fate is not Fate.EJECTED and (is_ejected or slashed):
            found.append(f"{who} is slashed by {slashed} points" + (", and ejected" if is_ejected else ""))
    return found
