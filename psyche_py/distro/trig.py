"""Cosines with one answer everywhere, and the DCT tables made of them.

``math.cos`` differs in the last bit between C libraries. Tables and learning rates decide weights that every
replica must reach bit for bit, so they come from decimal arithmetic, which is fully specified.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534")
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def cos_pi(numerator: int, denominator: int) -> Decimal:
    """cos(pi * numerator / denominator) to more than 50 digits; the denominator is positive."""
    # Fold the angle into [0, pi/2] so that the series is short and symmetric entries are exactly equal.
    m = numerator % (2 * denominator)
    m = min(m, 2 * denominator - m)
    negative = 2 * m > denominator
    if negative:
        m = denominator - m
    if 2 * m == denominator:
        return Decimal(0)
    c = _CONTEXT
    x = c.divide(c.multiply(PI, Decimal(m)), Decimal(denominator))
    # Not the operators: they round to the precision of the caller's decimal context.
    minus_x2 = c.minus(c.multiply(x, x))
    term = total = Decimal(1)
    i = 0
    while term.copy_abs() > Decimal("1e-58"):
        i += 2
        term = c.divide(c.multiply(term, minus_x2), Decimal(i * (i - 1)))
        total = c.add(total, term)
    return total.copy_negate() if negative else total


@lru_cache(maxsize=64)
def _unit_cosines(n: int) -> tuple[tuple[Decimal, ...], ...]:
    """sqrt(n/2) times the orthonormal DCT-II of size n, [frequency][position]; row 0 is sqrt(1/2)."""
    by_angle = [cos_pi(m, 2 * n) for m in range(4 * n)]
    root = _CONTEXT.sqrt(Decimal("0.5"))
    rows = [tuple(root for _ in range(n))]
    rows += [tuple(by_angle[(2 * i + 1) * u % (4 * n)] for i in range(n)) for u in range(1, n)]
    return tuple(rows)


@lru_cache(maxsize=64)
def dct_matrix(n: int) -> FloatArray:
    """The orthonormal DCT-II as a matrix [n frequencies, n positions], float64, read-only.

    ``dct_matrix(n) @ x`` is ``scipy.fft.dct(x, norm="ortho")``.
    """
    scale = _CONTEXT.sqrt(_CONTEXT.divide(Decimal(2), Decimal(n)))
    if n == 1:
        table = np.ones((1, 1))
    else:
        table = np.array([[float(_CONTEXT.multiply(scale, x)) for x in row] for row in _unit_cosines(n)])
    table.setflags(write=False)
    return table


@lru_cache(maxsize=256)
def integer_dct_matrix(n: int, bits: int) -> IntArray:
    """round(2**bits * sqrt(n/2) * DCT) as integers [n frequencies, n positions], all within +-2**bits.

    The common positive factor does not change the sign of an inverse transform, and only the sign is used.
    A side of length 1 needs no table: it is [[1]] for every ``bits``.
    """
    if n == 1:
        table = np.ones((1, 1), dtype=np.int64)
    else:
        scale = Decimal(2**bits)
        table = np.array(
            [
                [int(_CONTEXT.multiply(scale, x).to_integral_value(ROUND_HALF_EVEN)) for x in row]
                for row in _unit_cosines(n)
            ],
            dtype=np.int64,
        )
    table.setflags(write=False)
    return table
