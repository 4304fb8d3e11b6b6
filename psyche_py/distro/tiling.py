"""Which tile a tensor is cut into, and which tensors share one. Integers only: every replica must agree.

The aim is one price for everything: no tensor may cost more than 1.5 times the bits per element of a
``chunk`` x ``chunk`` tile, whatever its shape.

* A matrix is cut into ``chunk`` x ``chunk`` tiles, padded with zeros at the lower and right edge, if padding
  costs at most 1/16. Otherwise sides near ``chunk`` are tried (and, for a short side, a longer other one):
  the tile whose density of coefficients is nearest to the nominal wins.
* A tile of another area sends proportionally more or fewer coefficients, at least one.
* Vectors, and matrices too small or too narrow for that, are laid end to end in the order of their names and
  cut as the rows of one matrix, the pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

MAX_PADDING = Fraction(1, 16)
MAX_DENSITY = Fraction(3, 2)
# Shorter sides make long partners: 16 goes with 256, which doubles the work of the transform.
MIN_SIDE_DIVISOR = 4


class Tile(NamedTuple):
    """Sides of a tile, and its density of coefficients over the nominal ``topk / chunk**2``."""

    height: int
    width: int
    density: Fraction


def compute_topk(height: int, width: int, chunk: int, topk: int) -> int:
    """Coefficients that a tile sends: ``topk`` scaled by its area, at least 1, at most all."""
    area = height * width
    return min(max(1, topk * area // chunk**2), area)


def compute_density(
    height: int, width: int, num_tiles: int, num_elements: int, chunk: int, topk: int
) -> Fraction:
    """Coefficients per element, padding paid for, over the nominal ``topk / chunk**2``."""
    sent = num_tiles * compute_topk(height, width, chunk, topk)
    return Fraction(sent * chunk**2, topk * num_elements)


def get_matrix_shape(shape: Sequence[int], chunk: int) -> tuple[int, int]:
    """A tensor of two or more dimensions as a matrix: where it is cut in two, both sides should be long.

    [768, 3072] stays; experts [8, 768, 3072] become [6144, 3072]; a convolution [64, 32, 3, 3] [64, 288].
    """
    splits = [
        (math.prod(shape[:i]), math.prod(shape[i:]))
        for i in range(len(shape) - 1, 0, -1)  # the last dimension as columns first
    ]
    return max(splits, key=lambda split: min(*split, chunk))


def choose_matrix_tile(rows: int, cols: int, chunk: int, topk: int) -> Tile | None:
    """The tile of a matrix, or None when none keeps the price: the matrix belongs into the pool."""

    def get_density(height: int, width: int) -> Fraction:
        num_tiles = -(-rows // height) * -(-cols // width)
        return compute_density(height, width, num_tiles, rows * cols, chunk, topk)

    nominal = get_density(chunk, chunk)
    if nominal <= 1 + MAX_PADDING:
        return Tile(chunk, chunk, nominal)
    found = []
    for height, width in sorted(set(_get_candidates(rows, cols, chunk))):
        density = get_density(height, width)
        is_usable = min(height, width) * MIN_SIDE_DIVISOR >= chunk and 2 * height * width <= 3 * chunk**2
        if is_usable and density <= MAX_DENSITY:
            found.append(Tile(height, width, density))
    return min(found, key=lambda tile: _get_preference(tile, chunk), default=None)


def choose_pool_tile(num_elements: int, chunk: int, topk: int) -> Tile:
    """The tile of a pool, laid in rows of ``chunk`` elements (of all, when there are fewer)."""
    width = min(chunk, num_elements)
    rows = -(-num_elements // width)
    bands = max(1, rows // chunk)
    heights = {chunk, *(-(-rows // n) for n in (bands, bands + 1))} if rows > chunk else {rows}
    tiles = [
        Tile(height, width, compute_density(height, width, -(-rows // height), num_elements, chunk, topk))
        for height in sorted(heights)
    ]
    usual = [tile for tile in tiles if tile.height == chunk and tile.density <= 1 + MAX_PADDING]
    return usual[0] if usual else min(tiles, key=lambda tile: _get_preference(tile, chunk))


def _get_preference(tile: Tile, chunk: int) -> tuple[Fraction, int, int, int]:
    """Nearest to the nominal density; then to the nominal area; then the cheaper transform."""
    area, sides = tile.height * tile.width, tile.height + tile.width
    return max(tile.density, 1 / tile.density), abs(area - chunk**2), sides, tile.height


def _get_candidates(rows: int, cols: int, chunk: int) -> Iterator[tuple[int, int]]:
    for height in _get_sides(rows, Fraction(chunk)):
        for target in (Fraction(chunk), Fraction(chunk**2, height)):
            for width in _get_sides(cols, target):
                yield height, width
    for width in _get_sides(cols, Fraction(chunk)):
        for height in _get_sides(rows, Fraction(chunk**2, width)):
            yield height, width


def _get_sides(n: int, target: Fraction) -> set[int]:
    """Sides on either side of ``target`` that cut ``n`` into equal parts with the least padding."""
    fewer = max(1, int(n / target))
    return {-(-n // fewer), -(-n // (fewer + 1))}
