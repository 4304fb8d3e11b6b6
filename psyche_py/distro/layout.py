"""How a model's tensors are cut into tiles, and where each tile's code lies in a payload. No torch here.

Every tensor is read as a matrix: 2-D as it is, more dimensions with the leading ones folded into the rows,
1-D as one row. A side of length n is cut into its largest divisor that is at most ``compression_chunk``.
Tiles of one shape form a group; groups are ordered by (height, width), tensors by name, tiles row by row.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psyche_py.distro.combinatorics import SubsetCode, get_subset_code
from psyche_py.distro.config import DistroConfig

_LAYOUT_DOMAIN = b"psyche-py/distro-layout/1"
HEADER_BYTES = 16
NARROW_SIDE = 16


def get_tile_side(n: int, chunk: int) -> int:
    """Largest divisor of ``n`` that is at most ``chunk``: 768 -> 64, 704 -> 64, 50257 -> 29, a prime -> 1."""
    return next(side for side in range(min(n, chunk), 0, -1) if n % side == 0)


@dataclass(frozen=True)
class Slot:
    """One tensor as a matrix [rows, cols] of tiles [height, width], and its place in its group."""

    name: str
    shape: tuple[int, ...]
    rows: int
    cols: int
    height: int
    width: int
    first_tile: int
    first_element: int

    @property
    def num_tiles(self) -> int:
        """Tiles of this tensor."""
        return self.rows * self.cols // (self.height * self.width)

    @property
    def num_elements(self) -> int:
        """Elements of this tensor."""
        return self.rows * self.cols


@dataclass(frozen=True)
class TileGroup:
    """All tiles of one shape. Their codes are one run of ``num_bytes`` bytes at ``first_byte`` of a payload.

    topk:           coefficients per tile, ``compression_topk`` clamped to the tile
    first_element:  place of the group in the optimizer's flat momentum buffer
    """

    height: int
    width: int
    topk: int
    slots: tuple[Slot, ...]
    num_tiles: int
    first_element: int
    first_byte: int

    @property
    def tile_size(self) -> int:
        """Coefficients in a tile."""
        return self.height * self.width

    @property
    def num_elements(self) -> int:
        """Elements of all tensors of the group."""
        return self.num_tiles * self.tile_size

    @property
    def code(self) -> SubsetCode:
        """The code of one tile's positions."""
        return get_subset_code(self.tile_size, self.topk)

    @property
    def bits_per_tile(self) -> int:
        """Width of one tile on the wire: its code, then ``topk`` sign bits."""
        return self.code.num_bits + self.topk

    @property
    def num_bytes(self) -> int:
        """Bytes of the group on the wire, the last one padded with zero bits."""
        return -(-self.num_tiles * self.bits_per_tile // 8)


@dataclass(frozen=True)
class PayloadLayout:
    """The shape of every payload of one model: a pure function of names, shapes, top-k and chunk.

    num_bytes:  exact length of a payload
    digest:     8 bytes in every payload's header; differs when names, shapes, top-k or chunk differ
    """

    groups: tuple[TileGroup, ...]
    num_elements: int
    num_bytes: int
    digest: bytes

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, Sequence[int]], config: DistroConfig) -> PayloadLayout:
        """Lay out tensors given by name and shape. Raises ConfigError when a tile's code is too large."""
        chunk = config.compression_chunk
        members: dict[tuple[int, int], list[tuple[str, tuple[int, ...]]]] = {}
        for name in sorted(shapes):
            shape = tuple(shapes[name])
            if math.prod(shape) == 0:
                continue
            height = get_tile_side(shape[-2], chunk) if len(shape) >= 2 else 1
            members.setdefault((height, get_tile_side(_get_matrix(shape)[1], chunk)), []).append(
                (name, shape)
            )
        groups: list[TileGroup] = []
        first_element, first_byte = 0, HEADER_BYTES
        for (height, width), tensors in sorted(members.items()):
            slots = tuple(_place_slots(tensors, height, width))
            num_tiles = sum(slot.num_tiles for slot in slots)
            topk = min(config.compression_topk, height * width)
            group = TileGroup(height, width, topk, slots, num_tiles, first_element, first_byte)
            groups.append(group)
            first_element += group.num_elements
            first_byte += group.num_bytes
        return cls(tuple(groups), first_element, first_byte, _compute_digest(shapes, config))

    @property
    def num_tiles(self) -> int:
        """Tiles of the whole model."""
        return sum(group.num_tiles for group in self.groups)

    def get_narrow_names(self) -> list[str]:
        """Names of matrices with a tile side below 16 although the dimension is longer.

        Such a tensor (a vocabulary of prime size, say) costs up to ``chunk`` times the payload per element;
        padding the dimension to a multiple of the chunk mends it.
        """
        return sorted(
            slot.name
            for group in self.groups
            for slot in group.slots
            if len(slot.shape) >= 2
            and ((slot.height < min(NARROW_SIDE, slot.shape[-2])) or slot.width < min(NARROW_SIDE, slot.cols))
        )


def _get_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    cols = shape[-1] if shape else 1
    return math.prod(shape) // cols, cols


def _place_slots(tensors: Iterable[tuple[str, tuple[int, ...]]], height: int, width: int) -> Iterable[Slot]:
    first_tile = 0
    for name, shape in tensors:
        rows, cols = _get_matrix(shape)
        slot = Slot(name, shape, rows, cols, height, width, first_tile, first_tile * height * width)
        first_tile += slot.num_tiles
        yield slot


def _compute_digest(shapes: Mapping[str, Sequence[int]], config: DistroConfig) -> bytes:
    hasher = hashlib.sha256(_LAYOUT_DOMAIN)
    hasher.update(struct.pack("<HHI", config.compression_topk, config.compression_chunk, len(shapes)))
    for name in sorted(shapes):
        encoded, shape = name.encode(), tuple(shapes[name])
        hasher.update(struct.pack("<II", len(encoded), len(shape)) + encoded)
        hasher.update(struct.pack(f"<{len(shape)}Q", *shape))
    return hasher.digest()[:8]
