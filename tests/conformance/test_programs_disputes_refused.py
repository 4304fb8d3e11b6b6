"""Who may not accuse, vote, claim or join, and what disputes leave behind, on both sides."""

from __future__ import annotations

import pytest
from conformance import Pair
from dispute_court import FRAUD, SLASH, Court, open_court
from history_accounts import BOND_FLAWS
from program_driver import PROGRAM
from rulebook_driver import get_hint, make_join

from psyche_py.chain.events import DisputeOpened, DisputeSettled, read_events
from psyche_py.coordinator.assignment import compute_assignment
from psyche_py.coordinator.committee import compute_committee
from psyche_py.coordinator.layout import Committee, DisputeState

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="run `make programs` first")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(41)


# ---- refusals ---------------------------------------------------------------------------------------------


def test_who_may_accuse_whom_of_what(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(3)
    right = court.make_accusation()
    for change, error in (
        ({"client": 20}, "SignerNotAClient"),
        ({"client": (right["client"] + 1) % 9}, "ClientNotInEpoch"),
        ({"index": (right["index"] + 1) % 9}, "ClientNotInEpoch"),
        ({"index": 65535}, "ClientNotInEpoch"),
        ({"trainer": (right["trainer"] + 1) % 9}, "NotTheVerifier"),
        ({"trainer": 65535}, "NotTheVerifier"),
        ({"height": 1}, "NotTheVerifier"),
        ({"height": 3}, "NotTheVerifier"),
        ({"height": 2**32 - 1}, "NotTheVerifier"),
        ({"reason": 0}, "InvalidInstructionData"),
        ({"reason": 9}, "InvalidInstructionData"),
    ):
        court.refuse(error, "verdict", **{**right, **change})
    court.ok("verdict", **right)
    court.refuse("DuplicateVerdict", "verdict", **{**right, "evidence_hash": "ab" * 32})
    other = court.make_accusation(1)
    # with one piece of evidence for two disputes, votes about one would count for the other
    copied = {**other, "evidence_hash": right["evidence_hash"]}
    court.refuse("DuplicateVerdict", "verdict", **copied)
    court.ok("leave_run", client=other["client"])
    court.refuse("ClientNotInEpoch", "verdict", **other)


def test_who_is_no_verifier_accuses_nobody(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(3)
    committees = compute_committee(court.account, court.account.current_round)
    right = court.make_accusation()
    for client, committee in committees.items():
        if committee is not Committee.Verifier:
            court.refuse("NotTheVerifier", "verdict", **{**right, "client": client, "index": client})


def test_without_verification_nobody_accuses(pair: Pair) -> None:
    court = open_court(pair, 3, verification_percent=0)
    court.play_until(3)
    for client in range(3):
        accusation = {"client": client, "index": client, "trainer": (client + 1) % 3, "height": 2}
        court.refuse("NotTheVerifier", "verdict", **accusation, reason=FRAUD, evidence_hash="ab" * 32)


def test_as_many_disputes_as_there_are_places(pair: Pair) -> None:
    court = open_court(pair, 40)
    court.play_until(2)
    for number in range(7):
        court.accuse(number)
    court.refuse("DisputesFull", "verdict", **court.make_accusation(7))
    court.play_round()
    disputes = court.account.disputes
    assert court.vote(disputes[3], True).state is DisputeState.Guilty
    assert court.vote(disputes[5], True).state is DisputeState.Guilty
    assert court.accuse(0).slot == 3
    court.play_until(7)
    states = [d.state for d in court.account.disputes]
    assert states.count(DisputeState.Undecided) == 5


def test_the_oldest_place_is_taken_first(pair: Pair) -> None:
    """So that what was judged a moment ago cannot be brought up again."""
    court = open_court(pair, 20)
    court.play_until(2)
    first = court.accuse(0)
    court.play_round()
    court.vote(first, True)
    again = court.accuse(0)
    assert (first.slot, again.slot) == (0, 1)


def test_who_may_vote(pair: Pair) -> None:
    court = open_court(pair, 20)
    court.play_until(2)
    dispute = court.accuse()
    anybody = court.make_ballot(dispute, 0, True)
    court.refuse("VotingOver", "vote", **anybody)
    court.play_round()
    judges = court.find_judges(dispute)
    for client in set(range(20)) - set(judges):
        court.refuse("NotATieBreaker", "vote", **court.make_ballot(dispute, client, True))
    right = court.make_ballot(dispute, judges[0], True)
    for change, error in (
        ({"client": 30}, "SignerNotAClient"),
        ({"client": judges[1]}, "ClientNotInEpoch"),
        ({"index": 65535}, "ClientNotInEpoch"),
        ({"evidence_hash": "ab" * 32}, "NoSuchDispute"),
        ({"evidence_hash": "00" * 32}, "NoSuchDispute"),
    ):
        court.refuse(error, "vote", **{**right, **change})
    court.ok("vote", **right)
    court.refuse("DuplicateVote", "vote", **right)
    court.refuse("DuplicateVote", "vote", **{**right, "is_guilty": False})
    court.ok("leave_run", client=judges[1])
    court.refuse("ClientNotInEpoch", "vote", **court.make_ballot(dispute, judges[1], True))
    assert court.vote(dispute, True, 0).is_open
    for index in judges[2:7]:
        court.ok("vote", **court.make_ballot(dispute, index, True))
    court.refuse("NoSuchDispute", "vote", **court.make_ballot(dispute, judges[7], True))


# ---- what is told, debts, bonds, addresses ----------------------------------------------------------------


def test_the_log_tells_of_it(pair: Pair) -> None:
    court = open_court(pair, 5)
    court.play_until(2)
    dispute = court.accuse()

    def read() -> list[DisputeOpened | DisputeSettled]:
        return read_events(pair.program.logs).get_disputes(pair.program.run)

    (opened,) = read()
    assert isinstance(opened, DisputeOpened)
    assert (opened.nonce, opened.height, opened.reason) == (court.account.nonce, 1, FRAUD)
    assert bytes(opened.accuser) == dispute.accuser_signer
    court.play_round()
    court.vote(dispute, True)
    (settled,) = read()
    assert isinstance(settled, DisputeSettled)
    assert (settled.state, settled.num_guilty, settled.num_not_guilty) == (DisputeState.Guilty, 2, 0)
    assert (settled.slashed, settled.evidence_hash) == (SLASH, dispute.evidence_hash)
    assert bytes(settled.trainer) == dispute.trainer_signer


def test_a_debt_is_paid_by_a_bond_or_by_later_earnings(pair: Pair) -> None:
    court = open_court(pair, 5)
    court.play_until(2)
    dispute = court.accuse()
    court.play_round()
    court.vote(dispute, True)
    user = dispute.trainer
    court.refuse("ClaimExceedsEarned", "settle_debt", user=user, points=SLASH + 1)
    court.refuse("SignerNotAClient", "settle_debt", user=30, points=1)
    court.refuse("WrongAuthority", "settle_debt", client=0, user=user, points=1)
    court.ok("settle_debt", user=user, points=100)
    assert court.get_points(user)[1:] == (SLASH - 100, SLASH - 100)
    court.end_epoch()
    court.start_epoch()
    court.play_until(3)
    court.end_epoch()
    earned, slashed, debt = court.get_points(user)
    assert earned > slashed == SLASH - 100
    assert debt == 0
    court.refuse("ClaimExceedsEarned", "settle_debt", user=user, points=1)
    court.refuse("ClaimExceedsEarned", "record_claim", user=user, points=earned - slashed + 1)
    court.ok("record_claim", user=user, points=earned - slashed)


@pytest.mark.parametrize("flaw", BOND_FLAWS)
def test_what_is_no_bond(pair: Pair, flaw: str) -> None:
    pair.start()
    court = Court(pair, 2, required_bond=1000)
    join = make_join(0)
    court.refuse("BondMissing", "join_run", **join)
    court.ok("bond", bond=0, user=0, amount=1000, flaw=flaw)
    court.refuse("BondMissing", "join_run", **join, bond=0)
    court.ok("bond", bond=0, user=1, amount=1000)
    court.refuse("BondMissing", "join_run", **join, bond=0)
    court.ok("bond", bond=0, user=0, amount=999)
    court.refuse("BondMissing", "join_run", **join, bond=0)
    court.ok("bond", bond=0, user=0, amount=1000)
    court.ok("join_run", **join, bond=0)


def test_an_address_changes_at_any_time(pair: Pair) -> None:
    court = open_court(pair, 3)
    nonce, before = court.account.nonce, court.account.run_state_start
    court.ok("advance", seconds=100, slots=1)
    court.ok("announce", client=1, address_hint=get_hint(4444).hex())
    assert court.account.epoch_clients[1].address_hint == get_hint(4444)
    assert (court.account.nonce, court.account.run_state_start) == (nonce + 1, before)
    court.ok("announce", client=1, address_hint=get_hint(4444).hex())
    assert court.account.nonce == nonce + 1
    court.refuse("InvalidAddressHint", "announce", client=1, address_hint=get_hint(1, 4).hex())
    court.refuse("SignerNotAClient", "announce", client=9, address_hint=get_hint(1).hex())


def test_tie_breakers_train_and_verifiers_do_not(pair: Pair) -> None:
    court = open_court(pair, 30)
    court.play_until(2)
    court.accuse()
    court.play_round()
    current = court.account.current_round
    committees = compute_committee(court.account, current)
    counts = [list(committees.values()).count(kind) for kind in Committee]
    assert counts == [11, 9, 10]
    idle = {index for index, committee in committees.items() if committee is Committee.Verifier}
    assert not idle & set(compute_assignment(court.account, current))
