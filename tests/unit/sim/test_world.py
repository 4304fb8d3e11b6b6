"""The simulator: one seed is one trace, links do what they say, and the ledger notices what is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import RunState
from psyche_py.p2p.overlay import MAX_LINKS, NUM_CARRIERS
from psyche_py.sim.chain import SLOT_SECONDS
from psyche_py.sim.client import SimClient
from psyche_py.sim.families import make_script
from psyche_py.sim.faults import KINDS, Fault
from psyche_py.sim.outcome import judge
from psyche_py.sim.settings import Link, Settings
from psyche_py.sim.world import START, World

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


def test_a_sender_uploads_its_payload_twice_and_the_others_the_rest() -> None:
    world = World(replace(CALM, num_clients=8))
    assert world.run()
    for client in world.clients:
        assert world.wires.get_sent(client.number)["own"] == 2 * client.produced_bytes
    relayed = sum(port.sent["relayed"] for port in world.wires.ports)
    assert relayed == sum(5 * client.produced_bytes for client in world.clients)


def test_announcements_take_one_hop_to_the_connected_and_two_to_all_others() -> None:
    world = World(replace(CALM, num_clients=90, config={**CALM.config, "total_steps": 4}))
    assert world.run(lambda: world.account.step >= 3)
    node, flooding = world.clients[0].node, world.wires._flooding
    assert 32 < len(node.connected_peers) <= MAX_LINKS  # in 32 rings some neighbours meet more than once
    assert len(node.get_neighbours()) == 2
    spread = flooding.spread(0, world.clock.now, lambda number: True)
    assert len(spread.times) == 90, "everybody is reached"
    hops = Counter(spread.hops.values())
    # a link that waits between two writes may be overtaken by a way over another peer
    assert hops[1] <= len(node.connected_peers)
    assert hops[1] + hops[2] == 89
    copies = flooding.count_copies(0, spread, 90)
    # from its signer, by those who carry it to whom that is not connected to, and in the first ring
    assert 89 <= copies.sum() <= hops[1] + NUM_CARRIERS * hops[2] + 2 * 90
    others = [number for number, distance in spread.hops.items() if distance == 2]
    assert copies[others].max() <= 2


@pytest.mark.parametrize(("kind", "client"), [("deafen", 0), ("mute", 1)])
def test_what_a_link_swallows_is_repaired_when_it_carries_again(kind: str, client: int) -> None:
    """The mesh asks every second for what is missing: no word is lost for ever within the minute."""
    world = World(CALM, [Fault(kind, (client,), "Publish", 5, by=1, seconds=4.0, value=1.0)])
    heard: list[float] = []
    listen = world.clients[0].hear

    def hear(announcement: act.Heard) -> None:
        if announcement.sender_key == world.clients[1].p2p_key:
            heard.append(world.clock.now)
        listen(announcement)

    world.clients[0].hear = hear  # type: ignore[method-assign]
    assert world.run(lambda: bool(world.faults.fired))
    struck = world.clock.now
    heard.clear()
    assert world.run()
    assert heard
    assert struck + 4.0 <= heard[0] <= struck + 6.5
    assert world.ledger.num_untrained == 0, "a short silence costs time and nothing else"


def test_a_partition_keeps_what_is_on_its_way() -> None:
    """It parts two clients between word and arrival: the word is said again when it heals."""
    world = World(CALM)
    assert world.run(lambda: world.account.step >= 5)
    heard: list[bytes] = []
    world.clients[1].hear = lambda announcement: heard.append(announcement.body)  # type: ignore[method-assign]
    begin = world.clock.now
    world.wires.announce(0, act.Heard(world.clients[0].p2p_key, b"word"))
    world.wires.partition((0,))
    assert world.run(lambda: world.clock.now > begin + 2.0)
    assert b"word" not in heard
    world.wires.heal()
    assert world.run(lambda: world.clock.now > begin + 3.0)
    assert heard.count(b"word") == 1


def test_the_real_programs_play_the_same_run() -> None:
    """Everything that must hold holds on them too, and one seed is one trace."""
    settings = replace(CALM, is_on_programs=True)
    worlds = [World(settings) for _ in range(2)]
    for world in worlds:
        assert play(world) == []
        assert world.account.run_state is RunState.Finished
    assert worlds[0].trace.digest() == worlds[1].trace.digest()


def test_what_nobody_attested_is_not_applied() -> None:
    """Some of the four find a second result that the witnesses' blooms hold by chance."""
    config = {**CALM.config, "init_min_clients": 40, "epoch_time": 2000, "max_round_train_time": 60}
    config |= {"global_batch_size_start": 40, "global_batch_size_end": 40}
    faults = [Fault("forge", (k,), "SendWitness", 5 + 2 * k, seconds=0.2, value=200_000.0) for k in range(4)]
    world = World(replace(CALM, num_clients=40, config={**config, "total_steps": 14}), faults)
    assert world.run(max_seconds=2000.0)
    assert world.forged
    assert not world.ledger.num_forged
    assert not world.ledger.problems
    assert not any(client.resyncs for client in world.clients)


def test_whoever_has_a_payload_serves_it_when_its_sender_is_gone() -> None:
    """With a slow uplink one peer is served before the sender dies; everybody has it all the same."""
    slow = Fault("slow_link", (0,), "RoundTrain", 1, value=50_000.0)
    world = World(replace(CALM, config={**CALM.config, "max_round_train_time": 60}), [slow])
    sender = world.clients[0]

    def is_served() -> bool:
        session = sender.machine.session
        own = None if session is None or session.newest < 0 else session.records[session.newest]
        mine = None if own is None or session is None else own.verified.get(session.index)
        digest = None if own is None or mine is None else own.get_payload_hash(mine)
        return any(digest in client.store for client in world.clients[1:])

    assert world.run(is_served)
    session = sender.machine.session
    assert session is not None
    record = session.records[session.newest]
    own = record.get_payload_hash(record.verified[session.index])
    KINDS["kill"](world, Fault("kill", (0,)))
    assert world.run(lambda: all(own in client.store for client in world.clients[1:]))
    assert world.run()


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


def test_every_slot_has_its_number() -> None:
    """Two that ended one after the other had the same: clients took the later for an endpoint that lags."""
    world = World(CALM)
    numbers = []
    for ended in range(1, 2000):
        world.clock.now = START + ended * SLOT_SECONDS
        numbers.append(world.chain.slot)
    assert numbers == list(range(11, 2010))


@pytest.mark.parametrize("point", ["Cooldown", "SaveEpoch"])
def test_a_deep_fork_at_an_epochs_end_stops_nobody(point: str) -> None:
    """What the chain has taken back is seen by the version's number, and the run goes on from there."""
    settings = replace(CALM, config={**CALM.config, "epoch_time": 35, "total_steps": 25})
    world = World(settings, [Fault("fork", (), point, 4, value=8.0)])
    assert world.run(max_seconds=900.0)
    assert world.faults.fired
    assert not world.ledger.unequal_digests


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
