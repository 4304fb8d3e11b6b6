"""Merkle tree with Solana's conventions: leaf prefix 0, node prefix 1, an odd node is paired with itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def compute_leaf(data: bytes) -> bytes:
    """Hash of a leaf."""
    return hashlib.sha256(b"\0" + data).digest()


def _compute_parents(level: Sequence[bytes]) -> list[bytes]:
    return [
        hashlib.sha256(b"\1" + level[i] + level[min(i + 1, len(level) - 1)]).digest()
        for i in range(0, len(level), 2)
    ]


def compute_merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf data (not yet hashed). Raises ValueError without leaves."""
    if not leaves:
        raise ValueError("a Merkle tree needs at least one leaf")
    level = [compute_leaf(leaf) for leaf in leaves]
    while len(level) > 1:
        level = _compute_parents(level)
    return level[0]


def compute_merkle_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Siblings from the leaf at ``index`` up to the root."""
    level = [compute_leaf(leaf) for leaf in leaves]
    path = []
    while len(level) > 1:
        path.append(level[min(index ^ 1, len(level) - 1)])
        level = _compute_parents(level)
        index //= 2
    return path


def is_merkle_path_valid(root: bytes, leaf: bytes, index: int, path: Sequence[bytes]) -> bool:
    """Whether ``path`` leads from ``leaf`` at ``index`` to ``root``."""
    node = compute_leaf(leaf)
    for sibling in path:
        pair = sibling + node if index & 1 else node + sibling
        node = hashlib.sha256(b"\1" + pair).digest()
        index //= 2
    return node == root and index == 0
