"""The Merkle tree over a trainer's momentum, whose root is part of its commitment.

    leaf of tile t   sha256(0 || float32 values of the tile, little-endian, row-major, DCT domain)
    root             over the leaves in the order of tile numbers (coordinator/merkle.py)

All tiles of the model are leaves, so every reveal has the same length and nothing about the draw has to be
known when the root is made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch

from psyche_py.coordinator.merkle import compute_leaf, compute_levels, get_path
from psyche_py.distro.layout import PayloadLayout
from psyche_py.verify.errors import VerificationError
from psyche_py.verify.tiles import Block, FloatArray, TileMap, iterate_blocks


class MomentumSnapshot:
    """A copy of the momentum of one step with its tree: what a trainer keeps until nobody can ask any more.

    layout:       of the model's payloads
    momentum:     float32 [num_stored], from ``DistroOptimizer.momentum``, on any device
    num_threads:  that copy and hash side by side; hashing leaves Python's lock
    into:         an older snapshot of the same layout whose memory is taken over; it must not be used again
    """

    def __init__(
        self,
        layout: PayloadLayout,
        momentum: torch.Tensor,
        num_threads: int = 1,
        into: MomentumSnapshot | None = None,
    ) -> None:
        buffer: FloatArray = momentum.detach().cpu().numpy()
        if buffer.shape != (layout.num_stored,) or buffer.dtype != np.float32:
            raise VerificationError("The momentum is not of this layout.")
        self.layout = layout
        self._map = TileMap(layout)
        self.values: FloatArray = np.empty_like(buffer) if into is None else into.values
        blocks = list(iterate_blocks(layout))
        if num_threads > 1:
            with ThreadPoolExecutor(num_threads) as pool:
                hashes = list(pool.map(lambda block: self._take(buffer, block), blocks))
        else:
            hashes = [self._take(buffer, block) for block in blocks]
        self._levels = compute_levels([leaf for part in hashes for leaf in part])

    def _take(self, buffer: FloatArray, block: Block) -> list[bytes]:
        """Copy a block and hash its tiles while they are in the cache."""
        block.copy(buffer, self.values)
        tiles = self.values[block.elements].reshape(block.num_tiles, -1)
        return [compute_leaf(get_leaf_bytes(tile)) for tile in tiles]

    @property
    def root(self) -> bytes:
        """32 bytes."""
        return self._levels[-1][0]

    def get_tile(self, tile: int) -> FloatArray:
        """Values [height * width] of a tile. Raises IndexError."""
        return self.values[self._map.get_place(tile).values]

    def get_path(self, tile: int) -> Sequence[bytes]:
        """Siblings from the tile's leaf to the root. Raises IndexError."""
        self._map.get_place(tile)
        return get_path(self._levels, tile)


def get_leaf_bytes(tile: FloatArray) -> memoryview:
    """The bytes that a tile's leaf hashes."""
    if sys.byteorder == "big":
        tile = tile.byteswap()
    return np.ascontiguousarray(tile).view(np.uint8).data


def compute_path_length(layout: PayloadLayout) -> int:
    """Siblings in the path of every tile."""
    return (layout.num_tiles - 1).bit_length()


@lru_cache(maxsize=8)
def compute_zero_root(layout: PayloadLayout) -> bytes:
    """The root of momentum that is zero everywhere: what a trainer starts from."""
    hashes: list[bytes] = []
    for group in layout.groups:
        hashes += [compute_leaf(bytes(4 * group.tile_size))] * group.num_tiles
    return compute_levels(hashes)[-1][0]
