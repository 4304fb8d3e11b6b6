"""The simulated economy: its arithmetic, and that the rule book does to cheats what it should."""

from __future__ import annotations

import random

import pytest

from psyche_py.sim.economy.collusion import NUM_DRAWS, compute_tail, measure_odds
from psyche_py.sim.economy.conduct import FRAUD, REFUSAL, Cheat, Person
from psyche_py.sim.economy.payoff import Group, compute_formula_threshold, compute_threshold, measure_group
from psyche_py.sim.economy.run import EconomyRun
from psyche_py.sim.economy.settings import ROUND_POINTS, EconomySettings
from psyche_py.sim.economy.side import RuleBookSide

SETTINGS = EconomySettings(num_epochs=2, epoch_rounds=8, verification_percent=25, num_tie_breakers=3)
FREELOADER = Cheat("no_work", work=0.0, cases=((FRAUD, FRAUD),), verifies=False)


def play(cheat: Cheat | None, num_cheats: int = 3, num: int = 12, *, moves_on: bool = True) -> EconomyRun:
    people = [Person(number, -1, precision=number % 2, moves_on=moves_on) for number in range(num)]
    for person in people[:num_cheats]:
        person.cheat, person.gang = cheat, 1
    run = EconomyRun(RuleBookSide("a test"), SETTINGS, people, random.Random(7))
    run.play()
    return run


def get_earned(run: EconomyRun) -> int:
    return sum(entry.earned for entry in run.account.entries)


def check_points(run: EconomyRun) -> None:
    """Every epoch's points are in somebody's entry, and every conviction's are taken once."""
    assert get_earned(run) == SETTINGS.num_epochs * SETTINGS.compute_epoch_points(len(run.people))
    assert sum(wallet.earned for wallet in run.wallets.values()) == get_earned(run)
    for wallet in run.wallets.values():
        taken = wallet.slashed + wallet.paid_by_bond
        assert taken == wallet.convictions * SETTINGS.slash_points
        assert wallet.bond == wallet.deposited - wallet.paid_by_bond


def test_an_honest_run_pays_everybody_alike() -> None:
    run = play(None)
    pay = SETTINGS.num_epochs * SETTINGS.epoch_rounds * ROUND_POINTS
    assert [run.get_balance(person) for person in run.people] == [pay] * 12
    assert run.tally.trained_rounds == SETTINGS.num_epochs * SETTINGS.epoch_rounds
    # a round is work for trainers and for verifiers that have somebody to look at, never more
    assert all(8 < person.work <= 16 for person in run.people)
    assert run.tally.checks > 0
    assert not run.tally.verdicts
    check_points(run)


@pytest.mark.parametrize("moves_on", [False, True])
def test_freeloaders_are_convicted_and_slashed_whatever_wallet_they_come_back_with(moves_on: bool) -> None:
    run = play(FREELOADER, moves_on=moves_on)
    cheats, honest = run.people[:3], run.people[3:]
    assert sum(person.convictions for person in cheats) > 0
    assert not any(person.convictions for person in honest)
    assert all(len(p.wallets) == 1 + (p.convictions if moves_on else 0) for p in cheats)
    convicted = [p for p in cheats if p.convictions]
    assert max(map(run.get_balance, convicted)) < min(map(run.get_balance, honest))
    check_points(run)


def test_a_conviction_costs_the_epoch_and_the_slashing_rate() -> None:
    """With one epoch a convicted client has earned nothing, and its bond pays all of the rate."""
    run = play(FREELOADER)
    convicted = [p for p in run.people if p.convictions == SETTINGS.num_epochs]
    assert convicted
    assert {run.get_balance(p) for p in convicted} == {-SETTINGS.num_epochs * SETTINGS.slash_points}


def test_results_that_nobody_can_attest_earn_nothing() -> None:
    run = play(Cheat("late_commit", work=0.0, is_delivered=False, verifies=False))
    late, honest = run.people[:3], run.people[3:]
    # until it is dropped, a round in which it happens to be a verifier and has nothing to deliver is paid
    assert min(map(run.get_balance, late)) == 0
    assert max(map(run.get_balance, late)) < min(map(run.get_balance, honest)) / 2
    assert run.tally.dropped == SETTINGS.num_epochs * len(late)  # by health checks
    assert run.tally.verdicts["looked", "accepted"] == 0
    check_points(run)


def test_who_accuses_falsely_is_convicted_and_its_victims_are_not() -> None:
    run = play(Cheat("false_accusation", accusation=FRAUD))
    assert run.tally.outcomes["honest", "NotGuilty"] > 0
    assert run.tally.outcomes["honest", "Guilty"] == 0
    assert sum(person.convictions for person in run.people[:3]) > 0
    assert not any(person.convictions for person in run.people[3:])
    check_points(run)


def test_a_refused_refusal_costs_no_points_but_is_counted() -> None:
    run = play(Cheat("false_refusal", accusation=REFUSAL))
    assert run.tally.outcomes["honest", "NotGuilty"] > 0
    assert not any(person.convictions for person in run.people)
    assert max(map(run.get_balance, run.people[:3])) < min(map(run.get_balance, run.people[3:]))
    check_points(run)


def test_who_votes_without_looking_works_less_and_earns_less_than_that_is_worth() -> None:
    """Two liars never are two thirds of nine judges, and three outsiders give them something to lie about."""
    settings = EconomySettings(num_epochs=3, epoch_rounds=12, verification_percent=25)
    people = [Person(number, -1, precision=number % 2) for number in range(24)]
    for person in people[:2]:
        person.cheat, person.gang = Cheat("lying_tie_breaker", votes_blindly=True), 1
    for person in people[2:5]:
        person.cheat, person.gang = FREELOADER, 2
    run = EconomyRun(RuleBookSide("liars"), settings, people, random.Random(7))
    run.play()
    assert run.tally.outcomes["cheat", "Guilty"] > 0
    liars, honest = measure_group(run, people[:2]), measure_group(run, people[5:])
    assert liars is not None
    assert honest is not None
    assert (liars.convictions, honest.convictions) == (0, 0)
    assert liars.work < honest.work
    assert honest.balance - liars.balance > honest.work - liars.work


def make_group(**values: float) -> Group:
    blank = dict.fromkeys(("earned", "balance", "unbonded", "work", "convictions", "presence"), 0.0)
    return Group(num=1, **{**blank, **values})


def test_the_threshold_is_where_both_earn_the_same() -> None:
    cheats, honest = make_group(earned=0.9, work=0.2, convictions=2.0), make_group(earned=1.0, work=1.0)
    rate = compute_threshold(cheats, honest, 0.7, 100)
    assert rate is not None
    payoff = cheats.earned - rate * cheats.convictions / 100 - 0.7 * cheats.work
    assert payoff == pytest.approx(honest.earned - 0.7 * honest.work)
    assert compute_threshold(make_group(earned=1.1, work=1.0), honest, 0.7, 100) is None
    assert compute_threshold(make_group(earned=0.1, work=0.0), honest, 0.7, 100) == 0.0


def test_the_formula_is_that_of_the_documentation() -> None:
    assert compute_formula_threshold(1.0, 0.05, 1.0, 1.0) == pytest.approx(19.0)
    assert compute_formula_threshold(0.5, 0.05, 1.0, 0.7) == pytest.approx(19.0 * 0.35)
    assert compute_formula_threshold(1.0, 0.05, 0.0, 0.7) == float("inf")


def test_the_tail_of_the_hypergeometric_distribution() -> None:
    assert compute_tail(5, 2, 2, 2) == pytest.approx(1 / 10)
    assert compute_tail(5, 2, 2, 0) == pytest.approx(1.0)
    assert compute_tail(5, 1, 2, 2) == 0.0


def test_draws_agree_with_the_formulas() -> None:
    odds = measure_odds(16, 0.33, 5, seed=3)
    for name in ("convict_innocent", "block"):
        expected = odds[f"{name}_formula"]
        deviation = (expected * (1 - expected) / NUM_DRAWS) ** 0.5
        assert abs(odds[name] - expected) <= 5 * deviation
    expected, results = odds["looked_at_formula"], NUM_DRAWS * odds["colluders"] * 15 / 16
    assert abs(odds["looked_at"] - expected) <= 5 * (expected / results) ** 0.5


def test_in_a_small_run_everybody_judges_and_luck_decides_nothing() -> None:
    """Eight clients: six judge, four convict. Three colluders can do nothing, and with four no look helps."""
    three, four = measure_odds(8, 0.4, 5, seed=1), measure_odds(8, 0.5, 5, seed=1)
    assert (three["colluders"], three["convict_innocent"], three["block"]) == (3, 0.0, 0.0)
    assert (four["colluders"], four["convict_innocent"], four["block"]) == (4, 0.0, 1.0)
