"""What a check can find, why, and the numbers it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from psyche_py.coordinator.layout import REFUSAL_REASONS

MILLION = 1_000_000
_LIMIT = (1 << 31) - 1


class Finding(IntEnum):
    """What follows from a check.

    HONEST: nothing to report, or nothing can be said.  FRAUD: the committed bytes convict.
    REFUSAL: no usable answer came.
    """

    HONEST = 0
    FRAUD = 1
    REFUSAL = 2


class Reason(IntEnum):
    """The first rule that was broken, in the order in which they are checked."""

    NONE = 0
    ALIGNMENT = 1
    NO_ANSWER = 2
    MALFORMED = 3
    PROOF = 4
    EXTRACTION = 5
    RESIDUAL = 6
    VIOLATION = 7
    JACCARD = 8
    ILL_CONDITIONED = 9

    @property
    def finding(self) -> Finding:
        """A bad answer is a refusal and not a fraud: nobody can show who wrote bytes that prove nothing.

        ILL_CONDITIONED convicts nobody: the verifier's own two gradients differ too much.
        """
        if self in (Reason.NONE, Reason.ILL_CONDITIONED):
            return Finding.HONEST
        return Finding.REFUSAL if self in REFUSAL_REASONS else Finding.FRAUD

    @property
    def has_reveal(self) -> bool:
        """Whether its evidence holds the trainer's tiles."""
        return Reason.EXTRACTION <= self <= Reason.JACCARD


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
