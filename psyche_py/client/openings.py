"""Which commitments the witnesses' Merkle roots are over.

A root says exactly what its witness attested, but only to those who find the commitments it is over. Mostly
these are the ones that everybody heard. Else a few others are tried, and then peers are asked: whoever
attested or found them has them all. The root proves what is found, so it does not matter who said it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice

from psyche_py.coordinator.bloom import compute_positions
from psyche_py.coordinator.commitment import COMMITMENT_BYTES, Commitment
from psyche_py.coordinator.merkle import compute_changed_root, compute_leaf, compute_levels
from psyche_py.coordinator.witness import Attestation

MAX_TRIES = 128
"""Vectors tried for one root, about 10 hashes each. Trainers that sign several results could have us try all
combinations, which are exponentially many; a peer's answer costs one try."""
MAX_SEARCHES = 16
"""For one root: what is said a little at a time is not searched each time. Peers are asked all the while."""

OpeningKey = tuple[bytes, int]


class Openings:
    """The vectors of commitments (hashes, 32 B) that we found, by root and length, of one round."""

    def __init__(self) -> None:
        self.found: dict[OpeningKey, tuple[bytes, ...]] = {}
        self._tried: dict[OpeningKey, set[tuple[int, int]]] = {}

    def add(self, root: bytes, hashes: Sequence[bytes]) -> None:
        """``root`` is known to be over ``hashes``."""
        self.found[root, len(hashes)] = tuple(hashes)

    def search(
        self,
        attestations: Sequence[Attestation],
        seed: int,
        heard: Mapping[int, Sequence[bytes]],
        *,
        max_tries: int,
    ) -> None:
        """Try what we ``heard`` of each trainer, the most likely first.

        ``max_tries`` others are tried than all of the most likely. The same is not tried again, and nothing
        is tried for ever.
        """
        num_heard = sum(map(len, heard.values()))
        leaves = {hashes[0]: compute_leaf(hashes[0]) for hashes in heard.values() if hashes}
        for attestation in attestations:
            key = attestation.key
            tries = self._tried.setdefault(key, set())
            if key in self.found or (num_heard, max_tries) in tries or len(tries) >= MAX_SEARCHES:
                continue
            tries.add((num_heard, max_tries))
            options = [_filter(attestation.bloom, seed, heard.get(i, ())) for i in attestation.trainers]
            hashes = find_opening(attestation.root, options, leaves, max_tries)
            if hashes is not None:
                self.found[key] = hashes


def _filter(bloom: int, seed: int, digests: Sequence[bytes]) -> Sequence[bytes]:
    """Of several commitments of one trainer those that the filter holds; a single one is tried anyway."""
    if len(digests) < 2:
        return digests
    return [d for d in digests if all(bloom >> position & 1 for position in compute_positions(seed, d))]


def find_opening(
    root: bytes, options: Sequence[Sequence[bytes]], leaves: Mapping[bytes, bytes], max_tries: int = MAX_TRIES
) -> tuple[bytes, ...] | None:
    """One hash of each of ``options`` such that ``root`` is over them; None if it was not among those tried.

    The first of each are tried first, then up to ``max_tries`` vectors with as few others as can be.
    ``leaves`` are the hashes of leaves that are known already.
    """
    if not all(options):
        return None
    if not options:
        return ()  # names nobody: it attests nothing, whatever its root
    first = [hashes[0] for hashes in options]
    levels = compute_levels([leaves.get(digest) or compute_leaf(digest) for digest in first])
    if levels[-1][0] == root:
        return tuple(first)
    for changes in islice(_vary(options), max_tries):
        if changes and compute_changed_root(levels, {i: compute_leaf(d) for i, d in changes.items()}) == root:
            return tuple(changes.get(place, digest) for place, digest in enumerate(first))
    return None


def _vary(options: Sequence[Sequence[bytes]]) -> Iterator[Mapping[int, bytes]]:
    """Other choices than the first, few at a time; empty where two fell on one place."""
    others = [(place, digest) for place, hashes in enumerate(options) for digest in hashes[1:]]
    num_places = len({place for place, _ in others})
    for num_changes in range(1, num_places + 1):
        for chosen in combinations(others, num_changes):
            changes = dict(chosen)
            yield changes if len(changes) == num_changes else {}


def decode_opening(root: bytes, num_results: int, answer: bytes) -> tuple[Commitment, ...] | None:
    """The ``num_results`` commitments that ``root`` is over, if ``answer`` (a peer's bytes) are these."""
    if num_results < 1 or len(answer) != num_results * COMMITMENT_BYTES:
        return None
    starts = range(0, len(answer), COMMITMENT_BYTES)
    commitments = tuple(Commitment.decode(answer[start : start + COMMITMENT_BYTES]) for start in starts)
    levels = compute_levels([compute_leaf(commitment.compute_hash()) for commitment in commitments])
    return commitments if levels[-1][0] == root else None
