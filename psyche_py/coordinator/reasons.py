"""Why a verifier accuses: the codes that a verdict carries, in the order in which a check finds them."""

from __future__ import annotations

from enum import IntEnum


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


REFUSAL_REASONS = frozenset({Reason.NO_ANSWER, Reason.MALFORMED, Reason.PROOF})
REASONS = range(Reason.ALIGNMENT, Reason.JACCARD + 1)
"""What a verdict may give as its reason."""

_IN_WORDS: dict[int, str] = {
    Reason.ALIGNMENT: "its message points away from the gradient",
    Reason.NO_ANSWER: "it did not show its momentum",
    Reason.MALFORMED: "its answer could not be read",
    Reason.PROOF: "its answer is not what it committed to",
    Reason.EXTRACTION: "it kept what it sent",
    Reason.RESIDUAL: "its gradient is not the one of its batch",
    Reason.VIOLATION: "it sent other coefficients than it found",
    Reason.JACCARD: "it sent other coefficients than it found",
}


def describe_reason(reason: int) -> str:
    """What a verdict's ``reason`` says of the accused, in words; the number itself where it is none."""
    return _IN_WORDS.get(reason, str(reason))
