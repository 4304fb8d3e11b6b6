"""Errors of the optimizer: bytes from a peer, numbers from a model, calls from a caller."""

from __future__ import annotations

from psyche_py.errors import PsycheError


class DistroError(PsycheError):
    """The optimizer was called in a way or a state that it cannot serve."""


class PayloadError(DistroError):
    """Bytes are not a payload of this model: wrong length, header, rank, sign or padding.

    The sender is at fault (or the transport); the receiver's state has not changed.
    """


class NonFiniteGradientError(DistroError):
    """A gradient holds NaN or infinity; momentum and parameters have not changed."""
