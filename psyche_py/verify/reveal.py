"""A trainer's answer to "show me these tiles before and after the step": values and Merkle paths, as bytes.

    header    16 bytes   magic "DTRV", version u16 LE = 1, number of tiles u16 LE, layout digest (8 bytes)
    tiles                for each tile asked for, in that order: values before, values after (float32 LE),
                         path before, path after (32 bytes per level, from the leaf's sibling upwards)

The length follows from the layout and the tiles asked for, so a wrong one is rejected before anything is
read; which tiles they are follows from the draw and is not repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from psyche_py.coordinator.commitment import HASH_BYTES
from psyche_py.coordinator.merkle import is_merkle_path_valid
from psyche_py.distro.layout import PayloadLayout
from psyche_py.verify.commit import MomentumSnapshot, compute_path_length, get_leaf_bytes
from psyche_py.verify.errors import RevealError, VerificationError
from psyche_py.verify.tiles import FloatArray, TileMap

MAGIC = b"DTRV"
VERSION = 1
HEADER_BYTES = 16
MAX_TILES = 4096


@dataclass(frozen=True)
class TileReveal:
    """One tile: float32 [height * width] before and after, and the paths to the two roots."""

    tile: int
    before: FloatArray
    after: FloatArray
    before_path: tuple[bytes, ...]
    after_path: tuple[bytes, ...]

    def is_proven(self, before_root: bytes | None, after_root: bytes) -> bool:
        """Whether these are the values that the trainer committed to; before only where the root is known."""
        sides = [(after_root, self.after, self.after_path)]
        if before_root is not None:
            sides.append((before_root, self.before, self.before_path))
        return all(
            is_merkle_path_valid(root, get_leaf_bytes(values), self.tile, path)
            for root, values, path in sides
        )


def compute_reveal_bytes(layout: PayloadLayout, tiles: Sequence[int]) -> int:
    """Length of a reveal of these tiles."""
    tile_map, path_bytes = TileMap(layout), HASH_BYTES * compute_path_length(layout)
    sizes = [tile_map.get_place(tile).group.tile_size for tile in tiles]
    return HEADER_BYTES + sum(2 * (4 * size + path_bytes) for size in sizes)


def encode_reveal(before: MomentumSnapshot, after: MomentumSnapshot, tiles: Sequence[int]) -> bytes:
    """The answer for ``tiles``. Raises VerificationError for too many, IndexError for one that is none."""
    layout = after.layout
    parts = [_make_header(layout, tiles)]
    for tile in tiles:
        parts += [bytes(get_leaf_bytes(before.get_tile(tile))), bytes(get_leaf_bytes(after.get_tile(tile)))]
        parts += [*before.get_path(tile), *after.get_path(tile)]
    return b"".join(parts)


def decode_reveal(layout: PayloadLayout, tiles: Sequence[int], data: bytes) -> list[TileReveal]:
    """Read the answer to a question for ``tiles``; proofs are not checked here.

    Raises RevealError for another length, another header, and values that are not finite.
    """
    expected = compute_reveal_bytes(layout, tiles)
    if len(data) != expected:
        raise RevealError(f"A reveal of these {len(tiles)} tiles has {expected} bytes, not {len(data)}.")
    if data[:HEADER_BYTES] != _make_header(layout, tiles):
        raise RevealError("The reveal is of another version, another model or another number of tiles.")
    tile_map, num_levels = TileMap(layout), compute_path_length(layout)
    result, place = [], HEADER_BYTES
    for tile in tiles:
        size = tile_map.get_place(tile).group.tile_size
        values = np.frombuffer(data, dtype="<f4", count=2 * size, offset=place).astype(np.float32)
        if not np.isfinite(values).all():
            raise RevealError(f"Tile {tile} holds values that are not finite.")
        place += 8 * size
        end = place + 2 * num_levels * HASH_BYTES
        path = [data[i : i + HASH_BYTES] for i in range(place, end, HASH_BYTES)]
        place = end
        halves = tuple(path[:num_levels]), tuple(path[num_levels:])
        result.append(TileReveal(tile, values[:size], values[size:], *halves))
    return result


def _make_header(layout: PayloadLayout, tiles: Sequence[int]) -> bytes:
    if not 1 <= len(tiles) <= MAX_TILES:
        raise VerificationError(f"A reveal has 1 to {MAX_TILES} tiles, not {len(tiles)}.")
    return MAGIC + struct.pack("<HH", VERSION, len(tiles)) + layout.digest
