"""Whole runs in which witnesses attested different results, or roots that nobody can open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_world import Replica, World, check_replicas, check_samples
from rulebook_driver import get_p2p_key

from psyche_py.client import actions as act
from psyche_py.coordinator.commitment import Commitment
from psyche_py.coordinator.layout import RunState
from psyche_py.p2p.message import TrainingResult, decode_message, encode_message

CONFIG = {"init_min_clients": 4, "min_clients": 2, "epoch_time": 200, "total_steps": 14}
OTHER = Commitment(b"another result".ljust(32, b"."))


class SplitWorld(World):
    """In one round the first client tells the second one result and the rest another.

    No flood tells them of each other's, as none does when a result is said at the last moment.
    """

    split_step = 6
    split_height: int | None = None

    def _publish(self, replica: Replica, body: bytes) -> None:
        message = decode_message(body)
        is_due = self.driver.account.step == self.split_step and replica.number == 0
        if not is_due or not isinstance(message, TrainingResult):
            super()._publish(replica, body)
            return
        self.split_height = message.header.height
        replica.store.add(OTHER.payload_hash)
        lie = encode_message(replace(message, commitment=OTHER.encode()))
        for other in self.replicas[1:]:
            said = body if other.number == 1 else lie
            self.post(other, act.Heard(get_p2p_key(0), said, b"signature"), 0.1)


class LyingWorld(World):
    """The last client attests roots that it made up, for everybody it saw."""

    num_lies = 0

    def _send(self, replica: Replica, action: act.Action) -> None:
        if isinstance(action, act.SendWitness) and replica.number == len(self.replicas) - 1:
            self.num_lies += any(action.participants)
            action = replace(action, broadcast_merkle=b"\7" * 32)
        super()._send(replica, action)


@pytest.mark.parametrize("seed", range(3))
def test_a_trainer_that_splits_the_witnesses_costs_its_own_samples(seed: int) -> None:
    """Half of them attested one result and half another: attested, and nothing to apply, for ever."""
    world = SplitWorld(4, seed, **CONFIG)
    world.run(RunState.Finished)
    assert world.split_height is not None
    check_replicas(world.replicas)
    check_samples(world)
    assert not any(replica.resyncs for replica in world.replicas)
    lost = {part for replica in world.replicas for ranges in replica.lost.values() for part in ranges}
    assert len(lost) == 1, "its own samples, reported as lost"
    assert all(replica.get_events("warning") for replica in world.replicas)


@pytest.mark.parametrize("num", [4, 7])
def test_a_made_up_root_holds_nobody_up(num: int) -> None:
    world = LyingWorld(num, 5, **{**CONFIG, "init_min_clients": num})
    world.run(RunState.Finished)
    assert world.num_lies > 5
    check_replicas(world.replicas)
    check_samples(world)
    assert not any(replica.resyncs or replica.untrained for replica in world.replicas)


def test_where_a_made_up_root_would_decide_nobody_guesses() -> None:
    """Announcements are lost for good, and some results lack an honest witness: all wait, then give up."""
    world = LyingWorld(7, 5, loss=0.2, is_repaired=False, **{**CONFIG, "init_min_clients": 7})
    world.run(RunState.Finished)
    assert world.num_lies
    check_replicas(world.replicas)
    assert any(replica.resyncs for replica in world.replicas)
    assert all(replica.stopped == "finished" for replica in world.replicas)
