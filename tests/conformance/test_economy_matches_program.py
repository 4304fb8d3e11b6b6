"""The simulated economy on the program: the same bytes as on the rule book after every call."""

from __future__ import annotations

import random

import pytest
from economy_pair import PairSide

from psyche_py.sim.economy.conduct import FRAUD, REFUSAL, Cheat, Person
from psyche_py.sim.economy.run import EconomyRun
from psyche_py.sim.economy.settings import EconomySettings

SETTINGS = EconomySettings(num_epochs=2, epoch_rounds=8, verification_percent=25, num_tie_breakers=3)


@pytest.mark.parametrize(
    "cheat",
    [
        Cheat("no_work", work=0.0, cases=((FRAUD, FRAUD),)),
        Cheat("late_commit", is_delivered=False),
        Cheat("false_accusation", accusation=FRAUD),
        Cheat("false_refusal", accusation=REFUSAL),
    ],
    ids=lambda cheat: cheat.name,
)
def test_a_run_of_cheats_on_both(cheat: Cheat) -> None:
    people = [Person(number, -1, moves_on=number % 2 == 0) for number in range(12)]
    for person in people[:3]:
        person.cheat, person.gang = cheat, 1
    side = PairSide()
    run = EconomyRun(side, SETTINGS, people, random.Random(1))
    run.play()
    assert side.num_calls > 200
    assert run.tally.trained_rounds == SETTINGS.num_epochs * SETTINGS.epoch_rounds
