"""What a run paid whom, in rounds' pay: an honest client that does its part in all rounds gets 1 for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from psyche_py.sim.economy.conduct import Person
from psyche_py.sim.economy.run import EconomyRun
from psyche_py.sim.economy.settings import ROUND_POINTS


@dataclass(frozen=True, slots=True)
class Group:
    """Means over some people and over the rounds of a run; ``convictions`` are a person's in the whole run.

    earned:    points from epochs, before anything was slashed
    balance:   points to claim, and bonds, less what was deposited
    unbonded:  points to claim, had nothing been bonded
    work:      rounds' work
    """

    num: int
    earned: float
    balance: float
    unbonded: float
    work: float
    convictions: float
    presence: float

    def compute_payoff(self, cost_share: float) -> float:
        """What is left of a round's pay, where a round's work costs ``cost_share`` of it."""
        return self.balance - cost_share * self.work


def measure_group(run: EconomyRun, people: Sequence[Person]) -> Group | None:
    """None for nobody."""
    if not people:
        return None
    num_rounds = run.tally.trained_rounds
    unit = ROUND_POINTS * num_rounds
    wallets = [[run.wallets[number] for number in person.wallets] for person in people]
    # what a bond has paid is no longer in ``slashed``
    unbonded = [sum(max(w.earned - w.slashed - w.paid_by_bond, 0) for w in own) for own in wallets]
    return Group(
        num=len(people),
        earned=fmean(sum(w.earned for w in own) for own in wallets) / unit,
        balance=fmean(run.get_balance(person) for person in people) / unit,
        unbonded=fmean(unbonded) / unit,
        work=fmean(person.work for person in people) / num_rounds,
        convictions=fmean(person.convictions for person in people),
        presence=fmean(person.rounds_present for person in people) / num_rounds,
    )


def compute_threshold(cheats: Group, honest: Group, cost_share: float, num_rounds: int) -> float | None:
    """The slashing rate, in rounds' pay, above which these cheats would have earned less than honesty.

    0 where they do without being slashed; None where they earn more and are never convicted.
    """
    gain = (cheats.earned - honest.earned - cost_share * (cheats.work - honest.work)) * num_rounds
    if gain <= 0:
        return 0.0
    return gain / cheats.convictions if cheats.convictions else None


def compute_formula_threshold(saved: float, verified_share: float, caught: float, cost_share: float) -> float:
    """L >= w (1 - vc) / (vc) of docs/verification.md, of a cheat that saves ``saved`` of a round's work."""
    rate = verified_share * caught
    return saved * cost_share * (1 - rate) / rate if rate else float("inf")
