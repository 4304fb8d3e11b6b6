"""Whole groups of tiles through the compiled codec, where numba is there; else ``tilebits`` does the same."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from psyche_py.distro import jit
from psyche_py.distro.combinatorics import FloatArray, WordArray
from psyche_py.distro.errors import PayloadError
from psyche_py.distro.tilebits import ByteArray, PositionArray, SignArray
from psyche_py.distro.tilecode import TileCode, get_tile_code

_MAX_SIGNS = 64


def is_compiled(code: TileCode) -> bool:
    """Whether this module can be used for a code: numba is there, and a tile's signs fit a word."""
    return code.k <= _MAX_SIGNS and jit.load_kernels("codec_kernels") is not None


@lru_cache(maxsize=64)
def get_tables(n: int, k: int) -> Any:
    """``codec_kernels.CodeTables`` for ``k`` of ``n``, built once per process."""
    kernels = jit.load_kernels("codec_kernels")
    assert kernels is not None
    binomials, starts = get_tile_code(n, k).subsets.get_word_tables()
    return kernels.CodeTables(binomials, starts, _make_guesses(binomials, kernels.BUCKETS_PER_OCTAVE))


def _make_guesses(binomials: WordArray, buckets_per_octave: int) -> FloatArray:
    """float64 [k, buckets + 1]: the c with C(c, level) = the lower edge of a bucket, interpolated."""
    k, n, num_words = binomials.shape
    bounds = binomials.astype(np.float64) @ 2.0 ** (64 * np.arange(num_words))
    # A rank is below C(n, level), at most twice the largest bound; its bucket's upper edge is one more.
    octaves = np.arange(int(np.log2(max(bounds.max(), 1.0))) + 3)
    within = 1.0 + np.arange(buckets_per_octave) / buckets_per_octave
    edges = (2.0 ** octaves[:, None] * within).ravel()
    return np.stack([np.interp(edges, bounds[i, i:], np.arange(i, n)) for i in range(k)])


def _get_shape(code: TileCode, num_tiles: int) -> Any:
    kernels = jit.load_kernels("codec_kernels")
    assert kernels is not None
    shared = [code.get_shared_bits(size) for size in (code.block_tiles, num_tiles % code.block_tiles)]
    return kernels.BlockShape(code.low_bits, code.radix, code.block_tiles, *shared)


def encode_tiles(code: TileCode, positions: PositionArray, signs: SignArray) -> bytes:
    """As ``tilebits.encode_tiles``."""
    kernels = jit.load_kernels("codec_kernels")
    assert kernels is not None
    num_bytes = -(-code.compute_num_bits(len(positions)) // 8)
    body = np.zeros(num_bytes + kernels.PADDING_BYTES, dtype=np.uint8)
    kernels.encode_tiles(positions, signs, _get_shape(code, len(positions)), get_tables(code.n, code.k), body)
    return body[:num_bytes].tobytes()


def decode_tiles(code: TileCode, body: ByteArray, positions: PositionArray, signs: SignArray) -> None:
    """Read all tiles of a group into positions and signs [tiles, k]; raises PayloadError."""
    kernels = jit.load_kernels("codec_kernels")
    assert kernels is not None
    padded = np.zeros(len(body) + kernels.PADDING_BYTES, dtype=np.uint8)
    padded[: len(body)] = body
    num_tiles = len(positions)
    status = kernels.decode_tiles(
        padded, num_tiles, _get_shape(code, num_tiles), get_tables(code.n, code.k), positions, signs
    )
    if status == kernels.NO_SUCH_COEFFICIENTS:
        raise PayloadError("A payload names coefficients that do not exist.", "Ignore the result.")
    if status == kernels.SIGNS_OF_NOTHING:
        raise PayloadError("A payload gives signs to coefficients it does not hold.", "Ignore the result.")
    if status == kernels.PADDING_NOT_ZERO:
        raise PayloadError("The padding of a payload is not zero.", "Ignore the result.")
