"""What this client knows of one round: who trains what, what was announced, what was verified.

A record outlives its slot in the account's ring of four rounds, so that results can still be applied when
our view of the account is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psyche_py.client.openings import MAX_TRIES, OpeningKey, Openings, decode_opening
from psyche_py.coordinator.bloom import Bloom
from psyche_py.coordinator.commitment import COMMITMENT_BYTES, Commitment
from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.coordinator.repeats import Repeats, SampleRange, get_ranges
from psyche_py.coordinator.witness import (
    Attestation,
    compute_attestations,
    compute_attested_clients,
    compute_outcomes,
)

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
    openings: Openings = field(default_factory=Openings)
    hints: dict[int, list[bytes]] = field(default_factory=dict)
    """What peers say a trainer committed to, unsigned: tried in searches for openings, and nothing else."""
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
    _announcers: dict[bytes, list[int]] = field(default_factory=dict)
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
        self._announcers.setdefault(commitment.payload_hash, []).append(index)
        return True

    def take_answers(
        self, attesting: Round | None, root: bytes, num_results: int, answers: Sequence[bytes]
    ) -> bool:
        """Peers' answers to what a root of ``attesting``'s witnesses is over; False where none proves it.

        It may be that nobody heard of all, and all together did: then what they know is kept as hints.
        """
        if any(self.add_opening(root, num_results, answer) for answer in answers):
            return True
        for attestation in compute_attestations(attesting, self.assignment) if attesting else ():
            if attestation.key == (root, num_results):
                for answer in answers:
                    self._add_hints(attestation.trainers, answer)
        return False

    def _add_hints(self, trainers: Sequence[int], answer: bytes) -> None:
        if len(answer) != len(trainers) * COMMITMENT_BYTES:
            return
        for place, index in enumerate(trainers):
            data = answer[place * COMMITMENT_BYTES : (place + 1) * COMMITMENT_BYTES]
            commitment, known = Commitment.decode(data), self.hints.setdefault(index, [])
            digest = commitment.compute_hash()
            is_new = any(data) and digest not in known and digest not in self.candidates.get(index, ())
            if is_new and len(known) < MAX_CANDIDATES_PER_TRAINER:
                known.append(digest)
                self.commitments[digest] = commitment

    def add_opening(self, root: bytes, num_results: int, answer: bytes) -> bool:
        """A peer's ``answer`` to what a witness's root is over; False where it does not fit.

        Nobody has signed these commitments. They are kept to be counted and handed on, and become candidates
        only when a quorum is found to have attested them: see :meth:`adopt`.
        """
        commitments = decode_opening(root, num_results, answer)
        if commitments is None:
            return False
        hashes = [commitment.compute_hash() for commitment in commitments]
        self.commitments.update(zip(hashes, commitments, strict=True))
        self.openings.add(root, hashes)
        return True

    def get_opening(self, root: bytes, num_results: int, attesting: Round | None) -> tuple[bytes, ...]:
        """The encoded commitments that ``root`` is over, if we found them.

        Else, if it is a root of ``attesting``'s witnesses, what we know of them, with zeros where we do not.
        """
        if hashes := self.openings.found.get((root, num_results)):
            return tuple(self.commitments[digest].encode() for digest in hashes)
        for attestation in compute_attestations(attesting, self.assignment) if attesting else ():
            if attestation.key == (root, num_results):
                known = [self._order(index) for index in attestation.trainers]
                return tuple(self.commitments[k[0]].encode() if k else bytes(COMMITMENT_BYTES) for k in known)
        return ()

    def search_openings(
        self, attestations: Sequence[Attestation], seed: int, *, max_tries: int = 0
    ) -> Mapping[OpeningKey, tuple[bytes, ...]]:
        """Find out what the attestations of the next round, of this ``seed``, are over; all that we know.

        Without ``max_tries`` only the commitments that are the most likely are tried.
        """
        unknown = [a for a in attestations if a.key not in self.openings.found]
        if unknown:
            heard = {index: [*self._order(index), *self.hints.get(index, ())] for index in self.assignment}
            self.openings.search(unknown, seed, heard, max_tries=max_tries)
        return self.openings.found

    def _order(self, index: int) -> Sequence[bytes]:
        """What we heard of a trainer; first what we verified first, as probably the witnesses did."""
        known, verified = self.candidates.get(index, ()), self.verified.get(index)
        if len(known) < 2 or verified is None:
            return known
        return [verified, *(digest for digest in known if digest != verified)]

    def adopt(self, index: int, digest: bytes) -> None:
        """The witnesses accepted this of trainer ``index``: treat it as announced, if we did not hear it."""
        if digest not in self.candidates.get(index, ()):
            self._add(index, digest, self.commitments[digest])

    def _add(self, index: int, digest: bytes, commitment: Commitment) -> None:
        self.commitments[digest] = commitment
        self.candidates.setdefault(index, []).append(digest)
        self._trainers.setdefault(commitment.payload_hash, []).append((index, digest))
        if commitment.payload_hash in self.verified_payloads:
            self._verify(index, digest)

    def get_trainers(self, payload_hash: bytes) -> Sequence[int]:
        """Who is said to have committed to this payload."""
        return [index for index, _ in self._trainers.get(payload_hash, ())]

    def reject(self, payload_hash: bytes) -> Sequence[int]:
        """The payload is none of this model. Returns who signed that it is, each announcement once.

        A payload is fetched again when another trainer names it, and when witnesses attest it; and who is
        only said to have committed to it (see :meth:`adopt`) has signed nothing.
        """
        self.rejected.add(payload_hash)
        return self._announcers.pop(payload_hash, ())

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

    def get_foreseen(self, own_index: int) -> tuple[tuple[int, bytes], ...]:
        """Results of the others that are here and well formed: trainers and payload hashes."""
        found = sorted(self.verified.items())
        return tuple((index, self.get_payload_hash(digest)) for index, digest in found if index != own_index)

    def get_expected(self) -> tuple[bytes, ...]:
        """Payload hashes of what we would attest, in the order in which results are applied."""
        found = self._get_attestable()
        order = sorted(found.keys() & self.assignment.keys(), key=lambda index: self.assignment[index])
        return tuple(self.get_payload_hash(found[index]) for index in order)

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

    def note_attested(self) -> None:
        """We attest what we verified so far: others may ask us what our root is over."""
        leaves = [digest for _, digest in sorted(self._get_attestable().items())]
        if leaves:
            self.openings.add(compute_merkle_root(leaves), leaves)

    def get_attested_samples(self, account: CoordinatorAccount, attesting: Round) -> Iterator[SampleRange]:
        """What the results cover that a quorum of ``attesting``'s witnesses saw."""
        for index in compute_attested_clients(account, attesting) & self.assignment.keys():
            yield from get_ranges(self.assignment, self.repeats, index)

    def get_payload_hashes(self) -> tuple[bytes, ...]:
        """Every payload named in this round."""
        return tuple(self._trainers)


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What to apply for a round: accepted results (trainers and hashes of their commitments), the samples
    they cover, those that nobody delivered and that will be assigned again, those that are lost since the
    witnesses attested several results of one trainer; and the attestations that we must open to decide."""

    accepted: tuple[tuple[int, bytes], ...]
    trained: tuple[SampleRange, ...]
    untrained: tuple[SampleRange, ...]
    lost: tuple[SampleRange, ...]
    unopened: tuple[Attestation, ...]


def compute_apply_plan(account: CoordinatorAccount, record: RoundRecord, attesting: Round) -> ApplyPlan:
    """Decide which results of ``record`` count, by the witnesses stored in the next round, ``attesting``.

    A trainer's result counts when the roots of a quorum provably hold it. What is decided depends on the
    account alone; what we heard of only says how much we can decide. Where that is not everything, the plan
    names the attestations to ask for.
    """
    attested = compute_attested_clients(account, attesting)
    attestations = compute_attestations(attesting, record.assignment)
    openings = record.search_openings(attestations, attesting.random_seed)
    outcomes = compute_outcomes(account, attesting, attestations, openings)
    if not outcomes.keys() >= attested & record.assignment.keys():
        record.search_openings(attestations, attesting.random_seed, max_tries=MAX_TRIES)
        outcomes = compute_outcomes(account, attesting, attestations, openings)
    accepted: list[tuple[int, bytes]] = []
    trained: list[SampleRange] = []
    untrained: list[SampleRange] = []
    lost: list[SampleRange] = []
    undecided: set[int] = set()
    for index in sorted(record.assignment, key=lambda index: record.assignment[index]):
        ranges = get_ranges(record.assignment, record.repeats, index)
        if index not in attested:
            untrained += ranges
        elif index not in outcomes:
            undecided.add(index)
        elif (digest := outcomes[index]) is None:
            lost += ranges
        else:
            trained += ranges
            accepted.append((index, digest))
    unopened = tuple(
        a for a in attestations if a.key not in openings and not undecided.isdisjoint(a.trainers)
    )
    return ApplyPlan(tuple(accepted), tuple(trained), tuple(untrained), tuple(lost), unopened)
