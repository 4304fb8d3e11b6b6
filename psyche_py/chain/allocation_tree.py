"""The Merkle sum tree of an airdrop's list, as ``programs/distributor/src/merkle.rs`` checks it.

A node is (hash, amount): the amount is the sum of the allocations below. A leaf hashes the byte 0 and an
allocation's 60 bytes; an inner node hashes the byte 1 and both children, hash and amount, the smaller first.
Leaves are in the order of their hashes, so a list has one root, however its lines are sorted; a node without
a partner goes up a level as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

from solders.pubkey import Pubkey

from psyche_py.chain.allocations import U64_MAX, Allocation
from psyche_py.errors import UsageError

MAX_LEVELS = 18
"""The longest proof that fits into a transaction beside a priority fee; 16 if another wallet pays the fee."""

Node = tuple[bytes, int]


def compute_leaf(allocation: Allocation) -> Node:
    """The leaf of an allocation."""
    return hashlib.sha256(b"\0" + allocation.to_bytes()).digest(), allocation.amount


def compute_parent(one: Node, other: Node) -> Node:
    """The inner node over two nodes. Raises OverflowError when their sum is beyond 64 bits."""
    parts = [hash_ + amount.to_bytes(8, "little") for hash_, amount in sorted((one, other))]
    total = one[1] + other[1]
    total.to_bytes(8, "little")
    return hashlib.sha256(b"\1" + parts[0] + parts[1]).digest(), total


class AllocationTree:
    """The list of an airdrop, which can prove each of its lines.

    Raises UsageError when the list is empty, has a wallet and nonce twice, is longer than 2**18 lines, or
    promises more than 64 bits hold.
    """

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        self.allocations = tuple(allocations)
        if not 0 < len(self.allocations) <= 1 << MAX_LEVELS:
            raise UsageError(
                f"An airdrop has 1 to {1 << MAX_LEVELS} allocations, not {len(self.allocations)}.",
                "Make several airdrops.",
            )
        if len({(item.wallet, item.nonce) for item in self.allocations}) != len(self.allocations):
            raise UsageError("A wallet and nonce are in the list twice.", "Give its lines different nonces.")
        if sum(item.amount for item in self.allocations) > U64_MAX:
            raise UsageError(
                f"The allocations add up to more than {U64_MAX}.", "No token has so many base units."
            )
        self._levels = _build_levels(sorted(compute_leaf(item) for item in self.allocations))

    @property
    def merkle_root(self) -> bytes:
        """32 bytes."""
        return self._levels[-1][0][0]

    @property
    def total_amount(self) -> int:
        """Base units that the list promises in all."""
        return self._levels[-1][0][1]

    @property
    def num_levels(self) -> int:
        """Siblings in the longest proof."""
        return len(self._levels) - 1

    @property
    def last_end(self) -> int:
        """Unix second at which the last allocation has vested."""
        return max(item.end for item in self.allocations)

    def find(self, wallet: Pubkey) -> list[Allocation]:
        """The lines of a wallet, by nonce."""
        return sorted((item for item in self.allocations if item.wallet == wallet), key=lambda a: a.nonce)

    def get_proof(self, allocation: Allocation) -> bytes:
        """The siblings from the leaf up, 40 bytes each: hash, amount u64. Raises KeyError for a stranger."""
        index = self._positions[compute_leaf(allocation)]
        proof = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                hash_, amount = level[index ^ 1]
                proof.append(hash_ + amount.to_bytes(8, "little"))
            index //= 2
        return b"".join(proof)

    @cached_property
    def _positions(self) -> dict[Node, int]:
        return {leaf: index for index, leaf in enumerate(self._levels[0])}


def _build_levels(leaves: list[Node]) -> list[list[Node]]:
    """From the leaves to the root."""
    levels = [leaves]
    while len(level := levels[-1]) > 1:
        pairs = range(0, len(level) - 1, 2)
        parents = [compute_parent(level[i], level[i + 1]) for i in pairs]
        levels.append(parents + level[len(level) & ~1 :])
    return levels
