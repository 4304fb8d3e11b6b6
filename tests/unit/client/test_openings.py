"""Which results count: replicas that hear in any order, liars among trainers and witnesses, made-up roots."""

from __future__ import annotations

import hashlib
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rulebook_driver import make_round_account

from psyche_py.client import openings
from psyche_py.client.openings import MAX_TRIES, decode_opening, find_opening
from psyche_py.client.rounds import ApplyPlan, RoundRecord, compute_apply_plan
from psyche_py.coordinator.bloom import NUM_BITS
from psyche_py.coordinator.commitment import Commitment
from psyche_py.coordinator.layout import set_bitmap, set_bytes
from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.witness import Attestation, compute_quorum

FULL = (2**64 - 1,) * 16
"""Words of a filter that holds everything."""
Announcement = tuple[int, Commitment]


def make_commitment(name: str) -> Commitment:
    return Commitment(hashlib.sha256(name.encode()).digest())


def make_record(num_trainers: int, heard: list[Announcement]) -> RoundRecord:
    """A record of a round with these announcements, whose payloads all arrived at once."""
    assignment = {index: (10 * index, 10 * index + 9) for index in range(num_trainers)}
    record = RoundRecord(4, 5, frozenset(range(num_trainers)), assignment)
    for index, commitment in heard:
        record.add_candidate(index, commitment)
        record.mark_verified(commitment.payload_hash)
    return record


class Attested:
    """The chain and those whom its witnesses' and clients' records belong to."""

    def __init__(self, num_trainers: int, num_witnesses: int, *, is_full: bool = False) -> None:
        account = make_round_account(range(num_witnesses), seed=77)
        self.record, self._places = account.record, count()
        self.peers: list[RoundRecord] = []
        self.num_trainers, self._is_full = num_trainers, is_full

    def attest(self, peer: RoundRecord, root: bytes | None = None, named: int | None = None) -> None:
        """The next witness attests what ``peer`` verified, or this root for the clients in a bitmap."""
        words = peer.compute_participants()
        participants = sum(word << 64 * i for i, word in enumerate(words))
        true = peer.compute_broadcast_merkle()
        bloom = FULL if self._is_full else peer.compute_broadcast_bloom(77)
        peer.note_attested()
        current = self.record["epoch_state"]["rounds"][0]
        place = next(self._places)
        witness = current["witnesses"][place]
        witness["index"], current["num_witnesses"] = place, place + 1
        set_bitmap(witness, "participants", participants if named is None else named)
        witness["broadcast_bloom"] = bloom
        set_bytes(witness, "broadcast_merkle", true if root is None else root)

    def plan(self, peer: RoundRecord) -> ApplyPlan:
        """What a client would apply now."""
        account = CoordinatorAccount(self.record)
        return compute_apply_plan(account, peer, account.current_round)

    def ask(self, peer: RoundRecord) -> bool:
        """One round of questions; whether anything came of it."""
        is_new = False
        for attestation in self.plan(peer).unopened:
            for other in self.peers:
                attesting = CoordinatorAccount(self.record).current_round
                answer = b"".join(other.get_opening(*attestation.key, attesting))
                before = sum(map(len, peer.hints.values()))
                is_new |= peer.take_answers(attesting, *attestation.key, [answer])
                is_new |= sum(map(len, peer.hints.values())) > before
        return is_new

    def settle(self) -> list[ApplyPlan]:
        """Everybody asks until nothing more comes of it."""
        while any(self.ask(peer) for peer in self.peers):
            pass
        return [self.plan(peer) for peer in self.peers]


def check_agreement(plans: list[ApplyPlan]) -> None:
    """No two replicas decide differently of one trainer, however little each can decide."""
    accepted: dict[int, bytes] = {}
    for plan in plans:
        for index, digest in plan.accepted:
            assert accepted.setdefault(index, digest) == digest
    for one in plans:
        for other in plans:
            assert not set(one.lost) & set(other.trained)
            assert one.untrained == other.untrained


def hear_some(rng: Random, said: list[Announcement], share: float) -> list[Announcement]:
    """A part of what was said, in some order."""
    heard = [announcement for announcement in said if rng.random() < share]
    rng.shuffle(heard)
    return heard


def say(rng: Random, num_trainers: int, num_equivocators: int) -> list[Announcement]:
    """One result of each trainer, and further ones of some."""
    said = [(index, make_commitment(f"true {index}")) for index in range(num_trainers)]
    for index in rng.sample(range(num_trainers), num_equivocators):
        said += [(index, make_commitment(f"other {index} {i}")) for i in range(rng.randint(1, 3))]
    return said


worlds = st.tuples(st.randoms(use_true_random=False), st.integers(1, 7), st.integers(1, 7))


@settings(max_examples=150, deadline=None)
@given(worlds, st.floats(0.3, 1.0), st.booleans())
def test_honest_witnesses_lead_everybody_to_one_answer(
    world: tuple[Random, int, int], share: float, is_full: bool
) -> None:
    """They saw any parts, in any order, of what equivocators said; the clients saw others, and forgeries."""
    rng, num_trainers, num_witnesses = world
    said = say(rng, num_trainers, rng.randint(0, num_trainers))
    chain = Attested(num_trainers, num_witnesses, is_full=is_full)
    votes: list[dict[int, bytes]] = []
    for _ in range(num_witnesses):
        peer = make_record(num_trainers, hear_some(rng, said, share))
        chain.attest(peer)
        votes.append({i: d for i, d in peer.verified.items() if i not in peer.equivocators})
        chain.peers.append(peer)
    late = [(index, make_commitment(f"forged {index}")) for index in range(num_trainers)]
    for _ in range(3):
        chain.peers.append(make_record(num_trainers, hear_some(rng, [*said, *late], share)))
    for peer in chain.peers:
        for index, commitment in hear_some(rng, late, 0.7):
            peer.add_candidate(index, commitment)
    before = [chain.plan(peer) for peer in chain.peers]
    plans = chain.settle()
    check_agreement([*before, *plans])
    quorum = compute_quorum(num_witnesses)
    true = {
        index: digest
        for vote in votes
        for index, digest in vote.items()
        if sum(other.get(index) == digest for other in votes) >= quorum
    }
    for plan in plans:
        assert not plan.unopened
        assert dict(plan.accepted) == true


@settings(max_examples=150, deadline=None)
@given(worlds, st.booleans(), st.booleans())
def test_lying_witnesses_make_nobody_differ(
    world: tuple[Random, int, int], is_full: bool, is_secret_told: bool
) -> None:
    """Made-up roots, roots over a secret that some know, honest roots repeated for other clients."""
    rng, num_trainers, num_honest = world
    said = say(rng, num_trainers, rng.randint(0, num_trainers))
    num_liars = rng.randint(0, 4)
    chain = Attested(num_trainers, num_honest + num_liars, is_full=is_full)
    honest_votes: list[dict[int, bytes]] = []
    for _ in range(num_honest):
        peer = make_record(num_trainers, hear_some(rng, said, 0.8))
        chain.attest(peer)
        honest_votes.append({i: d for i, d in peer.verified.items() if i not in peer.equivocators})
        chain.peers.append(peer)
    secret = (rng.randrange(num_trainers), make_commitment("secret"))
    knowing = make_record(num_trainers, [secret, *hear_some(rng, said, 0.8)])
    for _ in range(num_liars):
        named = rng.choice([None, (1 << num_trainers) - 1, rng.randrange(1 << num_trainers)])
        root = rng.choice(
            [None, None, bytes([rng.randrange(256)]) * 32, chain.peers[0].compute_broadcast_merkle()]
        )
        chain.attest(knowing, root, named)
    replica = make_record(num_trainers, hear_some(rng, said, 0.5))
    chain.peers.append(replica)
    alone = chain.settle()
    if is_secret_told:
        chain.peers.append(knowing)
        chain.ask(replica)
    plans = [*alone, *chain.settle()]
    check_agreement(plans)
    quorum = compute_quorum(num_honest + num_liars)
    for index in range(num_trainers):
        votes = [vote[index] for vote in honest_votes if index in vote]
        for plan in plans:
            digest = dict(plan.accepted).get(index)
            assert digest is None or votes.count(digest) + num_liars >= quorum
            if any(votes.count(vote) >= quorum for vote in votes):
                assert digest is not None, "nothing waits for liars where the honest are a quorum"


def test_a_late_result_that_every_bloom_holds_is_not_accepted() -> None:
    """With 256 clients one in three commitments is such a one."""
    said = [(index, make_commitment(f"true {index}")) for index in range(3)]
    chain = Attested(3, 4, is_full=True)
    chain.peers = [make_record(3, said) for _ in range(4)]
    for peer in chain.peers:
        chain.attest(peer)
    forged = make_commitment("forged")
    heard_first = make_record(3, [(1, forged), *said])
    only_heard = make_record(3, [said[0], (1, forged), said[2]])
    heard_last = make_record(3, [*said, (1, forged)])
    chain.peers += [heard_first, only_heard, heard_last]
    assert len(chain.plan(only_heard).unopened) == 1
    for plan in chain.settle():
        assert plan.accepted == tuple((index, commitment.compute_hash()) for index, commitment in said)


def test_a_root_over_the_last_result_twice_is_not_one_over_more_results() -> None:
    """Merkle trees pair an odd node with itself, so a, b, c and a, b, c, c have one root."""
    a, b, c = (make_commitment(name) for name in "abc")
    hashes = [commitment.compute_hash() for commitment in (a, b, c)]
    root = compute_merkle_root(hashes)
    assert root == compute_merkle_root([*hashes, hashes[2]])
    encoded = b"".join(commitment.encode() for commitment in (a, b, c))
    record = make_record(4, [])
    assert record.add_opening(root, 3, encoded)
    assert not record.get_opening(root, 4, None)
    assert record.get_opening(root, 3, None) == (a.encode(), b.encode(), c.encode())
    assert record.add_opening(root, 4, encoded + c.encode())


@pytest.mark.parametrize("answer", [b"", bytes(96), bytes(95), bytes(3 * 96), b"x" * 96 * 300])
def test_answers_that_the_root_does_not_prove_are_not_taken(answer: bytes) -> None:
    said = [(index, make_commitment(f"true {index}")) for index in range(3)]
    root = make_record(3, said).compute_broadcast_merkle()
    record = make_record(3, [])
    assert not record.add_opening(root, 3, answer)
    assert not record.commitments
    assert not record.candidates
    assert decode_opening(bytes(32), 0, b"") is None


def test_what_a_liar_attests_is_not_treated_as_signed() -> None:
    """A witness's root may hold what its trainer never said: that does not make an equivocator of it."""
    said = [(index, make_commitment(f"true {index}")) for index in range(3)]
    liar = make_record(3, [(0, make_commitment("slander")), *said[1:]])
    record = make_record(3, said)
    opening = b"".join(
        commitment.encode() for commitment in (make_commitment("slander"), said[1][1], said[2][1])
    )
    assert record.add_opening(liar.compute_broadcast_merkle(), 3, opening)
    assert all(len(known) == 1 for known in record.candidates.values())
    assert not record.equivocators


# ---- the search -------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(0, 2))
def test_a_few_unlikely_choices_are_found(rng: Random, num: int, num_others: int) -> None:
    options = [[hashlib.sha256(bytes([place, 0])).digest()] for place in range(num)]
    others = rng.sample(range(num), min(num_others, num))
    for place in others:
        options[place] += [hashlib.sha256(bytes([place, i])).digest() for i in range(1, 4)]
    true = tuple(rng.choice(choices) for choices in options)
    assert find_opening(compute_merkle_root(true), options, {}) == true
    assert find_opening(bytes(32), options, {}) is None


def test_equivocators_do_not_make_us_try_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    honest = openings.compute_changed_root
    monkeypatch.setattr(openings, "compute_changed_root", lambda *a: tries.append(1) or honest(*a))
    options = [[hashlib.sha256(bytes([place, i])).digest() for i in range(4)] for place in range(256)]
    assert find_opening(bytes(32), options, {}) is None
    assert len(tries) == MAX_TRIES


def test_a_root_is_searched_again_only_when_more_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    honest = openings.find_opening
    monkeypatch.setattr(openings, "find_opening", lambda *a: searched.append(1) or honest(*a))
    record = make_record(2, [(0, make_commitment("a"))])
    root = make_record(2, [(0, make_commitment("a")), (1, make_commitment("b"))]).compute_broadcast_merkle()
    attestation = Attestation((0, 1), root, (0,), (1 << NUM_BITS) - 1)
    assert record.search_openings([attestation], 77) == {}
    assert record.search_openings([attestation], 77) == {}
    assert len(searched) == 1
    record.add_candidate(1, make_commitment("b"))
    assert list(record.search_openings([attestation], 77)) == [attestation.key]
    assert list(record.search_openings([attestation], 77)) == [attestation.key]
    assert len(searched) == 2


def test_the_filter_leaves_out_what_its_witness_cannot_have_attested() -> None:
    """With few clients it finds at once what would be too many combinations."""
    trainers = range(20)
    said = [(index, make_commitment(f"true {index}")) for index in trainers]
    chain = Attested(20, 1)
    witness = make_record(20, said)
    chain.attest(witness)
    others = [(index, make_commitment(f"other {index}")) for index in trainers]
    mixed = [others[i] if i % 2 else said[i] for i in trainers] + [
        said[i] if i % 2 else others[i] for i in trainers
    ]
    replica = make_record(20, mixed)
    assert dict(chain.plan(replica).accepted) == witness.verified
    full = Attested(20, 1, is_full=True)
    full.attest(witness)
    assert len(full.plan(make_record(20, mixed)).unopened) == 1
