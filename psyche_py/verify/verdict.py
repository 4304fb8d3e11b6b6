"""What a check can find, why, and the numbers it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from psyche_py.coordinator.reasons import Finding as Finding
from psyche_py.coordinator.reasons import Reason as Reason

MILLION = 1_000_000
_LIMIT = (1 << 31) - 1


@dataclass(frozen=True)
class Measurement:
    """The statistics of a check in millionths, so that they have one encoding. 0 where not measured.

    alignment:  of the whole message: mean over tiles of mean(sign * gradient) / rms(gradient)
    residual:   mean over sampled tiles of |after - expected| / |gradient|, each at most 1
    violation:  share of claimed coefficients that are below .98 of the k-th largest expected
    jaccard:    mean over sampled tiles of |claimed and expected| / |claimed or expected|
    noise:      the residual between the verifier's own two gradients, where it has two
    """

    alignment: int = 0
    residual: int = 0
    violation: int = 0
    jaccard: int = 0
    noise: int = 0


def to_millionths(value: float) -> int:
    """A finite number rounded to millionths, at most what 32 bits hold."""
    return max(-_LIMIT, min(_LIMIT, round(value * MILLION)))


@dataclass(frozen=True)
class Verdict:
    """Why, and from which numbers."""

    reason: Reason
    measurement: Measurement

    @property
    def finding(self) -> Finding:
        """What follows from the reason."""
        return self.reason.finding
