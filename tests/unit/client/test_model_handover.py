"""What a run has trained outlives its clients, in virtual time: machines against the rule book."""

from __future__ import annotations

import pytest
from machine_world import Replica, World, check_replicas

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import CheckpointKind, RunState
from psyche_py.coordinator.state import CoordinatorAccount

CONFIG = {"epoch_time": 60, "warmup_time": 20, "init_min_clients": 2}
P2P, ORIGIN = CheckpointKind.P2P, CheckpointKind.Config


def train(world: World, epoch: int, height: int) -> None:
    """Until a round of an epoch is under way."""
    for _ in range(4000):
        account = world.driver.account
        is_round = account.run_state in (RunState.RoundTrain, RunState.RoundWitness)
        if account.epoch == epoch and is_round and account.current_round.height >= height:
            return
        world.step()
    raise AssertionError(f"never round {height} of epoch {epoch}: {world.driver.account.run_state.name}")


def leave_all(world: World) -> None:
    """Everybody asks to leave in the same second. Once all have, somebody else ticks."""
    for replica in world.replicas:
        world.post(replica, act.LeaveAsked(), 0.0)
    for _ in range(400):
        world.step()
        if all(replica.stopped for replica in world.replicas):
            break
    assert {replica.stopped for replica in world.replicas} == {"left"}
    while world.driver.account.run_state is not RunState.WaitingForMembers:
        world.driver.tick_at_deadline()
    world.time = float(world.driver.now)


def get_trained(world: World) -> bytes:
    """The newest model that a quorum has attested."""
    account = world.driver.account
    prefix = account.model_digest or account.older_digests[0]
    (digest,) = {d for replica in world.replicas for d in replica.disk if d.startswith(prefix)}
    return digest


def get_models(replicas: list[Replica], epoch: int, account: CoordinatorAccount) -> set[bytes]:
    """What they begin an epoch with: rounds 0 and 1 apply nothing."""
    return {r.digests[epoch, s] for r in replicas for s in (account.start_step,) if (epoch, s) in r.digests}


@pytest.mark.parametrize("min_clients", [1, 2])
def test_all_leave_at_once_and_come_back(min_clients: int) -> None:
    world = World(3, seed=5, min_clients=min_clients, **CONFIG)
    train(world, 1, 4)
    leave_all(world)
    trained, account = get_trained(world), world.driver.account
    assert account.model.checkpoint_kind is P2P
    assert any(trained in replica.disk for replica in world.replicas)
    for number in range(3):
        world.restart(number)
    train(world, account.epoch, 1)
    assert {replica.machine.digest for replica in world.replicas} == {trained}
    assert world.driver.account.model.checkpoint_kind is P2P
    train(world, account.epoch, 4)
    check_replicas(world.replicas)
    assert not any(replica.get_events("model_lost") for replica in world.replicas)


def test_one_that_comes_back_serves_newcomers() -> None:
    world = World(3, seed=6, min_clients=2, **CONFIG)
    train(world, 1, 4)
    leave_all(world)
    trained, epoch = get_trained(world), world.driver.account.epoch
    newcomers = [world.add(), world.add()]
    world.restart(1)
    train(world, epoch, 1)
    assert {replica.machine.digest for replica in [world.replicas[1], *newcomers]} == {trained}


def test_nobody_comes_back_and_the_run_says_so_before_it_begins_anew() -> None:
    world = World(3, seed=7, min_clients=2, **CONFIG)
    train(world, 1, 4)
    leave_all(world)
    account = world.driver.account
    epoch, wanted = account.epoch, [account.model_digest or b"", *account.older_digests]
    newcomers = [world.add(), world.add()]
    train(world, epoch, 1)
    assert world.driver.account.model.checkpoint_kind is ORIGIN
    for newcomer in newcomers:
        told = newcomer.get_events("model_lost")
        assert [event["next"] for event in told][-1] == ORIGIN.name
        assert [event["digest"] for event in told] == [digest.hex() for digest in wanted]
    train(world, epoch, 4)
    check_replicas(newcomers)


def has_results(world: World, number: int) -> bool:
    """Whether a client has all results of the round before the current one."""
    session = world.replicas[number].machine.session
    assert session is not None
    record = session.records.get(world.driver.account.current_round.height - 1)
    return record is not None and not record.awaited


def lose_a_payload(world: World, survivors: list[int]) -> None:
    """All but the survivors die with what a round has accepted, before the survivors have it."""
    while not all(has_results(world, number) for number in survivors):
        world.step()
    lost = world.driver.account.current_round.height
    for number in survivors:
        replica = world.replicas[number]
        world.cut.add(number)
        assert not replica.stopped
    while world.driver.account.current_round.height < lost + 2:
        world.step()
    for replica in world.replicas:
        replica.dead = replica.number not in survivors


@pytest.mark.parametrize("seed", range(6))
def test_a_survivor_that_cannot_complete_an_epoch_joins_the_next(seed: int) -> None:
    """Its replica is behind what the dead have applied: it gives up, says what it lacks, and goes on."""
    config = {**CONFIG, "epoch_time": 100_000, "init_min_clients": 3, "min_clients": 3}
    world = World(5, seed=seed, **config)
    train(world, 0, 5)
    lose_a_payload(world, [3, 4])
    world.cut.clear()
    newcomer = world.add()
    ended = None
    for _ in range(2400):
        world.step()
        account = world.driver.account
        if account.run_state is RunState.WaitingForMembers and ended is None:
            ended = world.time
        if (
            account.epoch == 1
            and account.run_state is RunState.RoundTrain
            and account.current_round.height >= 3
        ):
            break
    survivors = [world.replicas[3], world.replicas[4]]
    states = [(r.machine.busy, r.resyncs, [e.fields for e in r.events[-3:]]) for r in survivors]
    assert ended is not None, states
    assert account.epoch == 1, states
    assert account.current_round.height >= 3, states
    assert account.model.checkpoint_kind is P2P, "the newest attested model that somebody has"
    assert len({replica.machine.digest for replica in [*survivors, newcomer]}) == 1
    assert any(replica.get_events("incomplete") for replica in survivors)


class LateWorld(World):
    """The fourth client has a new epoch's model when the warm-up and a first round have run out of time."""

    def post(self, replica: Replica, event: act.Input, delay: float) -> None:
        is_late = replica.number == 3 and isinstance(event, act.ModelLoaded)
        super().post(replica, event, CONFIG["warmup_time"] + 18.0 if is_late else delay)


def test_who_has_the_model_late_reports_nothing_as_lost() -> None:
    """The step that the run has reached meanwhile says nothing about the model that the epoch began with."""
    world = LateWorld(3, seed=8, **CONFIG)
    train(world, 0, 4)
    late = world.add()
    train(world, 1, 1)
    while late.machine.model_epoch != 1:
        world.step()
    account = world.driver.account
    assert account.epoch == 1
    assert account.step > account.start_step
    assert late.lost == {}
