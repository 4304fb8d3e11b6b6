"""What a trainer commits to with a result; its hash is what witnesses vote on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

HASH_BYTES = 32
COMMITMENT_BYTES = 3 * HASH_BYTES
NO_ROOT = bytes(HASH_BYTES)
"""Momentum root of a run that verifies nothing."""
_COMMITMENT_DOMAIN = b"psyche-py/commitment/1"


@dataclass(frozen=True, slots=True)
class Commitment:
    """What a trainer signs with a result; the draw that decides who looks comes later.

    payload_hash:   sha256 of the payload
    momentum_root:  root over the momentum after the step; NO_ROOT where nothing is verified
    foreseen:       bitmap over the epoch's client indices, little-endian: whose messages of the round before
                    the gradient's lookahead took in. Without it nobody could recompute the gradient.
    """

    payload_hash: bytes
    momentum_root: bytes = NO_ROOT
    foreseen: bytes = bytes(HASH_BYTES)

    def __post_init__(self) -> None:
        if any(len(field) != HASH_BYTES for field in (self.payload_hash, self.momentum_root, self.foreseen)):
            raise ValueError("A commitment has three fields of 32 bytes.")

    def encode(self) -> bytes:
        """96 bytes."""
        return self.payload_hash + self.momentum_root + self.foreseen

    @classmethod
    def decode(cls, data: bytes) -> Commitment:
        """Raises ValueError for another length; any 96 bytes are some commitment."""
        if len(data) != COMMITMENT_BYTES:
            raise ValueError(f"A commitment has {COMMITMENT_BYTES} bytes, not {len(data)}.")
        return cls(data[:32], data[32:64], data[64:])

    def compute_hash(self) -> bytes:
        """The 32 bytes that witnesses vote on."""
        return hashlib.sha256(_COMMITMENT_DOMAIN + self.encode()).digest()

    @property
    def foreseen_indices(self) -> tuple[int, ...]:
        """Epoch client indices in ``foreseen``, ascending."""
        bits = int.from_bytes(self.foreseen, "little")
        return tuple(index for index in range(8 * HASH_BYTES) if bits >> index & 1)


def make_bitmap(indices: set[int]) -> bytes:
    """Epoch client indices as 32 bytes, little-endian."""
    return sum(1 << index for index in indices).to_bytes(HASH_BYTES, "little")
