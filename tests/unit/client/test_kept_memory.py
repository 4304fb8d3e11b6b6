"""What a client keeps does not grow with the rounds: an epoch may last for days, a run for months."""

from __future__ import annotations

import gc
import weakref

import pytest
from kept_memory import measure_kept_bytes
from machine_world import World
from verify_case import CONFIG, LR, NANO, Counting

from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.options import ClientOptions
from psyche_py.client.trainer import Trainer
from psyche_py.coordinator.layout import RunState
from psyche_py.distro import Constant, DistroConfig
from psyche_py.model.loader import load_from_config

FIRST, LAST, WINDOW = 120, 300, 20
MAX_BYTES_PER_ROUND = 24
"""Less than the smallest thing that could be remembered of a round: a number in a set."""


def run_to(world: World, height: int) -> int:
    """Play on to a round of the same epoch, and on through a window. What the machines keep there at least:
    records of rounds come and go."""
    least = 10**9
    while world.driver.account.current_round.height < height + WINDOW:
        before = world.driver.account.current_round.height
        world.step()
        now = world.driver.account.current_round.height
        if now >= height and now != before:
            least = min(least, sum(measure_kept_bytes(r.machine, r.machine.account) for r in world.replicas))
    return least


@pytest.mark.parametrize("percent", [0, 50])
def test_a_long_epoch_leaves_nothing_behind(percent: int) -> None:
    world = World(4, 1, verification_percent=percent, total_steps=10**6, epoch_time=10**6, min_clients=2)
    early = run_to(world, FIRST)
    late = run_to(world, LAST)
    assert world.driver.account.epoch == 0
    assert bool(world.court.checked) == bool(percent)
    growth = (late - early) / len(world.replicas) / (LAST - FIRST)
    assert growth < MAX_BYTES_PER_ROUND, f"{growth:.0f} bytes a round: from {early} to {late}"


def test_epochs_leave_nothing_behind() -> None:
    world = World(3, 1, total_steps=10**6, epoch_time=30, min_clients=2)
    kept: list[int] = []
    while len(kept) < 24:
        world.step()
        if world.driver.account.epoch > len(kept) and world.driver.account.run_state is RunState.RoundTrain:
            kept.append(sum(measure_kept_bytes(r.machine, r.machine.account) for r in world.replicas))
    assert min(kept[-8:]) < 1.02 * min(kept[4:12]), kept


def test_settled_disputes_are_forgotten() -> None:
    world = World(6, 1, verification_percent=40, total_steps=10**6, epoch_time=400, min_clients=2)
    world.court.cheaters = {2}
    while not world.court.num_judged:
        world.step()
    assert any(replica.machine.session.verification._ballots._ballots for replica in world.replicas)
    epoch = world.driver.account.epoch
    while world.driver.account.epoch == epoch:
        world.step()
        height = world.driver.account.current_round.height
    while world.driver.account.current_round.height < 3:
        world.step()
    assert height > 20
    for replica in world.replicas:
        if replica.stopped:
            continue
        session = replica.machine.session
        assert not session.verification._ballots._ballots
        shown = {dispute.evidence_hash for dispute in world.driver.account.disputes}
        assert set(replica.machine._news._told) <= shown


def test_what_an_epoch_needed_to_verify_goes_with_it() -> None:
    """Copies of the weights and of momentum, at once: not whenever cycles are looked for."""
    jobs = TrainerJobs(ClientOptions("run"))
    jobs._trainer = Trainer(load_from_config(NANO, 1), DistroConfig(), Constant(LR), Counting(), device="cpu")
    past: list[weakref.ref[object]] = []
    gc.disable()
    try:
        for _ in range(4):
            jobs.set_verification(CONFIG)
            jobs.start_epoch(1, False)
            assert jobs.verification is not None
            for height in range(3):
                trained = jobs.train(height, ((4 * height, 4 * height + 3),), height + 1, {}, 0)
                assert trained is not None
                jobs.apply([trained[0].payload], height + 1, height)
            past += [weakref.ref(jobs.verification), weakref.ref(jobs.verification._weights)]
            past.append(weakref.ref(jobs.verification.momentum))
    finally:
        gc.enable()
    assert [ref() is None for ref in past] == [True] * 9 + [False] * 3
