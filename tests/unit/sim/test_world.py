"""The simulator: one seed is one trace, links do what they say, and the ledger notices what is wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import RunState
from psyche_py.sim.client import SimClient
from psyche_py.sim.families import judge, make_script
from psyche_py.sim.faults import KINDS, Fault
from psyche_py.sim.settings import Link, Settings
from psyche_py.sim.world import World

CALM = Settings(num_clients=4, seed=3, config={"total_steps": 14, "epoch_time": 200})


def trace(settings: Settings, *faults: Fault) -> list[tuple[float, str, int]]:
    world = World(settings, faults)
    seen: list[tuple[float, str, int]] = []
    world.chain.on_change.append(lambda _, new: seen.append((world.clock.now, new.run_state.name, new.nonce)))
    assert world.run()
    return seen


def test_one_seed_is_one_trace() -> None:
    fault = Fault("partition", (1, 2), "Train", 5, seconds=8.0)
    assert trace(CALM, fault) == trace(CALM, fault)
    assert trace(CALM, fault) != trace(replace(CALM, seed=4), fault)


def test_a_round_lasts_one_slot_longer_than_its_training() -> None:
    world = World(replace(CALM, link=Link(latency_seconds=0.02)))
    assert world.run()
    rounds = [r for r in world.ledger.rounds if r.slowest_training]
    assert len(rounds) >= 10
    assert all(0.0 < r.seconds - r.slowest_training < 0.8 for r in rounds)


def test_everybody_uploads_every_payload_it_makes() -> None:
    world = World(CALM)
    assert world.run()
    num_results = len([r for r in world.ledger.rounds if r.slowest_training])
    for port in world.wires.ports:
        assert port.sent["own"] == num_results * 3 * CALM.payload_bytes
        assert port.sent["relayed"] == 0


def test_whoever_has_a_payload_serves_it_when_its_sender_is_gone() -> None:
    """With a slow uplink one peer has the payload seconds before the others; then its sender dies."""
    slow = Fault("slow_link", (0,), "RoundTrain", 1, value=50_000.0)
    world = World(replace(CALM, config={**CALM.config, "max_round_train_time": 60}), [slow])
    assert world.run(lambda: world.wires.ports[0].sent["own"] >= 3 * CALM.payload_bytes)
    sender = world.clients[0]
    session = sender.machine.session
    assert session is not None
    record = session.records[session.newest]
    own = record.get_payload_hash(record.verified[session.index])
    assert world.run(lambda: any(own in client.store for client in world.clients[1:]))
    KINDS["kill"](world, Fault("kill", (0,)))
    assert world.run()
    assert sum(port.sent["relayed"] for port in world.wires.ports) == 2 * CALM.payload_bytes


def test_a_partition_parts_and_what_was_said_is_said_again() -> None:
    fault = Fault("partition", (0,), "Publish", 4, by=0, seconds=5.0)
    world = World(CALM, [fault])
    assert world.run(lambda: bool(world.faults.fired))
    assert not world.wires.is_connected(0, 1)
    assert world.wires.is_connected(1, 2)
    assert world.run()
    assert world.wires.is_connected(0, 1)
    assert world.ledger.num_untrained == 0, "a short partition costs time and nothing else"


def test_transactions_do_not_land_while_the_chain_is_down() -> None:
    times = [time for time, _, _ in trace(CALM, Fault("halt_chain", (), "Train", 5, seconds=30.0))]
    assert max(b - a for a, b in pairwise(times)) >= 25.0


# ---- the ledger notices -----------------------------------------------------------------------------------


def play(world: World) -> list[str]:
    script = make_script("calm", 0)
    return list(judge(script, world, world.run(max_seconds=600.0)).problems)


def test_it_is_content_with_a_calm_run() -> None:
    assert play(World(CALM)) == []


def test_it_notices_a_replica_that_applies_less(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SimClient._apply

    def apply(self: SimClient, action: act.Apply) -> None:
        less = action.digests[1:] if self.number == 1 and action.height == 6 else action.digests
        honest(self, replace(action, digests=less))

    monkeypatch.setattr(SimClient, "_apply", apply)
    assert any("other weights" in problem for problem in play(World(CALM)))


def test_it_notices_samples_that_nobody_applied() -> None:
    world = World(CALM)
    assert world.run()
    key = next(key for key, applied in world.ledger.applied.items() if applied.trained)
    batches = world.ledger.applied[key]
    world.ledger.applied[key] = replace(batches, trained=batches.trained[1:])
    assert world.ledger.count_lost_batches(world.account) == 1
    del world.ledger.applied[key]
    assert world.ledger.count_lost_batches(world.account) == 1


def test_it_notices_samples_applied_twice() -> None:
    world = World(CALM)
    assert world.run()
    keys = [key for key, applied in world.ledger.applied.items() if applied.trained]
    world.ledger.applied[keys[0]] = world.ledger.applied[keys[1]]
    assert world.ledger.count_lost_batches(world.account) == 1


def test_it_notices_points_that_are_not_paid() -> None:
    world = World(CALM)
    assert world.run(lambda: world.account.run_state is RunState.Cooldown)
    before = world.account.copy()
    assert world.run()
    assert not world.ledger.problems
    before.record["current_rates"]["earning_rate_total_shared"] = 999
    world.ledger.take_change(world.clock.now, before, world.account)
    assert any("paid 1000 of 999 points" in problem for problem in world.ledger.problems)


def test_it_notices_a_run_that_does_not_end() -> None:
    everybody = Fault("kill", (0, 1, 2, 3), "Train", 6)
    assert any("the run stays in" in problem for problem in play(World(CALM, [everybody])))
