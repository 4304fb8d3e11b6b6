"""Cheats: trainers that do in a simulated run what no client can be told to do in a real one.

What a mode does, and what has to become of it in a run that verifies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
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
    """What becomes of who cheats."""

    EJECTED = auto()
    UNPAID = auto()  # nobody attests what it trains; rounds without training pay it as everybody
    HARMLESS = auto()  # it keeps its pay, and honest clients theirs


class NoWork(HashTrainer):
    """Commits to noise, in no time."""

    def train(self, job: act.Train) -> Result | None:
        """See Trainer."""
        noise = hashlib.sha256(f"noise {self.number} {job.step} {job.batch_start}".encode()).digest()
        return Result(noise, self.world.settings.payload_bytes, effort=NO_EFFORT, is_false=True)


class Negated(HashTrainer):
    """Trains, and turns the message around."""

    def train(self, job: act.Train) -> Result | None:
        """See Trainer."""
        name = f"negated {self.number} {job.step} {job.batch_start} {self.weights.hex()}"
        digest = hashlib.sha256(name.encode()).digest()
        return Result(digest, self.world.settings.payload_bytes, is_false=True)


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
    "lazy": Cheat(Lazy, Fate.EJECTED),
    "refuser": Cheat(Refuser, Fate.EJECTED),
    "false-accuser": Cheat(FalseAccuser, Fate.EJECTED),
    "lying-judge": Cheat(LyingJudge, Fate.HARMLESS, needs="negated"),
    "silent-verifier": Cheat(SilentVerifier, Fate.HARMLESS, needs="negated"),
    "equivocator": Cheat(Equivocator, Fate.UNPAID),
    "late": Cheat(Late, Fate.UNPAID),
}
"""By the name of the mode."""


def find_injustice(world: World) -> list[str]:
    """What verification owes and has not done, at the end of a run: sentences.

    Nobody honest is ejected or slashed, and, where the run verifies, a cheat has its fate.
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
        fate = cheat.fate if cheat is not None and is_verified else Fate.HARMLESS
        who = f"client {client.number} ({client.role.mode})"
        if fate is Fate.EJECTED and not is_ejected:
            found.append(f"{who} is not ejected")
        if fate is Fate.UNPAID and earned > UNPAID_SHARE * most:
            found.append(f"{who} earns {earned} points")
        if fate is not Fate.EJECTED and (is_ejected or slashed):
            found.append(f"{who} is slashed by {slashed} points" + (", and ejected" if is_ejected else ""))
    return found
