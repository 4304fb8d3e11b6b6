"""Who looks at whom, and at which tiles: a pure function of the seed that comes after the commitments.

Round r's results are committed; then round r+1 starts and its seed is drawn on chain. The verifiers are that
round's Verifier committee (coordinator/committee.py). What they look at follows here, so that everybody can
tell whether a question was justified, and nobody could have known it before committing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from psyche_py.coordinator.committee import compute_ranks_at, compute_role_seed

TARGET_SALT = b"verify"
_TILE_DOMAIN = b"psyche-py/verify-tiles/1"
DEFAULT_NUM_TILES = 64


@dataclass(frozen=True)
class Duty:
    """``verifier`` looks at ``trainer``'s result of the round before: epoch client indices."""

    verifier: int
    trainer: int


def compute_duties(random_seed: int, verifiers: Collection[int], committed: Collection[int]) -> list[Duty]:
    """The pairs of a round, by verifier.

    random_seed:  of round r+1, u64
    verifiers:    epoch client indices of its Verifier committee
    committed:    those whose result of round r was accepted

    Nobody looks at itself. While there are trainers that nobody looks at, nobody is looked at twice; each
    verifier in turn (by index) takes the first that is left in the seed's shuffle of ``committed``.
    """
    order = _shuffle(sorted(committed), compute_role_seed(random_seed, TARGET_SALT))
    duties, left = [], list(order)
    for verifier in sorted(verifiers):
        trainer = next((x for x in left if x != verifier), None)
        if trainer is None:
            left = list(order)
            trainer = next((x for x in left if x != verifier), None)
        if trainer is not None:
            left.remove(trainer)
            duties.append(Duty(verifier, trainer))
    return duties


def _shuffle(indices: list[int], seed: bytes) -> list[int]:
    if not indices:
        return []
    return [indices[rank] for rank in compute_ranks_at(len(indices), len(indices), seed)]


def compute_sampled_tiles(
    random_seed: int, duty: Duty, num_tiles: int, num_sampled: int = DEFAULT_NUM_TILES
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
