"""How the messages of tiles become bits: a fixed number of them, within 1 % of what counting demands.

A tile's code (see combinatorics) is a number below P, followed by one sign bit per coefficient. P is seldom a
power of two; for few coefficients rounding its bits up would cost more than 1 % (a single one of 4,096 needs
12.0004 bits). Such tiles are coded in blocks: the low ``low_bits`` of each code stand as they are, the rest
is one digit, below ``radix``, of a number that the block's tiles share.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from psyche_py.distro.combinatorics import get_subset_code

MAX_BLOCK_TILES = 16
# The shared number must fit an int64.
_MAX_SHARED_BITS = 62
_SLACK = Fraction(251, 250)


class TileCode:
    """The code of tiles of ``n`` coefficients of which at most ``k`` are sent.

    low_bits      bits of a tile's code that stand alone
    radix         number of digits above them; 1 when all bits stand alone
    high_bits     width of one digit
    block_tiles   tiles that share a number
    block_bits    width of a whole block: per tile ``low_bits`` and ``k`` signs, then the shared number
    """

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k
        self.subsets = get_subset_code(n, k)
        num_codes = self.subsets.num_codes
        self.block_tiles, self.low_bits = _choose_block(num_codes, k)
        self.radix = -(-num_codes // (1 << self.low_bits))
        self.high_bits = (self.radix - 1).bit_length()
        self.block_bits = self.compute_num_bits(self.block_tiles)

    def compute_num_bits(self, num_tiles: int) -> int:
        """Width of ``num_tiles`` tiles; the last block may have fewer than ``block_tiles``."""
        blocks, rest = divmod(num_tiles, self.block_tiles)
        bits = num_tiles * (self.low_bits + self.k)
        return bits + blocks * self.get_shared_bits(self.block_tiles) + self.get_shared_bits(rest)

    def get_shared_bits(self, num_tiles: int) -> int:
        """Width of the number that ``num_tiles`` tiles of one block share."""
        return _compute_shared_bits(self.radix, num_tiles)


@lru_cache(maxsize=1024)
def _compute_shared_bits(radix: int, num_tiles: int) -> int:
    number: int = radix**num_tiles - 1
    return number.bit_length()


def _choose_block(num_codes: int, num_signs: int) -> tuple[int, int]:
    """(block_tiles, low_bits): the smallest block within 1/250 of the best of all."""
    alone = (num_codes - 1).bit_length()
    best_by_size = {1: (Fraction(alone), alone)}
    for size in range(2, MAX_BLOCK_TILES + 1):
        choices = []
        for low_bits in range(num_codes.bit_length()):
            shared = _compute_shared_bits(-(-num_codes // (1 << low_bits)), size)
            if shared <= _MAX_SHARED_BITS:
                choices.append((Fraction(size * low_bits + shared, size), low_bits))
        if choices:
            best_by_size[size] = min(choices)
    limit = (min(bits for bits, _ in best_by_size.values()) + num_signs) * _SLACK
    return next(
        (size, low) for size, (bits, low) in sorted(best_by_size.items()) if bits + num_signs <= limit
    )


@lru_cache(maxsize=256)
def get_tile_code(n: int, k: int) -> TileCode:
    """The shared code for ``k`` of ``n``."""
    return TileCode(n, k)
