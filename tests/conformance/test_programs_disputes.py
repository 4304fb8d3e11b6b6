"""Disputes from accusation to outcome, on the program and in the rule book side by side."""

from __future__ import annotations

import pytest
from conformance import Pair
from dispute_court import FRAUD, RATE, REFUSAL, SLASH, Court, open_court
from program_driver import PROGRAM

from psyche_py.coordinator.disputes import JUDGES_PAY, LOSS
from psyche_py.coordinator.duties import compute_duties
from psyche_py.coordinator.layout import ClientState, DisputeState, RunState
from psyche_py.coordinator.rewards import compute_shares
from psyche_py.coordinator.views import Dispute

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
    gained = {c.index: c.attested_rounds - rounds[c.index] for c in clients}
    assert gained == {index: JUDGES_PAY if index in judges[:5] else 0 for index in range(9)}
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


# ---- what a voice is worth --------------------------------------------------------------------------------


def open_dispute(pair: Pair, reason: int = FRAUD) -> tuple[Court, Dispute, list[int]]:
    """Fourteen clients, nine of which judge, with six rounds behind them, which they can lose."""
    court = open_court(pair, 14)
    court.play_until(6)
    dispute = court.accuse(reason=reason)
    court.play_round()
    judges = court.find_judges(dispute)
    assert len(judges) == 9
    return court, dispute, judges


def cast(court: Court, dispute: Dispute, guilty: list[int], not_guilty: list[int]) -> Dispute:
    """The voices against come first."""
    for index in not_guilty:
        court.ok("vote", **court.make_ballot(dispute, index, False))
    for index in guilty:
        court.ok("vote", **court.make_ballot(dispute, index, True))
    return court.find(dispute.evidence_hash)


def count_rounds(court: Court) -> list[int]:
    return [client.attested_rounds for client in court.account.epoch_clients]


def test_the_majority_is_paid_and_the_minority_pays(pair: Pair) -> None:
    """Of nine judges three acquit, then six convict."""
    court, dispute, judges = open_dispute(pair)
    before = count_rounds(court)
    settled = cast(court, dispute, judges[3:], judges[:3])
    assert settled.state is DisputeState.Guilty
    gained = [after - old for after, old in zip(count_rounds(court), before, strict=True)]
    expected = dict.fromkeys(judges[3:], JUDGES_PAY) | dict.fromkeys(judges[:3], -LOSS)
    assert gained == [expected.get(index, 0) for index in range(14)]


def test_who_comes_after_the_decision_is_neither_paid_nor_blamed(pair: Pair) -> None:
    court, dispute, judges = open_dispute(pair)
    assert cast(court, dispute, judges[:6], []).state is DisputeState.Guilty
    before = count_rounds(court)
    for is_guilty in (True, False):
        court.refuse("NoSuchDispute", "vote", **court.make_ballot(dispute, judges[6], is_guilty))
    assert count_rounds(court) == before


@pytest.mark.parametrize("reason", [FRAUD, REFUSAL])
@pytest.mark.parametrize("num_guilty", [0, 3, 4, 5])
def test_what_most_say_counts_though_it_convicts_nobody(pair: Pair, num_guilty: int, reason: int) -> None:
    """Five are more than half of nine judges, four are not. The accuser is a voice for guilty."""
    court, dispute, judges = open_dispute(pair, reason)
    guilty, not_guilty = judges[:num_guilty], judges[num_guilty : min(9, num_guilty + 5)]
    if num_guilty == 4:
        not_guilty = not_guilty[:4]
    assert cast(court, dispute, guilty, not_guilty).is_open
    before = count_rounds(court)
    idle = next(i for i in range(14) if i not in (*judges, dispute.accuser, dispute.trainer))
    while court.find(dispute.evidence_hash).is_open:
        court.play_round()
    assert court.find(dispute.evidence_hash).state is DisputeState.Undecided
    gained = [after - old for after, old in zip(count_rounds(court), before, strict=True)]
    expected = dict.fromkeys(range(14), gained[idle])
    winners, losers = (guilty, not_guilty) if num_guilty == 5 else (not_guilty, [*guilty, dispute.accuser])
    if num_guilty != 4:
        expected |= dict.fromkeys(winners, gained[idle] + JUDGES_PAY)
        expected |= dict.fromkeys(losers, gained[idle] - LOSS)
    assert gained == [expected[index] for index in range(14)]
    assert all(entry.slashed == 0 for entry in court.account.entries)
    assert all(client.state is ClientState.Healthy for client in court.account.epoch_clients)


def accuse_at_the_end(court: Court) -> Dispute:
    """An accusation so late that the tie-breakers of the cooldown judge it."""
    dispute = court.accuse(late=1)
    while court.account.run_state is not RunState.Cooldown:
        court.play_round()
    return dispute


def test_the_end_of_an_epoch_counts_voices_before_points_are_settled(pair: Pair) -> None:
    """What an undecided dispute was worth is in the epoch's points."""
    court = open_court(pair, 14)
    court.play_until(6)
    court.close_epoch()
    court.play_until(8)
    dispute = accuse_at_the_end(court)
    judges = court.find_judges(dispute)
    assert cast(court, dispute, judges[:5], judges[5:]).is_open
    weights = count_rounds(court)
    for index in judges[:5]:
        weights[index] += JUDGES_PAY
    for index in judges[5:]:
        weights[index] -= LOSS
    court.wait(court.account.config.max_round_train_time)
    assert court.find(dispute.evidence_hash).state is DisputeState.Undecided
    earned = [court.get_points(index)[0] for index in range(14)]
    assert earned == compute_shares(RATE, weights)


def test_nobody_loses_more_rounds_than_it_has(pair: Pair) -> None:
    court = open_court(pair, 14)
    court.play_until_duty()
    dispute = court.accuse()
    court.play_round()
    judges = court.find_judges(dispute)
    assert max(count_rounds(court)) < LOSS
    cast(court, dispute, judges[2:8], judges[:2])
    assert [count_rounds(court)[index] for index in judges[:2]] == [0, 0]


def test_without_evidence_three_quarters_convict(pair: Pair) -> None:
    """Two thirds say that it refused: still open. Two thirds that it answered end it."""
    court, dispute, judges = open_dispute(pair, REFUSAL)
    assert cast(court, dispute, judges[:6], []).is_open
    assert cast(court, dispute, judges[6:7], []).state is DisputeState.Guilty
    assert court.account.epoch_clients[dispute.trainer].state is ClientState.Ejected
    court, dispute, judges = open_dispute(pair, REFUSAL)
    assert cast(court, dispute, [], judges[:6]).state is DisputeState.NotGuilty


# ---- how many decide --------------------------------------------------------------------------------------


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
    dispute = accuse_at_the_end(court)
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
    dispute = accuse_at_the_end(court)
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
