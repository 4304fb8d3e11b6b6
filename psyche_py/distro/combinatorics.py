"""Numbering the subsets of {0, ..., n-1} with at most k members: the combinatorial number system.

A subset c_1 < c_2 < ... < c_j has rank C(c_1, 1) + C(c_2, 2) + ... + C(c_j, j) among the subsets of its size.
Codes count all sizes up to k: first the full size k (codes 0 .. C(n,k)-1), then the empty set (the first code
after them), then sizes 1, 2, ..., k-1. Every code below ``num_codes`` is one subset and the reverse.

Ranks may need hundreds of bits. They are kept as limbs of 48 bits in int64 arrays ``[num_limbs, tiles]``,
least significant first, so that sums of 64 terms and shifts of up to 15 bits cannot overflow. The low levels,
whose sums fit 63 bits, use one int64 instead: for k = 8 of 4,096 that is six of the eight.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from psyche_py.errors import ConfigError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
WordArray = npt.NDArray[np.uint64]

LIMB_BITS = 48
LIMB_BYTES = LIMB_BITS // 8
_MASK = np.int64((1 << LIMB_BITS) - 1)
_MAX_TABLE_BYTES = 256 << 20
# A double holds any code.
_MAX_CODE_BITS = 1000
_FRACTION_BITS = 52
_MAX_BUCKETS = 1 << 18


def _to_limbs(values: list[int], num_limbs: int) -> IntArray:
    """Python integers to limbs [num_limbs, len(values)]."""
    raw = b"".join(value.to_bytes(num_limbs * LIMB_BYTES, "little") for value in values)
    words = np.frombuffer(raw, dtype="<u2").reshape(len(values), num_limbs, 3).astype(np.int64)
    return np.ascontiguousarray((words[:, :, 0] | words[:, :, 1] << 16 | words[:, :, 2] << 32).T)


def _to_words(limbs: IntArray, num_words: int) -> WordArray:
    """Limbs [num_limbs, n] as words of 64 bits [n, num_words]."""
    num_limbs, n = limbs.shape
    raw = np.zeros((n, max(8 * num_words, LIMB_BYTES * num_limbs)), dtype=np.uint8)
    for i, limb in enumerate(limbs):
        wide = np.ascontiguousarray(limb, dtype="<i8").view(np.uint8).reshape(n, 8)
        raw[:, i * LIMB_BYTES : (i + 1) * LIMB_BYTES] = wide[:, :LIMB_BYTES]
    return raw[:, : 8 * num_words].copy().view("<u8").astype(np.uint64, copy=False)


def _carry(limbs: IntArray) -> None:
    """Bring every limb into 0 .. 2**48-1 (in place); negative limbs borrow, as >> rounds down."""
    for i in range(len(limbs) - 1):
        limbs[i + 1] += limbs[i] >> LIMB_BITS
        limbs[i] &= _MASK


def _is_less(a: IntArray, b: IntArray) -> BoolArray:
    """a < b per column; b may be one column [num_limbs, 1]."""
    less: BoolArray = a[0] < b[0]
    for i in range(1, len(a)):
        less = (a[i] < b[i]) | ((a[i] == b[i]) & less)
    return less


class _Finder:
    """Finds the c with bounds[c] <= value < bounds[c + 1], or a neighbour, for ``bounds[c]`` = C(c, level).

    A double's leading bits (its exponent and some of its fraction) number the buckets of a table. A bucket is
    so narrow that it holds at most one bound, because neighbours differ by a factor of 1 + level / n or more.
    Large tables would leave the cache; then a binary search is faster.
    """

    def __init__(self, bounds: FloatArray, level: int) -> None:
        self._bounds = bounds
        self._shift = _FRACTION_BITS - max(0, (len(bounds) // level).bit_length())
        first, last = self._get_buckets(np.array([1.0, max(bounds[-1], 1.0)]))
        self._first = int(first)
        self._table: npt.NDArray[np.int32] | None = None
        if last - first < _MAX_BUCKETS:
            edges = (np.arange(first, last + 2) << self._shift).view(np.float64)
            self._table = (np.searchsorted(bounds, edges, side="right") - 1).astype(np.int32)

    def _get_buckets(self, values: FloatArray) -> IntArray:
        buckets: IntArray = values.view(np.int64) >> self._shift
        return buckets

    def find(self, values: FloatArray) -> IntArray:
        """The c for every value, which is not negative."""
        if self._table is None:
            found: IntArray = np.searchsorted(self._bounds, values, side="right") - 1
            return found
        buckets = self._get_buckets(values)
        buckets -= self._first
        # 0 is below the first bucket; what rounding pushed past the last bound is in the last.
        np.clip(buckets, 0, len(self._table) - 1, out=buckets)
        return self._table.take(buckets).astype(np.int64)


class SubsetCode:
    """The code for subsets of at most ``k`` of ``n`` positions; ``1 <= k <= n``.

    num_codes  how many codes there are;  num_bits  width of a code
    """

    def __init__(self, n: int, k: int) -> None:
        if not 1 <= k <= n:
            raise ValueError(f"a subset code needs 1 <= k <= n, not k={k}, n={n}")
        self.n, self.k = n, k
        sizes = [k, *range(k)]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + comb(n, size))
        self.num_codes = starts.pop()
        self.num_bits = (self.num_codes - 1).bit_length()
        self.num_limbs = max(2, -(-self.num_bits // LIMB_BITS))  # the low levels' sum fills two
        if n * k * self.num_limbs * 8 > _MAX_TABLE_BYTES or self.num_bits > _MAX_CODE_BITS:
            raise ConfigError(
                "compression_topk",
                f"a code for {k} of {n} positions needs too large tables",
                "Use a smaller compression_topk or compression_chunk.",
            )
        self._start_by_size = dict(zip(sizes, starts, strict=True))
        self._starts = _to_limbs([*starts, self.num_codes], self.num_limbs)
        self._build_tables()

    def _build_tables(self) -> None:
        n, k = self.n, self.k
        self._num_low = 0
        while self._num_low < k and comb(n, self._num_low + 1) < 1 << 63:
            self._num_low += 1
        self._low: list[IntArray] = []
        self._high: list[IntArray] = []
        self._finders: list[_Finder] = []
        column = [1] * n  # C(c, 0)
        for level in range(1, k + 1):
            previous, column = column, [0] * n
            for c in range(1, n):
                column[c] = column[c - 1] + previous[c - 1]
            if level <= self._num_low:
                self._low.append(np.array(column, dtype=np.int64))
            else:
                self._high.append(_to_limbs(column, self.num_limbs))
            self._finders.append(_Finder(np.array([float(x) for x in column]), level))

    def compute_codes(self, members: npt.NDArray[np.integer[Any]]) -> IntArray:
        """Codes [num_limbs, tiles] of subsets ``members`` [size, tiles], each column strictly ascending."""
        size, tiles = members.shape
        low = np.zeros(tiles, dtype=np.int64)
        for table, row in zip(self._low, members, strict=False):
            low += table[row]
        limbs = np.zeros((self.num_limbs, tiles), dtype=np.int64)
        for table, row in zip(self._high, members[self._num_low :], strict=False):
            for limb, entries in zip(limbs, table, strict=True):
                limb += entries[row]
        if size < self.k:
            limbs += _to_limbs([self._start_by_size[size]], self.num_limbs)
        limbs[0] += low & _MASK
        limbs[1] += low >> LIMB_BITS
        _carry(limbs)
        return limbs

    def get_word_tables(self) -> tuple[WordArray, WordArray]:
        """C(c, level) at [level - 1, c] and the first codes of sizes k, 0, ..., k - 1 and what follows them.

        Both with words of 64 bits, least significant first, as their last dimension.
        """
        num_words = self.num_bits // 64 + 1
        low = [np.stack([table & _MASK, table >> LIMB_BITS]) for table in self._low]
        binomials = [_to_words(limbs, num_words) for limbs in (*low, *self._high)]
        return np.stack(binomials), _to_words(self._starts, num_words)

    def is_valid(self, codes: IntArray) -> BoolArray:
        """Which codes [num_limbs, tiles] are below ``num_codes``."""
        return _is_less(codes, self._starts[:, -1:])

    def compute_sizes(self, codes: IntArray) -> IntArray:
        """Number of members of each code [num_limbs, tiles]; the codes must be valid."""
        full = _is_less(codes, self._starts[:, 1:2])
        sizes = np.full(codes.shape[1], self.k, dtype=np.int64)
        rest = np.flatnonzero(~full)
        if len(rest):
            part = codes[:, rest]
            past = np.zeros(len(rest), dtype=np.int64)
            for i in range(2, self.k + 1):
                past += ~_is_less(part, self._starts[:, i : i + 1])
            sizes[rest] = past
        return sizes

    def compute_members(self, codes: IntArray, size: int) -> IntArray:
        """Inverse of :meth:`compute_codes` for valid codes of one ``size``: [size, tiles], ascending."""
        members = np.empty((size, codes.shape[1]), dtype=np.int64)
        limbs = codes.copy()
        if size < self.k:
            limbs -= _to_limbs([self._start_by_size[size]], self.num_limbs)
            _carry(limbs)
        for level in range(size, self._num_low, -1):
            # what is left of the rank is below C(n, level)
            active = -(-comb(self.n, level).bit_length() // LIMB_BITS)
            members[level - 1] = self._take_high_level(limbs[:active], level)
        low = limbs[0] | limbs[1] << LIMB_BITS
        for level in range(min(size, self._num_low), 1, -1):
            table = self._low[level - 1]
            found = self._finders[level - 1].find(low.astype(np.float64))
            found -= table[found] > low
            following = np.minimum(found + 1, self.n - 1)
            found = np.where(table[following] > low, found, following)
            low -= table[found]
            members[level - 1] = found
        if size:
            members[0] = low  # C(c, 1) is c
        return members

    def _take_high_level(self, limbs: IntArray, level: int) -> IntArray:
        """Largest c with C(c, level) <= rank; C(c, level) is subtracted from ``limbs`` in place."""
        value = limbs[-1].astype(np.float64)
        for limb in limbs[-2::-1]:
            value = value * float(1 << LIMB_BITS) + limb
        # Doubles may round differently elsewhere: the guess is corrected by exact integers.
        found = self._finders[level - 1].find(value)
        table = self._high[level - self._num_low - 1][: len(limbs)]
        found -= _is_less(limbs, table[:, found])
        following = np.minimum(found + 1, self.n - 1)
        found = np.where(_is_less(limbs, table[:, following]), found, following)
        limbs -= table[:, found]
        _carry(limbs)
        return found


@lru_cache(maxsize=64)
def get_subset_code(n: int, k: int) -> SubsetCode:
    """The shared code for ``k`` of ``n``: its tables are built once per process."""
    return SubsetCode(n, k)
