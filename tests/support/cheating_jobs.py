"""Clients that do not play by the rules, for whole runs. Nothing but a test's own code can switch them on.

As a program, ``cheating_jobs.py KIND ARGUMENTS`` is run-manager with such a client in it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.targets import Finding, Target
from psyche_py.client.verification_jobs import VerificationJobs, make_case
from psyche_py.coordinator.commitment import Commitment
from psyche_py.verify import Evidence, Measurement, Reason, Verdict, encode_evidence


class NegatingJobs(TrainerJobs):
    """Trains uphill: everything fits together, but the gradient is negated. It checks others honestly."""

    def train(self, *args: Any) -> Any:
        trainer: Any = self.trainer
        honest = trainer.accumulate

        def negate(*args: Any, **options: Any) -> Any:
            losses = honest(*args, **options)
            for p in trainer.parameters.values():
                if p.grad is not None:
                    p.grad.neg_()
            return losses

        trainer.accumulate = negate
        try:
            return super().train(*args)
        finally:
            del trainer.accumulate


class IdleJobs(TrainerJobs):
    """Does no work: sends what is left in its momentum."""

    def train(self, *args: Any) -> Any:
        trainer: Any = self.trainer
        honest = trainer.accumulate

        def forget(*args: Any, **options: Any) -> Any:
            losses = honest(*args, **options)
            trainer.optimizer.zero_grad()
            return losses

        trainer.accumulate = forget
        try:
            return super().train(*args)
        finally:
            del trainer.accumulate


class AccusingJobs(TrainerJobs):
    """Trains honestly and accuses whomever it is to look at, with true tiles under made-up numbers."""

    def set_verification(self, config: Any) -> None:
        super().set_verification(config)
        if self.verification is not None:
            self.verification.check = _Accuser(self.verification)  # type: ignore[method-assign]


class _Accuser:
    def __init__(self, jobs: VerificationJobs) -> None:
        self._honest, self._jobs = jobs.check, jobs

    def __call__(
        self,
        target: Target,
        commitment: Commitment,
        frame: bytes,
        payload: bytes,
        previous: Any,
        answer: bytes | None,
    ) -> tuple[Finding, bytes] | None:
        found = self._honest(target, commitment, frame, payload, previous, answer)
        if found is None or answer is None:
            return found
        verdict = Verdict(Reason.RESIDUAL, Measurement(alignment=1_000_000, residual=987_654))
        before = self._jobs._get_before_root(target)
        made = Evidence(make_case(target), before, commitment, frame, verdict, payload, answer)
        return replace(found[0], reason=int(Reason.RESIDUAL), reason_name="RESIDUAL"), encode_evidence(made)


class SilentJobs(TrainerJobs):
    """Trains honestly and shows nothing."""

    def set_verification(self, config: Any) -> None:
        super().set_verification(config)
        if self.verification is not None:
            self.verification.momentum.get_answer = lambda key: b""  # type: ignore[method-assign]


KINDS = {"negate": NegatingJobs, "idle": IdleJobs, "accuse": AccusingJobs, "silent": SilentJobs}


def main() -> None:
    """See the module."""
    from injected_jobs import inject_jobs

    from psyche_py.cli.main import main as run_manager

    inject_jobs(KINDS[sys.argv.pop(1)])
    run_manager()


if __name__ == "__main__":
    main()
