"""How a model's tensors are cut into tiles, and where each tile's code lies in a payload. No torch here.

``tiling`` says which tile a tensor gets. What is tiled as one matrix is a slot: a tensor, or the pool of all
small ones. Tiles of one shape form a group; groups are ordered by (height, width), slots by name (the pool's
is empty, so it comes first), tiles row by row.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.tilecode import TileCode, get_tile_code
from psyche_py.distro.tiling import (
    MAX_DENSITY,
    Tile,
    choose_matrix_tile,
    choose_pool_tile,
    compute_topk,
    get_matrix_shape,
)

_LAYOUT_DOMAIN = b"psyche-py/distro-layout/2"
HEADER_BYTES = 16
METHOD_DCT_SIGNS, METHOD_LOCAL_STEPS = 1, 2
"""What the header of a payload calls its content, see ``payload``."""
POOL_NAME = ""


@dataclass(frozen=True)
class Member:
    """One tensor of a slot: elements ``first .. first + num_elements`` of its matrix, row by row."""

    name: str
    shape: tuple[int, ...]
    first: int

    @property
    def num_elements(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Slot:
    """A matrix [rows, cols] cut into tiles [height, width], and its place in its group.

    name:           the tensor's, or "" for the pool
    members:        the tensors in it; together they may end before the matrix does (a pool's last row)
    first_tile:     its first tile among those of the group
    first_element:  its first element in the group's buffer, where it lies padded to whole tiles
    """

    name: str
    members: tuple[Member, ...]
    rows: int
    cols: int
    height: int
    width: int
    first_tile: int
    first_element: int

    @property
    def bands(self) -> int:
        """Rows of tiles."""
        return -(-self.rows // self.height)

    @property
    def across(self) -> int:
        """Tiles in a row of tiles."""
        return -(-self.cols // self.width)

    @property
    def num_tiles(self) -> int:
        """Tiles of this slot."""
        return self.bands * self.across

    @property
    def padded_shape(self) -> tuple[int, int]:
        """Rows and columns in whole tiles."""
        return self.bands * self.height, self.across * self.width

    @property
    def num_elements(self) -> int:
        """Elements of its tensors."""
        return sum(member.num_elements for member in self.members)


@dataclass(frozen=True)
class TileGroup:
    """All tiles of one shape. Their codes are one run of ``num_bytes`` bytes at ``first_byte`` of a payload.

    topk:           coefficients per tile
    first_element:  place of the group in the optimizer's flat momentum buffer
    has_magnitudes: whether a byte for each tile follows the codes (see ``magnitudes``)
    """

    height: int
    width: int
    topk: int
    slots: tuple[Slot, ...]
    num_tiles: int
    first_element: int
    first_byte: int
    has_magnitudes: bool = False

    @property
    def tile_size(self) -> int:
        """Coefficients in a tile."""
        return self.height * self.width

    @property
    def num_stored(self) -> int:
        """Elements of the group's buffer, padding included."""
        return self.num_tiles * self.tile_size

    @property
    def code(self) -> TileCode:
        """How the tiles are written."""
        return get_tile_code(self.tile_size, self.topk)

    @property
    def num_code_bytes(self) -> int:
        """Bytes of the tiles' codes on the wire, the last one padded with zero bits."""
        return -(-self.code.compute_num_bits(self.num_tiles) // 8)

    @property
    def num_bytes(self) -> int:
        """Bytes of the group on the wire."""
        return self.num_code_bytes + (self.num_tiles if self.has_magnitudes else 0)


@dataclass(frozen=True)
class PayloadLayout:
    """The shape of every payload of one model: a function of names, shapes, top-k, chunk and local steps.

    num_elements:  elements of all tensors
    num_stored:    elements of the optimizer's momentum buffer: these and the padding
    num_bytes:     exact length of a payload
    digest:        8 bytes in every payload's header; differs when any of these differs
    method:        what the header calls the content: METHOD_DCT_SIGNS or METHOD_LOCAL_STEPS
    """

    groups: tuple[TileGroup, ...]
    num_elements: int
    num_stored: int
    num_bytes: int
    digest: bytes
    method: int

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, Sequence[int]], config: DistroConfig) -> PayloadLayout:
        """Lay out tensors given by name and shape. Raises ConfigError when a tile's code is too large."""
        chunk, topk = config.compression_chunk, config.compression_topk
        groups: list[TileGroup] = []
        first_element, first_byte = 0, HEADER_BYTES
        by_tile: dict[tuple[int, int], list[tuple[str, int, int, list[Member]]]] = {}
        for name, tile, rows, cols, members in _arrange(shapes, chunk, topk):
            by_tile.setdefault((tile.height, tile.width), []).append((name, rows, cols, members))
        for (height, width), matrices in sorted(by_tile.items()):
            slots, num_tiles = _place_slots(height, width, matrices)
            k = compute_topk(height, width, chunk, topk)
            place = (first_element, first_byte)
            group = TileGroup(height, width, k, slots, num_tiles, *place, has_magnitudes=config.is_local)
            groups.append(group)
            first_element += group.num_stored
            first_byte += group.num_bytes
        num_elements = sum(slot.num_elements for group in groups for slot in group.slots)
        digest = _compute_digest(shapes, config)
        method = METHOD_LOCAL_STEPS if config.is_local else METHOD_DCT_SIGNS
        return cls(tuple(groups), num_elements, first_element, first_byte, digest, method)

    @property
    def num_tiles(self) -> int:
        """Tiles of the whole model."""
        return sum(group.num_tiles for group in self.groups)

    def get_place(self, name: str) -> tuple[int, Slot]:
        """Number of the group and slot of a tensor; raises KeyError."""
        for i, group in enumerate(self.groups):
            for slot in group.slots:
                if any(member.name == name for member in slot.members):
                    return i, slot
        raise KeyError(name)

    def compute_bits_per_element(self, name: str) -> Fraction:
        """What a tensor costs on the wire, a member of the pool its share of the pool."""
        i, slot = self.get_place(name)
        code = self.groups[i].code
        tile_bits = Fraction(code.block_bits, code.block_tiles) + 8 * self.groups[i].has_magnitudes
        return slot.num_tiles * tile_bits / slot.num_elements


def _arrange(
    shapes: Mapping[str, Sequence[int]], chunk: int, topk: int
) -> list[tuple[str, Tile, int, int, list[Member]]]:
    """The slots of a model: (name, tile, rows, cols, members)."""
    matrices: dict[str, tuple[Tile, int, int]] = {}
    pooled: set[str] = set()
    for name, shape in shapes.items():
        if math.prod(shape) == 0:
            continue
        rows, cols = get_matrix_shape(shape, chunk) if len(shape) >= 2 else (1, 1)
        tile = choose_matrix_tile(rows, cols, chunk, topk) if len(shape) >= 2 else None
        if tile is None:
            pooled.add(name)
        else:
            matrices[name] = (tile, rows, cols)
    pool = _fill_pool(shapes, pooled, set(matrices), chunk, topk)
    slots = [
        (name, tile, rows, cols, [Member(name, tuple(shapes[name]), 0)])
        for name, (tile, rows, cols) in sorted(matrices.items())
        if name not in pooled
    ]
    return [pool, *slots] if pool else slots


def _fill_pool(
    shapes: Mapping[str, Sequence[int]], pooled: set[str], matrices: set[str], chunk: int, topk: int
) -> tuple[str, Tile, int, int, list[Member]] | None:
    """The pool of the tensors ``pooled``, which takes in the smallest matrices while it is too dear."""
    if not pooled:
        return None
    while True:
        num_elements = sum(math.prod(shapes[name]) for name in pooled)
        tile = choose_pool_tile(num_elements, chunk, topk)
        rest = matrices - pooled
        if tile.density <= MAX_DENSITY or not rest:
            break
        pooled.add(min(rest, key=lambda name: (math.prod(shapes[name]), name)))
    members, first = [], 0
    for name in sorted(pooled):
        member = Member(name, tuple(shapes[name]), first)
        members.append(member)
        first += member.num_elements
    return POOL_NAME, tile, -(-num_elements // tile.width), tile.width, members


def _place_slots(
    height: int, width: int, matrices: Sequence[tuple[str, int, int, list[Member]]]
) -> tuple[tuple[Slot, ...], int]:
    """Slots one after the other, and the number of their tiles."""
    slots, first_tile = [], 0
    for name, rows, cols, members in matrices:
        first_element = first_tile * height * width
        slot = Slot(name, tuple(members), rows, cols, height, width, first_tile, first_element)
        slots.append(slot)
        first_tile += slot.num_tiles
    return tuple(slots), first_tile


def _compute_digest(shapes: Mapping[str, Sequence[int]], config: DistroConfig) -> bytes:
    hasher = hashlib.sha256(_LAYOUT_DOMAIN)
    hasher.update(struct.pack("<HHI", config.compression_topk, config.compression_chunk, len(shapes)))
    for name in sorted(shapes):
        encoded, shape = name.encode(), tuple(shapes[name])
        hasher.update(struct.pack("<II", len(encoded), len(shape)) + encoded)
        hasher.update(struct.pack(f"<{len(shape)}Q", *shape))
    if config.is_local:
        hasher.update(struct.pack("<HH", METHOD_LOCAL_STEPS, config.local_steps))
    return hasher.digest()[:8]
