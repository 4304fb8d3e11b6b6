"""Bloom filter of commitments a witness has verified: 1,024 bits, 8 positions an item.

Psyche stores 8 random keys with each filter. Here the positions come from the seed of the round in which the
witness is stored: 64 bytes less, and unknown when results are committed. That keeps nobody from looking for
another commitment afterwards that a full filter holds by chance: filters decide nothing, they only say which
commitments are worth trying under the witness's Merkle root.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

NUM_BITS = 1024
NUM_POSITIONS = 8


def compute_positions(seed: int, item: bytes) -> tuple[int, ...]:
    """The 8 bit positions of a 32-byte item under a round's random seed."""
    digest = hashlib.sha256(seed.to_bytes(8, "little") + item).digest()
    return tuple(word % NUM_BITS for word in struct.unpack("<8I", digest))


class Bloom:
    """A filter keyed by a round's ``seed``; ``words`` are 16 u64, bit b in word b // 64 at b % 64."""

    def __init__(self, seed: int, words: Sequence[int] | None = None) -> None:
        self.seed = seed
        self.words = [0] * (NUM_BITS // 64) if words is None else [int(word) for word in words]

    def add(self, item: bytes) -> None:
        """Put a 32-byte item in."""
        for position in compute_positions(self.seed, item):
            self.words[position // 64] |= 1 << (position % 64)

    def __contains__(self, item: bytes) -> bool:
        """True when the item was added, or rarely (about (fill)^8) when it was not."""
        return all(
            self.words[position // 64] >> (position % 64) & 1
            for position in compute_positions(self.seed, item)
        )
