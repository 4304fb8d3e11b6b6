"""One magnitude for a tile, in a byte: integers on a logarithmic scale, so that sums of them are exact.

    magnitude(b) = floor(2 ** (b / 8 + 8)) * 2 ** -40       b = 1 .. 255;  0: the tile says nothing

from 2.5e-10 to just under 1, neighbours 9 % apart. The table is of Python integers: it is the same
everywhere, and so is every sum of its entries, which stays below 2**53 for 4,096 messages.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CODES_PER_OCTAVE = 8
_LOWEST_EXPONENT, _UNIT_EXPONENT = 8, -40
UNIT = 2.0**_UNIT_EXPONENT
MAX_CODE = 255

IntArray = npt.NDArray[np.int64]


def _compute_eighth_root(value: int) -> int:
    """floor(value ** (1/8)): the floor of a root of a floor is the floor of the root."""
    return math.isqrt(math.isqrt(math.isqrt(value)))


MAGNITUDES: IntArray = np.array(
    [0] + [_compute_eighth_root(1 << (code + CODES_PER_OCTAVE * _LOWEST_EXPONENT)) for code in range(1, 256)],
    dtype=np.int64,
)
"""In units of ``UNIT``, by code; strictly ascending."""


def count_units(limit: float) -> int:
    """The largest whole number of units that is not above ``limit`` (at least 0, finite), nor above 1.

    No magnitude is above that, and it fits the integers that it is compared with.
    """
    return math.floor(math.ldexp(min(limit, 1.0), -_UNIT_EXPONENT))


def choose_codes(magnitudes: Tensor, limit: float) -> Tensor:
    """The nearest codes (int64, same shape) of ``magnitudes`` (float32, at least 0) whose value is at most
    ``limit``; 0 for what is below the smallest.

    Local: two machines may choose differently, but both then send what they chose.
    """
    octaves = torch.log2(magnitudes.double()) - (_UNIT_EXPONENT + _LOWEST_EXPONENT)
    codes = (CODES_PER_OCTAVE * octaves).round_().clamp_(0, MAX_CODE)  # log2(0) is -inf, and that is 0
    highest = int(np.searchsorted(MAGNITUDES, count_units(limit), side="right")) - 1
    return codes.clamp_(max=highest).to(torch.int64)
