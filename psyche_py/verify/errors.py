"""Errors of verification: bytes from a trainer, bytes from an accuser, numbers from a caller."""

from __future__ import annotations

from psyche_py.errors import PsycheError


class VerificationError(PsycheError):
    """A check was asked for in a way that it cannot be made."""


class RevealError(VerificationError):
    """Bytes are no reveal of the tiles asked for, or are not what the trainer committed to."""


class EvidenceError(VerificationError):
    """Bytes are no evidence: length, field or proof is wrong. Whoever served them is at fault."""
