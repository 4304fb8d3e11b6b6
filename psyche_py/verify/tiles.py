"""Tiles by one number, and a flat buffer of the optimizer as tiles.

A tile's number counts through the groups of a payload layout, in each through its slots, row by row: the
order in which a payload codes them. "Tile-major" is the order of buffers here: a tile's values are adjacent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psyche_py.distro.layout import PayloadLayout, Slot, TileGroup

FloatArray = npt.NDArray[np.float32]
# Rows of tiles that one thread copies or hashes at a time stay in its cache.
_BLOCK_ELEMENTS = 1 << 17


class Place(NamedTuple):
    """Where a tile is: its group, its number in the group, and its values in a tile-major buffer."""

    group_index: int
    group: TileGroup
    tile: int
    values: slice


class TileMap:
    """Places of all tiles of a layout."""

    def __init__(self, layout: PayloadLayout) -> None:
        self.num_tiles = layout.num_tiles
        self._groups = layout.groups
        self._first_tiles = []
        first = 0
        for group in layout.groups:
            self._first_tiles.append(first)
            first += group.num_tiles

    def get_place(self, tile: int) -> Place:
        """Raises IndexError for a number that no tile has."""
        if not 0 <= tile < self.num_tiles:
            raise IndexError(f"tile {tile} of {self.num_tiles}")
        i = bisect_right(self._first_tiles, tile) - 1
        group = self._groups[i]
        number = tile - self._first_tiles[i]
        first = group.first_element + number * group.tile_size
        return Place(i, group, number, slice(first, first + group.tile_size))


class Block(NamedTuple):
    """Some rows of tiles of a slot: in both orders they are the same ``elements`` of the buffer."""

    slot: Slot
    elements: slice
    bands: int

    @property
    def num_tiles(self) -> int:
        """Tiles of the block."""
        return self.bands * self.slot.across

    def copy(self, buffer: FloatArray, out: FloatArray) -> None:
        """Copy the block into its place in ``out``."""
        slot = self.slot
        rows = buffer[self.elements].reshape(self.bands, slot.height, slot.across, slot.width)
        tiles = out[self.elements].reshape(self.bands, slot.across, slot.height, slot.width)
        np.copyto(tiles, rows.transpose(0, 2, 1, 3))


def iterate_blocks(layout: PayloadLayout) -> Iterator[Block]:
    """All tiles of a model, in order, in blocks of about half a megabyte."""
    for group in layout.groups:
        for slot in group.slots:
            band_size = slot.height * slot.padded_shape[1]
            step = max(1, _BLOCK_ELEMENTS // band_size)
            for band in range(0, slot.bands, step):
                num_bands = min(step, slot.bands - band)
                first = group.first_element + slot.first_element + band * band_size
                yield Block(slot, slice(first, first + num_bands * band_size), num_bands)


def cut_tiles(layout: PayloadLayout, buffer: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """The optimizer's buffer [num_stored] in tile-major order, in ``out`` when it is given."""
    result = np.empty_like(buffer) if out is None else out
    for block in iterate_blocks(layout):
        block.copy(buffer, result)
    return result
