"""What this client knows of one round: who trains what, what was announced, what was verified.

A record outlives its slot in the account's ring of four rounds, so that results can still be applied when
our view of the account is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psyche_py.coordinator.bloom import Bloom
from psyche_py.coordinator.commitment import Commitment
from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.coordinator.repeats import Repeats, SampleRange, get_ranges
from psyche_py.coordinator.witness import compute_attested_clients, compute_consensus

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Round

MAX_CANDIDATES_PER_TRAINER = 4
"""An honest trainer commits to one result a round; more are kept only to survive an equivocation."""


@dataclass(slots=True)
class RoundRecord:
    """Announcements and payloads of one round; trainers are named by their epoch client index.

    ``assignment`` are the round's own samples, ``repeats`` those of earlier rounds that are trained again.
    ``candidates`` and ``verified`` name commitments by their hash, the rest payloads by theirs.
    """

    height: int
    step: int
    healthy: frozenset[int]
    assignment: Mapping[int, SampleRange]
    repeats: Repeats = field(default_factory=dict)
    candidates: dict[int, list[bytes]] = field(default_factory=dict)
    commitments: dict[bytes, Commitment] = field(default_factory=dict)
    frames: dict[bytes, bytes] = field(default_factory=dict)
    """Signed announcements by the hash of their commitment; kept where they may become evidence."""
    verified: dict[int, bytes] = field(default_factory=dict)
    verified_payloads: set[bytes] = field(default_factory=set)
    rejected: set[bytes] = field(default_factory=set)
    finished: dict[int, bytes] = field(default_factory=dict)
    equivocators: set[int] = field(default_factory=set)
    """Trainers that signed two results. Nobody attests them: with one half of the witnesses for either
    result the round would have an attested trainer and no accepted result, and no replica could go on."""
    late: set[bytes] = field(default_factory=set)
    """Commitments that we heard of only when it was known who would look at them. Nobody attests them: a
    trainer could work for those rounds alone in which it was drawn."""
    unfinished: set[int] = field(init=False)
    """Those of ``healthy`` that have not said Finished."""
    awaited: set[int] = field(init=False)
    """Those of ``assignment`` of whom we have no verified result."""
    majority: bytes | None = field(init=False, default=None)
    """The state digest that more than half of ``healthy`` report, if there is one."""
    _trainers: dict[bytes, list[tuple[int, bytes]]] = field(default_factory=dict)
    _num_reports: Counter[bytes] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self.unfinished = set(self.healthy)
        self.awaited = set(self.assignment)

    def take_finished(self, index: int, state_digest: bytes) -> None:
        """Client ``index`` is done with the round, its replica has this digest; its first word counts.

        Kept up with every word, and not counted anew: with n clients n words come in a round.
        """
        if index in self.finished:
            return
        self.finished[index] = state_digest
        self.unfinished.discard(index)
        self._num_reports[state_digest] += 1
        if self._num_reports[state_digest] * 2 > len(self.healthy):
            self.majority = state_digest

    def add_candidate(self, index: int, commitment: Commitment) -> bool:
        """Trainer ``index`` has signed that it committed to this; True when it is new to us."""
        known, digest = self.candidates.get(index, []), commitment.compute_hash()
        if digest in known:
            return False
        if known:
            self.equivocators.add(index)
        if len(known) >= MAX_CANDIDATES_PER_TRAINER:
            return False
        self._add(index, digest, commitment)
        return True

    def add_accepted(self, index: int, commitment: Commitment) -> None:
        """The witnesses accepted this for trainer ``index``, which we learned from a peer."""
        self._add(index, commitment.compute_hash(), commitment)

    def _add(self, index: int, digest: bytes, commitment: Commitment) -> None:
        self.commitments[digest] = commitment
        self.candidates.setdefault(index, []).append(digest)
        self._trainers.setdefault(commitment.payload_hash, []).append((index, digest))
        if commitment.payload_hash in self.verified_payloads:
            self._verify(index, digest)

    def get_trainers(self, payload_hash: bytes) -> Sequence[int]:
        """Who is said to have committed to this payload."""
        return [index for index, _ in self._trainers.get(payload_hash, ())]

    def get_payload_hash(self, digest: bytes) -> bytes:
        """SHA-256 of the payload of a commitment that was announced to us."""
        return self.commitments[digest].payload_hash

    def mark_verified(self, payload_hash: bytes) -> None:
        """The payload is in our store and well formed. The first one per trainer is what we attest."""
        self.verified_payloads.add(payload_hash)
        for index, digest in self._trainers.get(payload_hash, ()):
            self._verify(index, digest)

    def _verify(self, index: int, digest: bytes) -> None:
        self.verified.setdefault(index, digest)
        self.awaited.discard(index)

    def is_given_up(self, index: int) -> bool:
        """Nothing that trainer ``index`` announced can still turn out to be a result."""
        known = self.candidates.get(index, ())
        return all(self.get_payload_hash(digest) in self.rejected for digest in known)

    def _get_attestable(self) -> dict[int, bytes]:
        barred, late = self.equivocators, self.late
        return {i: digest for i, digest in self.verified.items() if i not in barred and digest not in late}

    def compute_participants(self) -> tuple[int, int, int, int]:
        """Bitmap of clients that did their part: delivered, or had nothing to train and reported so."""
        words, delivered = [0, 0, 0, 0], self._get_attestable()
        for index in self.healthy:
            done = index in delivered if index in self.assignment else index in self.finished
            if done:
                words[index // 64] |= 1 << (index % 64)
        return words[0], words[1], words[2], words[3]

    def compute_broadcast_bloom(self, seed: int) -> tuple[int, ...]:
        """Bloom filter of the commitments we verified, keyed by the witnessing round's ``seed``."""
        bloom = Bloom(seed)
        for digest in self._get_attestable().values():
            bloom.add(digest)
        return tuple(bloom.words)

    def compute_broadcast_merkle(self) -> bytes:
        """Merkle root over the verified commitments in client order; zeros when there are none."""
        leaves = [digest for _, digest in sorted(self._get_attestable().items())]
        return compute_merkle_root(leaves) if leaves else bytes(32)

    def get_payload_hashes(self) -> tuple[bytes, ...]:
        """Every payload named in this round."""
        return tuple(self._trainers)


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What to apply for a round: accepted results (trainers and hashes of their payloads), the samples they
    cover, the samples that nobody delivered and that will be assigned again, and the trainers whose results
    we have not heard of."""

    accepted: tuple[tuple[int, bytes], ...]
    trained: tuple[SampleRange, ...]
    untrained: tuple[SampleRange, ...]
    unheard: tuple[int, ...]


def compute_apply_plan(account: CoordinatorAccount, record: RoundRecord, attesting: Round) -> ApplyPlan:
    """Decide which results of ``record`` count, by the witnesses stored in the next round, ``attesting``.

    A trainer's result counts when a quorum attests that it took part and a quorum's blooms hold one of its
    commitments. The answer depends only on the account and on which commitments we heard of, and the
    trainers a quorum attests but whose commitment we lack are named, so that we can ask.
    """
    attested = compute_attested_clients(account, attesting)
    accepted, unheard = [], []
    trained: list[SampleRange] = []
    untrained: list[SampleRange] = []
    for index in sorted(record.assignment, key=lambda index: record.assignment[index]):
        ranges = get_ranges(record.assignment, record.repeats, index)
        if index not in attested:
            untrained += ranges
            continue
        trained += ranges
        digest = compute_consensus(account, attesting, record.candidates.get(index, []))
        if digest is None:
            unheard.append(index)
        else:
            accepted.append((index, record.get_payload_hash(digest)))
    return ApplyPlan(tuple(accepted), tuple(trained), tuple(untrained), tuple(unheard))
