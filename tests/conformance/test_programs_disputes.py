"""Disputes from accusation to outcome, on the program and in the rule book side by side."""

from __future__ import annotations

import pytest
from conformance import Pair
from dispute_court import RATE, REFUSAL, SLASH, open_court
from program_driver import PROGRAM

from psyche_py.coordinator.duties import compute_duties
from psyche_py.coordinator.layout import ClientState, DisputeState, RunState

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="run `make programs` first")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(41)


# ---- outcomes ---------------------------------------------------------------------------------------------


def test_a_cheat_is_ejected_slashed_and_not_paid(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(3)
    dispute = court.accuse()
    assert (dispute.state, dispute.judge_height, dispute.tie_breakers) == (DisputeState.Open, 0, 0)
    court.play_round()
    assert court.account.current_round.tie_breaker_tasks == 9
    court.refuse("InDispute", "record_claim", user=dispute.trainer, points=0)
    rounds = [client.attested_rounds for client in court.account.epoch_clients]
    judges = court.find_judges(dispute)
    assert len(judges) == 7
    settled = court.vote(dispute, True)
    assert (settled.state, len(settled.votes)) == (DisputeState.Guilty, 5)
    clients = court.account.epoch_clients
    assert clients[dispute.trainer].state is ClientState.Ejected
    assert clients[dispute.trainer].exited_height == 4
    gained = {client.index for client in clients if client.attested_rounds > rounds[client.index]}
    assert gained == set(judges[:5])
    court.ok("record_claim", user=dispute.trainer, points=0)
    court.end_epoch()
    assert court.get_points(dispute.trainer) == (0, SLASH, SLASH)
    assert sum(entry.earned for entry in court.account.entries) == RATE


def test_a_false_accuser_is_ejected_and_slashed(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(2)
    dispute = court.accuse()
    court.play_round()
    assert court.vote(dispute, False).state is DisputeState.NotGuilty
    clients = court.account.epoch_clients
    assert clients[dispute.accuser].state is ClientState.Ejected
    assert clients[dispute.trainer].state is ClientState.Healthy
    assert court.get_points(dispute.accuser)[1:] == (SLASH, SLASH)


def test_who_has_left_is_ejected_all_the_same(pair: Pair) -> None:
    """An accuser that leaves before it is found to have lied, a cheat that leaves before it is found out."""
    for is_guilty in (True, False):
        court = open_court(pair, 9)
        court.play_until(2)
        dispute = court.accuse()
        loser = dispute.trainer if is_guilty else dispute.accuser
        court.ok("leave_run", client=loser)
        exited = court.account.epoch_clients[loser].exited_height
        court.play_round()
        # a party that is gone needs no seat
        assert court.find(dispute.evidence_hash).tie_breakers == 7
        court.vote(dispute, is_guilty)
        client = court.account.epoch_clients[loser]
        assert (client.state, client.exited_height) == (ClientState.Ejected, exited)
        assert court.get_points(loser)[1] == SLASH


def test_a_refusal_that_was_answered_costs_no_points_but_not_often(pair: Pair) -> None:
    court = open_court(pair, 9)
    counts: dict[int, int] = {}
    while max(counts.values(), default=0) < 2:
        court.play_until_duty()
        dispute = court.accuse(reason=REFUSAL)
        court.play_round()
        assert court.vote(dispute, False).state is DisputeState.NotGuilty
        for party in (dispute.accuser, dispute.trainer):
            counts[party] = counts.get(party, 0) + 1
    for client in court.account.epoch_clients:
        assert client.refusals == counts.get(client.index, 0)
        assert client.state is (ClientState.Dropped if client.refusals > 1 else ClientState.Healthy)
    assert all(entry.slashed == 0 for entry in court.account.entries)


def test_a_refusal_that_was_one_is_as_bad_as_fraud(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(2)
    dispute = court.accuse(reason=REFUSAL)
    court.play_round()
    assert court.vote(dispute, True).state is DisputeState.Guilty
    assert court.account.epoch_clients[dispute.trainer].state is ClientState.Ejected


@pytest.mark.parametrize(
    ("num", "judges", "needed"), [(3, 1, 1), (4, 2, 2), (5, 3, 2), (11, 9, 6), (14, 9, 6)]
)
def test_two_thirds_of_the_tie_breakers_decide(pair: Pair, num: int, judges: int, needed: int) -> None:
    court = open_court(pair, num)
    court.play_until(2)
    dispute = court.accuse()
    court.play_round()
    voters = court.find_judges(dispute)
    assert (len(voters), court.find(dispute.evidence_hash).tie_breakers) == (judges, judges)
    assert not {dispute.accuser, dispute.trainer} & set(voters)
    assert court.vote(dispute, True, needed - 1).is_open
    for index in voters[needed - 1 : 2 * needed - 2]:
        court.ok("vote", **court.make_ballot(dispute, index, False))
    assert court.find(dispute.evidence_hash).is_open
    last = voters[2 * needed - 2 :]
    if last:
        court.ok("vote", **court.make_ballot(dispute, last[0], True))
        assert court.find(dispute.evidence_hash).state is DisputeState.Guilty


def test_of_two_clients_nobody_can_judge(pair: Pair) -> None:
    court = open_court(pair, 2)
    court.play_until_duty()
    dispute = court.accuse()
    court.play_round()
    settled = court.find(dispute.evidence_hash)
    assert (settled.state, settled.tie_breakers) == (DisputeState.Undecided, 0)
    assert court.account.current_round.tie_breaker_tasks == 0
    assert all(client.state is ClientState.Healthy for client in court.account.epoch_clients)


# ---- when -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_verdict_may_be_two_rounds_late(pair: Pair, late: int) -> None:
    court = open_court(pair, 9)
    court.play_until(4)
    assert court.accuse(late=late).height == 3 - late


def test_a_later_verdict_is_refused(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(3)
    accusation = court.make_accusation()
    court.play_until(6)
    court.refuse("NotTheVerifier", "verdict", **accusation)


def test_votes_end_when_the_judges_round_leaves_the_ring(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(2)
    dispute = court.accuse()
    court.play_until(6)
    assert court.find(dispute.evidence_hash).judge_height == 3
    assert court.vote(dispute, True, 2).is_open
    court.play_until(7)
    assert court.find(dispute.evidence_hash).state is DisputeState.Undecided
    ballot = court.make_ballot(dispute, 0, True)
    court.refuse("NoSuchDispute", "vote", **ballot)
    assert all(entry.slashed == 0 for entry in court.account.entries)


def test_an_accusation_in_the_last_round_gets_its_judges(pair: Pair) -> None:
    """One more round that applies nothing, and one more for a verdict two rounds late; then it ends."""
    court = open_court(pair, 9)
    court.play_until(3)
    court.close_epoch()
    court.play_until(5)
    last = court.account.last_step
    assert (court.account.current_round.apply_only, court.account.step) == (True, last - 1)
    first = court.accuse(number=0, late=1)
    court.play_round()
    assert (court.account.run_state, court.account.step) == (RunState.RoundTrain, last)
    assert court.account.current_round.apply_only
    second = court.accuse(number=1, late=2)
    court.play_round()
    assert court.account.run_state is RunState.RoundTrain
    # the round of height 3 was the last that trained: nothing is left to be accused for
    for late in (0, 1, 2):
        assert compute_duties(court.account, court.account.current_round.height - late) == []
    court.play_round()
    assert court.account.run_state is RunState.Cooldown
    assert court.vote(first, True).state is DisputeState.Guilty
    assert court.find(second.evidence_hash).is_open


def test_cooldown_waits_for_tie_breakers_as_long_as_a_round(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(3)
    court.close_epoch()
    court.play_until(5)
    dispute = court.accuse(late=1)
    while court.account.run_state is not RunState.Cooldown:
        court.play_round()
    config = court.account.config
    assert config.cooldown_time < config.max_round_train_time
    court.wait(config.cooldown_time)
    assert court.account.run_state is RunState.Cooldown
    court.vote(dispute, True)
    court.ok("tick")
    assert court.account.run_state is RunState.WaitingForMembers
    assert court.get_points(dispute.trainer)[:2] == (0, SLASH)


def test_what_is_open_at_the_end_stays_undecided(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(3)
    court.close_epoch()
    court.play_until(5)
    dispute = court.accuse(late=1)
    while court.account.run_state is not RunState.Cooldown:
        court.play_round()
    court.vote(dispute, True, 3)
    court.refuse("InDispute", "record_claim", user=dispute.accuser, points=0)
    court.wait(court.account.config.max_round_train_time)
    assert court.account.run_state is RunState.WaitingForMembers
    assert court.find(dispute.evidence_hash).state is DisputeState.Undecided
    court.ok("record_claim", user=dispute.accuser, points=1)
    court.start_epoch()
    assert court.account.disputes == ()


def test_a_pause_waits_for_the_dispute(pair: Pair) -> None:
    court = open_court(pair, 9)
    court.play_until(3)
    dispute = court.accuse()
    court.ok("set_paused", paused=True)
    while court.account.run_state is not RunState.Cooldown:
        court.play_round()
    assert court.vote(dispute, True).state is DisputeState.Guilty
    court.wait(court.account.config.cooldown_time)
    assert court.account.run_state is RunState.Paused
    ballot = court.make_ballot(dispute, 0, True)
    court.refuse("Halted", "vote", **ballot)


def test_an_epoch_that_breaks_off_leaves_the_dispute_undecided(pair: Pair) -> None:
    """Nobody attests: everybody is withdrawn, and nobody is left to judge."""
    court = open_court(pair, 9)
    court.play_until(3)
    dispute = court.accuse()
    court.wait(court.account.config.max_round_train_time)
    court.wait(court.account.config.round_witness_time)
    assert court.account.run_state is RunState.Cooldown
    assert court.find(dispute.evidence_hash).is_open
    court.wait(court.account.config.cooldown_time)
    assert court.find(dispute.evidence_hash).state is DisputeState.Undecided
