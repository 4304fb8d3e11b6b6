"""Which tiles a verifier looks at: a pure function of the seed that comes after the commitments.

Round r's results are committed; then round r+1 starts and its seed is drawn on chain. Who looks at whom
follows from it in coordinator/duties.py, and at which tiles here, so that everybody can tell whether a
question was justified, and nobody could have known it before committing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from psyche_py.coordinator.duties import Duty
from psyche_py.coordinator.layout import DEFAULT_VERIFIED_TILES

_TILE_DOMAIN = b"psyche-py/verify-tiles/1"


def compute_sampled_tiles(
    random_seed: int, duty: Duty, num_tiles: int, num_sampled: int = DEFAULT_VERIFIED_TILES
) -> list[int]:
    """``num_sampled`` different tiles of ``num_tiles``, ascending; all of them when there are no more.

    The stream of numbers is keyed by seed, verifier and trainer: two verifiers see different tiles.
    """
    if num_sampled >= num_tiles:
        return list(range(num_tiles))
    chosen: set[int] = set()
    for number in _generate_numbers(random_seed, duty):
        # the largest multiple of num_tiles that fits: every tile is equally likely
        if number < (1 << 64) // num_tiles * num_tiles:
            chosen.add(number % num_tiles)
            if len(chosen) == num_sampled:
                break
    return sorted(chosen)


def _generate_numbers(random_seed: int, duty: Duty) -> Iterator[int]:
    """64-bit numbers without end."""
    key = _TILE_DOMAIN + random_seed.to_bytes(8, "little")
    key += duty.verifier.to_bytes(4, "little") + duty.trainer.to_bytes(4, "little")
    counter = 0
    while True:
        block = hashlib.sha256(key + counter.to_bytes(4, "little")).digest()
        for start in range(0, 32, 8):
            yield int.from_bytes(block[start : start + 8], "little")
        counter += 1
