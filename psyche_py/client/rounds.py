"""What this client knows of one round: who trains what, what was announced, what was verified.

A record outlives its slot in the account's ring of four rounds, so that results can still be applied when
our view of the account is late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psyche_py.coordinator.bloom import Bloom
from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.coordinator.witness import compute_attested_clients, compute_consensus

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Round

MAX_CANDIDATES_PER_TRAINER = 4
"""An honest trainer commits to one result a round; more are kept only to survive an equivocation."""

Batch = tuple[int, int]
"""First and last sample id, both included (Psyche's BatchId)."""


@dataclass(slots=True)
class RoundRecord:
    """Announcements and payloads of one round; trainers are named by their epoch client index."""

    height: int
    step: int
    healthy: frozenset[int]
    assignment: Mapping[int, Batch]
    candidates: dict[int, list[bytes]] = field(default_factory=dict)
    verified: dict[int, bytes] = field(default_factory=dict)
    verified_digests: set[bytes] = field(default_factory=set)
    rejected: set[bytes] = field(default_factory=set)
    finished: dict[int, bytes] = field(default_factory=dict)

    def add_candidate(self, index: int, digest: bytes) -> bool:
        """Remember that trainer ``index`` is said to have committed to ``digest``; True when new."""
        known = self.candidates.setdefault(index, [])
        if digest in known or len(known) >= MAX_CANDIDATES_PER_TRAINER:
            return False
        known.append(digest)
        return True

    def mark_verified(self, digest: bytes) -> None:
        """The payload is in our store and well formed. The first one per trainer is what we attest."""
        self.verified_digests.add(digest)
        for index, digests in self.candidates.items():
            if digest in digests:
                self.verified.setdefault(index, digest)

    @property
    def is_all_verified(self) -> bool:
        """We hold a well-formed result of every trainer."""
        return all(index in self.verified for index in self.assignment)

    def compute_participants(self) -> tuple[int, int, int, int]:
        """Bitmap of clients that did their part: delivered, or had nothing to train and reported so."""
        words = [0, 0, 0, 0]
        for index in self.healthy:
            done = index in self.verified if index in self.assignment else index in self.finished
            if done:
                words[index // 64] |= 1 << (index % 64)
        return words[0], words[1], words[2], words[3]

    def compute_broadcast_bloom(self, seed: int) -> tuple[int, ...]:
        """Bloom filter of the commitments we verified, keyed by the witnessing round's ``seed``."""
        bloom = Bloom(seed)
        for digest in self.verified.values():
            bloom.add(digest)
        return tuple(bloom.words)

    def compute_broadcast_merkle(self) -> bytes:
        """Merkle root over the verified commitments in client order; zeros when there are none."""
        leaves = [self.verified[index] for index in sorted(self.verified)]
        return compute_merkle_root(leaves) if leaves else bytes(32)

    def all_digests(self) -> tuple[bytes, ...]:
        """Every commitment named in this round."""
        return tuple({digest for digests in self.candidates.values() for digest in digests})


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What to apply for a round: accepted results, batches nobody delivered, results we have not heard of."""

    accepted: tuple[tuple[int, bytes], ...]
    untrained: tuple[Batch, ...]
    unheard: tuple[int, ...]


def compute_apply_plan(account: CoordinatorAccount, record: RoundRecord, attesting: Round) -> ApplyPlan:
    """Decide which results of ``record`` count, by the witnesses stored in the next round, ``attesting``.

    A trainer's result counts when a quorum attests that it took part and a quorum's blooms hold one of its
    commitments. The answer depends only on the account and on which commitments we heard of, and the
    trainers a quorum attests but whose commitment we lack are named, so that we can ask.
    """
    attested = compute_attested_clients(account, attesting)
    accepted, untrained, unheard = [], [], []
    for index, batch in sorted(record.assignment.items(), key=lambda item: item[1]):
        if index not in attested:
            untrained.append(batch)
            continue
        digest = compute_consensus(account, attesting, record.candidates.get(index, []))
        if digest is None:
            unheard.append(index)
        else:
            accepted.append((index, digest))
    return ApplyPlan(tuple(accepted), tuple(untrained), tuple(unheard))


def compute_majority(digests: Sequence[bytes], *, of: int) -> bytes | None:
    """The digest that more than half of ``of`` replicas report, if there is one."""
    for digest in set(digests):
        if digests.count(digest) * 2 > of:
            return digest
    return None
