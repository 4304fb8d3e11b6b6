"""Merkle tree with Solana's conventions: leaf prefix 0, node prefix 1, an odd node is paired with itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence


def compute_leaf(data: bytes | memoryview) -> bytes:
    """Hash of a leaf; its bytes are not copied."""
    hasher = hashlib.sha256(b"\0")
    hasher.update(data)
    return hasher.digest()


def _compute_parents(level: Sequence[bytes]) -> list[bytes]:
    return [
        hashlib.sha256(b"\1" + level[i] + level[min(i + 1, len(level) - 1)]).digest()
        for i in range(0, len(level), 2)
    ]


def compute_levels(hashes: Sequence[bytes]) -> list[Sequence[bytes]]:
    """All levels of the tree, from the hashes of the leaves to the root; ValueError without any."""
    if not hashes:
        raise ValueError("a Merkle tree needs at least one leaf")
    levels = [hashes]
    while len(levels[-1]) > 1:
        levels.append(_compute_parents(levels[-1]))
    return levels


def compute_changed_root(levels: Sequence[Sequence[bytes]], changes: Mapping[int, bytes]) -> bytes:
    """Root when some leaves have other hashes: by index, at least one. Only their paths are hashed."""
    nodes = changes
    for level in levels[:-1]:
        parents: dict[int, bytes] = {}
        for left in {index & ~1 for index in nodes}:
            right = min(left + 1, len(level) - 1)
            pair = nodes.get(left, level[left]) + nodes.get(right, level[right])
            parents[left // 2] = hashlib.sha256(b"\1" + pair).digest()
        nodes = parents
    return nodes[0]


def get_path(levels: Sequence[Sequence[bytes]], index: int) -> list[bytes]:
    """Siblings from the leaf at ``index`` up to the root."""
    path = []
    for level in levels[:-1]:
        path.append(level[min(index ^ 1, len(level) - 1)])
        index //= 2
    return path


def compute_merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf data (not yet hashed). Raises ValueError without leaves."""
    return compute_levels([compute_leaf(leaf) for leaf in leaves])[-1][0]


def compute_merkle_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Siblings from the leaf at ``index`` up to the root."""
    return get_path(compute_levels([compute_leaf(leaf) for leaf in leaves]), index)


def is_merkle_path_valid(root: bytes, leaf: bytes | memoryview, index: int, path: Sequence[bytes]) -> bool:
    """Whether ``path`` leads from ``leaf`` at ``index`` to ``root``."""
    node = compute_leaf(leaf)
    for sibling in path:
        pair = sibling + node if index & 1 else node + sibling
        node = hashlib.sha256(b"\1" + pair).digest()
        index //= 2
    return node == root and index == 0
