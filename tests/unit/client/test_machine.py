"""The client machine in a virtual world: faults by the dice, and at the end equal weights everywhere."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_world import PROGRAM_ID, RUN_ID, Replica, World, check_replicas, check_samples
from rulebook_driver import get_p2p_key

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.p2p.message import Finished, RoundHeader, TrainingResult, WarmupReady, encode_message


@pytest.mark.parametrize("seed", range(6))
def test_a_calm_run(seed: int) -> None:
    world = World(3, seed, total_steps=40, epoch_time=60)
    world.run(RunState.Finished)
    assert all(replica.stopped == "finished" for replica in world.replicas)
    check_replicas(world.replicas)
    check_samples(world)
    assert not any(replica.resyncs or replica.untrained for replica in world.replicas)


@pytest.mark.parametrize("seed", range(8))
def test_lost_and_late_announcements(seed: int) -> None:
    """A fifth of all announcements and fetches fail, the rest come up to two seconds late."""
    world = World(4, seed, loss=0.2, max_delay=2.0, total_steps=40, epoch_time=200)
    world.run(RunState.Finished)
    check_replicas(world.replicas)
    check_samples(world)


@pytest.mark.parametrize("seed", range(8))
def test_a_client_dies(seed: int) -> None:
    world = World(4, seed, total_steps=30, epoch_time=400, min_clients=2)
    while world.driver.account.step < 6 + seed:
        world.step()
    world.replicas[seed % 4].dead = True
    world.run(RunState.Finished)
    alive = [replica for replica in world.replicas if not replica.dead]
    check_replicas(alive)
    check_samples(world)
    index = world.driver.account.find_epoch_client(world.driver.get_signer(seed % 4))
    assert index is not None
    assert world.driver.account.epoch_clients[index].state is ClientState.Dropped
    assert all(replica.stopped == "finished" for replica in alive)


def test_a_lost_batch_is_trained_again_by_the_others() -> None:
    """Beside their own two rounds later, in one result, and nothing is left at the epoch's end."""
    world = World(4, 1, total_steps=30, epoch_time=400, min_clients=2)
    while world.driver.account.step < 6:
        world.step()
    world.replicas[2].dead = True
    world.run(RunState.Finished)
    alive = [replica for replica in world.replicas if not replica.dead]
    check_samples(world)
    untrained = {s for r in alive for a, b in r.untrained for s in range(a, b + 1)}
    assert untrained, "it died in the middle of a round"
    applied = {s for ranges in alive[0].applied.values() for a, b in ranges for s in range(a, b + 1)}
    assert untrained <= applied
    assert not any(ranges for replica in alive for ranges in replica.lost.values())


def test_what_is_lost_in_the_last_rounds_is_reported_by_number() -> None:
    """No round of the epoch is left to train it, and the next one begins behind it."""
    world = World(4, 3, total_steps=12, epoch_time=400, min_clients=2)
    while world.driver.account.step < 9:
        world.step()
    world.replicas[1].dead = True
    world.run(RunState.Finished)
    alive = [replica for replica in world.replicas if not replica.dead]
    check_samples(world)
    for replica in alive:
        assert replica.lost[0], "nobody can train it any more"
        assert set(replica.lost[0]) <= replica.untrained


@given(
    seed=st.integers(0, 2**32 - 1),
    deaths=st.lists(st.tuples(st.integers(3, 36), st.integers(0, 4)), max_size=2, unique_by=lambda d: d[1]),
    loss=st.sampled_from((0.0, 0.3)),
    epoch_time=st.sampled_from((30, 400)),
)
@settings(max_examples=20)
def test_every_sample_is_applied_once_or_reported(
    seed: int, deaths: list[tuple[int, int]], loss: float, epoch_time: int
) -> None:
    """Whoever dies, whenever, in epochs long and short; at most two of five, so that a quorum remains."""
    world = World(5, seed, loss=loss, total_steps=40, epoch_time=epoch_time, min_clients=2)
    for step, number in sorted(deaths):
        while world.driver.account.step < step:
            world.step()
        world.replicas[number].dead = True
    world.run(RunState.Finished)
    check_replicas([replica for replica in world.replicas if not replica.dead])
    check_samples(world)


@pytest.mark.parametrize("seed", range(4))
def test_a_client_restarts_and_a_fifth_joins(seed: int) -> None:
    """Restarted in the middle of an epoch it leaves, and comes back with its peers' model."""
    world = World(4, seed, total_steps=60, epoch_time=60, min_clients=2)
    while world.driver.account.step < 7:
        world.step()
    world.restart(1)
    joiner = world.add()
    world.run(RunState.Finished)
    check_replicas(world.replicas)
    check_samples(world)
    assert joiner.trained
    assert any(event.kind == "state" for event in joiner.events)
    assert not any(replica.resyncs for replica in world.replicas)


def test_a_diverged_replica_takes_the_model_from_its_peers() -> None:
    """Its weights are changed behind its back: it notices within a round and is equal again later."""
    world = World(4, 1, total_steps=60, epoch_time=60, min_clients=2)
    while world.driver.account.step < 8:
        world.step()
    world.replicas[2].weights = b"\1" * 32
    height = world.driver.account.current_round.height
    while not world.replicas[2].resyncs:
        world.step()
    assert world.driver.account.current_round.height <= height + 2
    # until then it had reported the wrong digest
    world.replicas[2].digests.clear()
    world.run(RunState.Finished)
    check_replicas(world.replicas)
    assert world.replicas[2].epoch_digests, "it took part again"


@pytest.mark.parametrize("seed", range(6))
def test_transactions_that_expire_cost_time_only(seed: int) -> None:
    """A quarter never lands: joins, ready signals, witnesses and ticks are sent again."""
    world = World(4, seed, expired=0.25, total_steps=40, epoch_time=90, min_clients=2)
    world.run(RunState.Finished)
    assert all(replica.stopped == "finished" for replica in world.replicas)
    check_replicas(world.replicas)
    check_samples(world)


@pytest.mark.parametrize("seed", range(6))
def test_an_account_that_goes_back_changes_nothing(seed: int) -> None:
    """Another endpoint lags, or a fork was given up: what is older than what we know is not looked at."""
    world = World(4, seed, stale=0.5, total_steps=40, epoch_time=60)
    world.run(RunState.Finished)
    check_replicas(world.replicas)
    check_samples(world)
    assert not any(replica.resyncs or replica.untrained for replica in world.replicas)


def test_the_chain_is_dead_for_a_minute() -> None:
    """In the middle of a round: no transaction lands and no time passes for the run. The round stretches."""
    world = World(4, 1, total_steps=30, epoch_time=400)
    while world.driver.account.step < 8:
        world.step()
    world.stop_chain(60)
    world.run(RunState.Finished)
    check_replicas(world.replicas)
    check_samples(world)
    assert all(replica.stopped == "finished" for replica in world.replicas)
    assert not any(replica.resyncs or replica.untrained for replica in world.replicas)


def test_who_missed_the_end_of_a_round_is_waited_for_in_the_next_no_longer_than_it_takes() -> None:
    """It says Finished of the rounds that it catches up with only: the one that it slept through used to be
    attested, for want of its word of it, when max_round_train_time was over."""
    sizes = {"global_batch_size_start": 3, "global_batch_size_end": 3, "init_min_clients": 6}
    times = {"max_round_train_time": 30, "round_witness_time": 4, "epoch_time": 900}
    world = World(6, 1, total_steps=24, min_clients=2, witness_nodes=2, **sizes, **times)
    slept = put_to_sleep_once(world, 36.0)
    seconds: Counter[int] = Counter()
    while world.driver.account.step < 14:
        world.step()
        seconds[world.driver.account.current_round.height] += 1
    (height,) = slept
    assert seconds[height] >= 4 * 29, "the round that it was idle in"
    assert seconds[height + 1] < 4 * 15, "and this one it was back in"
    assert not any(replica.resyncs for replica in world.replicas)


def put_to_sleep_once(world: World, num_seconds: float) -> list[int]:
    """One client, neither trainer nor witness of its round, applies for so long. Returns the round, once."""
    slept: list[int] = []
    apply = world._apply

    def apply_late(replica: Replica, action: act.Apply) -> None:
        account, session = world.driver.account, replica.machine.session
        assert session is not None
        current = account.current_round
        is_idle = session.index not in session.records[action.height].assignment
        if slept or account.step < 8 or not is_idle or current.elected >> session.index & 1:
            apply(replica, action)
            return
        assert action.height == current.height
        slept.append(current.height)
        post = world.post
        world.post = lambda to, event, delay: post(to, event, num_seconds)  # type: ignore[method-assign]
        apply(replica, action)
        world.post = post  # type: ignore[method-assign]

    world._apply = apply_late  # type: ignore[method-assign]
    return slept


def test_leaving_finishes_the_round() -> None:
    world = World(3, 5, total_steps=30, epoch_time=300, min_clients=2)
    while world.driver.account.step < 5:
        world.step()
    leaver = world.replicas[0]
    world._feed(leaver, act.LeaveAsked())
    world.run(RunState.Finished)
    assert leaver.stopped == "left"
    check_replicas(world.replicas)
    check_samples(world)


def test_a_pause_ends_the_epoch_cleanly() -> None:
    world = World(3, 2, total_steps=300, epoch_time=1000)
    while world.driver.account.step < 9:
        world.step()
    world.driver.ok("set_paused", paused=True)
    world.run(RunState.Paused)
    check_replicas(world.replicas)
    check_samples(world)
    assert len({replica.epoch_digests[0] for replica in world.replicas}) == 1


def make_world_in_round() -> tuple[World, Replica]:
    world = World(3, 3, total_steps=100, epoch_time=1000)
    while world.driver.account.step < 4:
        world.step()
    return world, world.replicas[0]


def test_hostile_announcements_change_nothing() -> None:
    """Another run, another sender's index, somebody else's batch, garbage, a kind without meaning."""
    world, replica = make_world_in_round()
    session = replica.machine.session
    assert session is not None
    height = session.newest
    batch = session.records[height].assignment[1]
    right = RoundHeader(PROGRAM_ID, RUN_ID, session.epoch, height, 1)
    digest, commitment = b"\7" * 32, b"\7" * 96
    cases = [
        (get_p2p_key(1), b"garbage"),
        (get_p2p_key(1), encode_message(WarmupReady(right))),
        (get_p2p_key(2), encode_message(TrainingResult(right, *batch, commitment, 100))),
        (get_p2p_key(1), encode_message(TrainingResult(right, batch[0] + 1, batch[1] + 1, commitment, 100))),
        (
            get_p2p_key(1),
            encode_message(
                TrainingResult(
                    RoundHeader(bytes(32), RUN_ID, session.epoch, height, 1), *batch, commitment, 1
                )
            ),
        ),
        (
            get_p2p_key(1),
            encode_message(
                Finished(RoundHeader(PROGRAM_ID, RUN_ID, session.epoch, height, 250), digest, 0.0)
            ),
        ),
        (
            get_p2p_key(1),
            encode_message(
                TrainingResult(
                    RoundHeader(PROGRAM_ID, RUN_ID, session.epoch, height + 50, 1), *batch, commitment, 1
                )
            ),
        ),
    ]
    reported = []
    for sender, body in cases:
        actions = replica.machine.handle(act.Heard(sender, body))
        reported += [action for action in actions if isinstance(action, act.ReportPeer)]
        assert not any(isinstance(action, act.FetchPayload | act.Resync | act.Stop) for action in actions)
    assert reported == [
        act.ReportPeer(get_p2p_key(2), "message_of_another"),
        act.ReportPeer(get_p2p_key(1), "result_of_anothers_batch"),
        act.ReportPeer(get_p2p_key(1), "message_of_another"),
    ]
    assert digest not in session.records[height].get_payload_hashes()
    world.run(RunState.Finished)
    check_replicas(world.replicas)


def test_candidates_of_one_trainer_are_bounded() -> None:
    _, replica = make_world_in_round()
    session = replica.machine.session
    assert session is not None
    height = session.newest
    header = RoundHeader(PROGRAM_ID, RUN_ID, session.epoch, height, 1)
    batch = session.records[height].assignment[1]
    for number in range(20):
        message = TrainingResult(header, *batch, bytes([number]) * 96, 100)
        replica.machine.handle(act.Heard(get_p2p_key(1), encode_message(message)))
    assert len(session.records[height].candidates[1]) <= 4
