"""Where honest rounding ends: limits of a check, measured by benchmarks/bench_verify.py --calibrate.

A run names one of these for all its clients. Where any client may compute in bfloat16, all are judged by
BF16: a verifier in float32 sees a trainer's bfloat16 as noise of its own size, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psyche_py.coordinator.layout import (
    DEFAULT_MAX_RESIDUAL,
    DEFAULT_MAX_VIOLATION,
    DEFAULT_MIN_JACCARD,
)
from psyche_py.verify.errors import VerificationError
from psyche_py.verify.verdict import MILLION, Measurement, Reason, to_millionths

MAX_TOLERANCE = 1.0
POINTS_AWAY = -2.0
"""Where no alignment is asked for a message has to be better than this. Honest ones are near zero
at worst, where old momentum decides them; a negated one is at -4."""


@dataclass(frozen=True)
class Thresholds:
    """Limits on a Measurement, as fractions of one.

    min_alignment:  POINTS_AWAY where a loss flattens or a rate falls to nothing: old momentum then decides
    max_residual:   at most this share of the gradient may be unexplained
    max_violation:  share of claimed coefficients
    min_jaccard:    likeness of claimed and expected sets
    max_noise:      between a verifier's own gradients in two precisions; above it nothing can be said
    """

    min_alignment: float
    max_residual: float
    max_violation: float
    min_jaccard: float
    max_noise: float = 1.0

    def __post_init__(self) -> None:
        shares = (self.max_residual, self.max_violation, self.min_jaccard, self.max_noise)
        if (
            not all(0.0 <= x <= MAX_TOLERANCE for x in shares)
            or not POINTS_AWAY <= self.min_alignment <= -POINTS_AWAY
        ):
            raise VerificationError(f"Thresholds are fractions of one, alignment within 2: {self}.")

    @classmethod
    def from_limits(
        cls, min_alignment: int, max_residual: int, max_violation: int, min_jaccard: int
    ) -> Thresholds:
        """Limits as a run's configuration has them, in millionths; a min_alignment of 0 is POINTS_AWAY.

        A run that allows more residual than float32 leaves expects bfloat16, so the noise rule applies.
        """
        limits = cls(
            min_alignment / MILLION if min_alignment else POINTS_AWAY,
            max_residual / MILLION,
            max_violation / MILLION,
            min_jaccard / MILLION,
        )
        return (
            replace(limits, max_noise=BF16.max_noise) if limits.max_residual > FP32.max_residual else limits
        )

    @property
    def needs_second(self) -> bool:
        """Whether a check needs the gradient in both precisions."""
        return self.max_noise < MAX_TOLERANCE

    def is_too_noisy(self, measurement: Measurement) -> bool:
        """Whether rounding alone moves this gradient too far."""
        return measurement.noise > to_millionths(self.max_noise)

    def is_aligned(self, measurement: Measurement) -> bool:
        """Whether the cheap check passes."""
        return measurement.alignment >= to_millionths(self.min_alignment)

    def judge(self, measurement: Measurement) -> Reason:
        """The first rule that a complete measurement breaks."""
        if self.is_too_noisy(measurement):
            return Reason.ILL_CONDITIONED
        if not self.is_aligned(measurement):
            return Reason.ALIGNMENT
        if measurement.residual > to_millionths(self.max_residual):
            return Reason.RESIDUAL
        if measurement.violation > to_millionths(self.max_violation):
            return Reason.VIOLATION
        if measurement.jaccard < to_millionths(self.min_jaccard):
            return Reason.JACCARD
        return Reason.NONE


# Of a run whose loss falls. A run's configuration asks for no alignment by default: see docs/verification.md.
_MIN_ALIGNMENT = 0.1
FP32 = Thresholds(min_alignment=_MIN_ALIGNMENT, max_residual=0.01, max_violation=0.01, min_jaccard=0.95)
# A spike of the gradient (a token whose embedding has nearly vanished) is computed by bfloat16 with an error
# that clipping spreads over all tiles. So who judges by these recomputes in both precisions, and lets such
# messages be.
BF16 = Thresholds(
    min_alignment=_MIN_ALIGNMENT,
    max_residual=DEFAULT_MAX_RESIDUAL / MILLION,
    max_violation=DEFAULT_MAX_VIOLATION / MILLION,
    min_jaccard=DEFAULT_MIN_JACCARD / MILLION,
    max_noise=0.02,
)
