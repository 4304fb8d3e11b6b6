"""Inputs and actions of verification; see ``actions`` for what these are.

Times are in seconds, indices are the epoch's, evidence is named by its SHA-256 (32 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psyche_py.client.targets import Finding, Target, TargetKey
    from psyche_py.coordinator.commitment import Commitment


# ---- inputs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RevealPrepared:
    """Our answer to a question that the draw allows is ready."""

    key: TargetKey


@dataclass(frozen=True, slots=True)
class RevealHeard:
    """The trainer's answer to :class:`AskReveal`; None when none came in time."""

    key: TargetKey
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Checked:
    """What our check of a result found; None when it could not be made (we are leaving)."""

    key: TargetKey
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class EvidenceShared:
    """Another peer holds the evidence, or none would take it."""

    evidence: bytes
    is_held: bool


@dataclass(frozen=True, slots=True)
class EvidenceHeard:
    """The bytes with this hash; None when nobody served them."""

    evidence: bytes
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Judged:
    """What a tie-breaker's own check says; None when it could not be made."""

    evidence: bytes
    is_guilty: bool | None
    why: str


JobDone = RevealPrepared | Checked | Judged
VerificationInput = RevealPrepared | RevealHeard | Checked | EvidenceShared | EvidenceHeard | Judged


# ---- actions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareReveal:
    """We are drawn: make the answer while the snapshots are here."""

    target: Target


@dataclass(frozen=True, slots=True)
class AskReveal:
    """Ask the trainer for the sampled tiles."""

    target: Target
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Check:
    """Do the trainer's work again and compare. ``frame`` is its signed announcement, or empty."""

    target: Target
    commitment: Commitment
    frame: bytes
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class ShareEvidence:
    """See that another peer holds our evidence: we may be gone when it is asked for."""

    evidence: bytes
    reason: int
    target: Target
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class FetchEvidence:
    """Get the evidence of a dispute about ``target`` from its accuser or any holder."""

    evidence: bytes
    reason: int
    target: Target
    accuser_key: bytes
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Judge:
    """Do the check of a dispute ourselves. ``answer`` is what the trainer showed us, where we had to ask."""

    evidence: bytes
    reason: int
    target: Target
    data: bytes
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class SendVerdict:
    """verdict: we accuse ``trainer`` for its result of round ``height``."""

    index: int
    trainer: int
    height: int
    reason: int
    evidence: bytes


@dataclass(frozen=True, slots=True)
class SendVote:
    """vote, as a tie-breaker."""

    index: int
    evidence: bytes
    is_guilty: bool


VerificationJob = PrepareReveal | Check | Judge
VerificationAction = VerificationJob | AskReveal | ShareEvidence | FetchEvidence | SendVerdict | SendVote


def get_key(action: SendVerdict | SendVote) -> str:
    """The name under which the machine hears that this transaction failed."""
    kind = "verdict" if isinstance(action, SendVerdict) else "vote"
    return f"{kind} {action.evidence.hex()[:16]}"
