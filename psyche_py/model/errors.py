"""Errors of models that come from peers."""

from __future__ import annotations

from psyche_py.errors import NetworkError


class PeerModelError(NetworkError):
    """What peers sent is no model, or another one than they said; asking others may help."""

    def __init__(self, what: str) -> None:
        super().__init__(f"A peer's model is unusable: {what}.", "Another peer is asked.")
