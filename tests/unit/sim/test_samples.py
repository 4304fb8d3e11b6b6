"""What became of every sample is counted by id."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from psyche_py.sim.faults import Fault
from psyche_py.sim.ledger import count_ids, find_ranges
from psyche_py.sim.settings import Settings
from psyche_py.sim.world import World

CALM = Settings(num_clients=5, seed=3, config={"total_steps": 14, "epoch_time": 200})


def play(*faults: Fault) -> World:
    world = World(CALM, faults)
    assert world.run()
    return world


def test_ranges_of_a_mask() -> None:
    mask = np.array([1, 1, 0, 1, 0, 0, 1], dtype=bool)
    assert find_ranges(mask) == ((0, 1), (3, 3), (6, 6))
    assert find_ranges(np.zeros(4, dtype=bool)) == find_ranges(np.zeros(0, dtype=bool)) == ()
    assert count_ids(((0, 1), (3, 3))) == 3


def test_in_a_calm_run_every_sample_is_trained_once() -> None:
    world = play()
    samples = world.ledger.count_samples(world.account)
    assert samples.trained + count_ids(samples.lost) == world.account.epoch_start_data_index
    assert samples.again == 0
    assert samples.twice == samples.missing == ()


def test_what_a_dead_client_left_is_trained_again_by_others() -> None:
    world = play(Fault("kill", (1,), "Train", 6, by=1))
    samples = world.ledger.count_samples(world.account)
    assert samples.again > 0
    assert samples.twice == samples.missing == ()
    assert not world.ledger.problems


def test_samples_that_nobody_accounts_for_are_named() -> None:
    world = play()
    ledger = world.ledger
    place = next(place for place, entry in ledger.applied.items() if entry.trained)
    first, last = ledger.applied[place].trained[0]
    ledger.applied[place] = replace(ledger.applied[place], trained=ledger.applied[place].trained[1:])
    assert (first, last) in ledger.count_samples(world.account).missing
