"""Findings of the fault scripts, each at its smallest."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from psyche_py.client import actions as act
from psyche_py.client.machine import ClientMachine
from psyche_py.client.openings import Openings
from psyche_py.client.rounds import RoundRecord
from psyche_py.client.session import KEPT_ROUNDS, EpochSession
from psyche_py.coordinator.commitment import COMMITMENT_BYTES, Commitment
from psyche_py.coordinator.duties import Duty, compute_duties
from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.coordinator.membership import process_announce
from psyche_py.sim.client import SimClient
from psyche_py.sim.faults import Fault
from psyche_py.sim.settings import Settings
from psyche_py.sim.world import World

LONG = {"total_steps": 24, "epoch_time": 500, "max_round_train_time": 30, "init_min_clients": 2}
DIGEST = hashlib.sha256(b"made up").digest()


def make_world(*faults: Fault, num_clients: int = 5, **config: int) -> World:
    return World(Settings(num_clients, seed=1, config={**LONG, **config}), faults)


def reach_round(world: World, step: int) -> tuple[SimClient, EpochSession]:
    """Run to a step; the first client and its session, with all of its peers' results of the last round."""
    assert world.run(lambda: world.account.step >= step)
    client = world.clients[0]
    assert world.run(lambda: client.machine.account is world.account and client.machine.busy == "train")
    session = client.machine.session
    assert session is not None
    return client, session


def test_nobody_waits_for_a_client_that_left() -> None:
    """Its round, and the one that attests it, used to last until max_round_train_time."""
    world = make_world(Fault("restart", (1,), "Train", 8, by=1, seconds=2.0))
    assert world.run()
    assert max(r.seconds for r in world.ledger.rounds) < 10.0


def test_a_trainer_that_signs_two_results_costs_its_batch_only() -> None:
    """Half of the witnesses used to attest one, half the other: attested, and nothing to apply, for ever."""
    world = make_world(Fault("equivocate", (2,), "Train", 6, by=2, seconds=6.0), num_clients=4)
    assert world.run(max_seconds=600.0)
    assert not any(client.resyncs for client in world.clients)
    assert world.ledger.unequal_digests == world.ledger.count_lost_batches(world.account) == 0
    assert 1 <= world.ledger.num_untrained <= 6, "its own, and what it was to repeat"
    assert not any(world.ledger.lost.values()), "others have trained it"
    equivocator = world.account.find_epoch_client(world.clients[2].signer)
    assert equivocator is not None
    assert world.account.epoch_clients[equivocator].state is ClientState.Dropped


def test_links_too_slow_for_a_round_cost_batches_and_not_the_model() -> None:
    """Everybody used to be dropped, and the next epoch to begin from the run's first model."""
    slow = Fault("slow_link", tuple(range(5)), "Train", 8, seconds=90.0, value=4_000.0)
    world = make_world(slow, total_steps=20, max_round_train_time=12)
    assert world.run()
    assert world.ledger.num_untrained > 0
    assert world.ledger.models_lost == 0
    assert all(client.state is ClientState.Healthy for client in world.account.epoch_clients)


def forget_result(record: RoundRecord, own: int) -> tuple[int, Commitment]:
    """As if we had not heard of a result of another: its trainer and what it was."""
    index = next(iter(record.assignment.keys() - {own}))
    (digest,) = record.candidates.pop(index)
    return index, record.commitments.pop(digest)


def ask_about(world: World, session: EpochSession, record: RoundRecord) -> act.AskOpening:
    """What a client asks that cannot tell what the witnesses of the next round attested."""
    out: list[act.Action] = []
    record.openings = Openings()
    session._applied = record.height + 1
    assert session.choose_job(world.account, out) is None
    (asked,) = (action for action in out if isinstance(action, act.AskOpening))
    return asked


def test_what_the_witnesses_accepted_is_taken_from_peers() -> None:
    """And what peers make up is not, nor does it take the room of the real result."""
    world = make_world()
    client, session = reach_round(world, 8)
    record = session.records[session.newest - 2]
    index, true = forget_result(record, session.index)
    asked = ask_about(world, session, record)
    assert asked.num_results == len(record.assignment)
    assert set(asked.holders) == {c.p2p_key for c in world.account.epoch_clients} - {client.p2p_key}
    place = (asked.height, asked.root, asked.num_results)
    lies = tuple(bytes([number]) * COMMITMENT_BYTES * asked.num_results for number in range(20))
    actions = client.machine.handle(act.OpeningHeard(*place, (b"", *lies)))
    assert index not in record.candidates
    client.machine.busy = ""
    assert ask_about(world, session, record) == asked, "and asks again"
    answer = b"".join(world.clients[1].machine.get_opening(session.epoch, *place))
    client.machine.busy = ""
    actions = client.machine.handle(act.OpeningHeard(*place, (lies[0], answer)))
    assert record.candidates[index] == [true.compute_hash()]
    assert not record.equivocators
    fetched = [action.digest for action in actions if isinstance(action, act.FetchPayload)]
    applied = [action.digests for action in actions if isinstance(action, act.Apply)]
    assert fetched == [true.payload_hash] or true.payload_hash in applied[0]


def test_a_payload_that_could_not_be_fetched_is_asked_for_again() -> None:
    """It used to be missing until the round timed out."""
    world = make_world()
    client, session = reach_round(world, 8)
    record = session.records[session.newest]
    index = next(iter(record.assignment.keys() - {session.index}))
    assert record.add_candidate(index, Commitment(DIGEST))
    actions = client.machine.handle(act.FetchGaveUp(record.height, DIGEST))
    assert [action.digest for action in actions if isinstance(action, act.FetchPayload)] == [DIGEST]
    old = session.newest - KEPT_ROUNDS
    assert not any(
        isinstance(action, act.FetchPayload) for action in client.machine.handle(act.FetchGaveUp(old, DIGEST))
    )


def test_a_payload_that_does_not_decode_counts_against_who_announced_it() -> None:
    """Not against who served it; and only as often as it was announced."""
    world = make_world()
    client, session = reach_round(world, 8)
    record = session.records[session.newest]
    index = next(iter(record.assignment.keys() - {session.index}))
    assert record.add_candidate(index, Commitment(DIGEST))
    actions = client.machine.handle(act.PayloadFetched(record.height, DIGEST, False))
    key = world.account.epoch_clients[index].p2p_key
    assert [a for a in actions if isinstance(a, act.ReportPeer)] == [act.ReportPeer(key, "payload_malformed")]
    assert DIGEST in record.rejected


def test_a_malformed_payload_counts_once_for_each_announcement_and_for_nobody_who_signed_none() -> None:
    """It is fetched again for the next trainer that names it; who named it before is not blamed again."""
    world = make_world()
    client, session = reach_round(world, 8)
    record = session.records[session.newest]
    first, second, third = sorted(record.assignment.keys() - {session.index})[:3]
    keys = [world.account.epoch_clients[index].p2p_key for index in (first, second)]
    fetched = act.PayloadFetched(record.height, DIGEST, False)
    unsigned = Commitment(DIGEST, bytes(31) + b"\1")
    record.commitments[unsigned.compute_hash()] = unsigned
    record.adopt(third, unsigned.compute_hash())  # a quorum of witnesses says that it committed to this
    reported = []
    for index in (first, second):
        assert record.add_candidate(index, Commitment(DIGEST))
        reported += client.machine.handle(fetched)
    reported += client.machine.handle(fetched)
    blamed = [action.peer for action in reported if isinstance(action, act.ReportPeer)]
    assert blamed == keys


def test_payloads_of_an_epoch_that_ended_while_a_job_ran_are_nobodys() -> None:
    """The account lists the clients of the next epoch, who may be fewer: indices are not theirs."""
    world = make_world(num_clients=5)
    next_epoch = make_world(num_clients=3, waiting_for_members_extra_time=30)
    client, session = reach_round(world, 8)
    assert next_epoch.run(lambda: next_epoch.account.step >= 3)
    record = session.records[session.newest]
    index = max(record.assignment.keys() - {session.index})
    assert record.add_candidate(index, Commitment(DIGEST))
    client.machine.account = next_epoch.account
    assert next_epoch.account.start_timestamp != session.start
    assert index >= len(next_epoch.account.epoch_clients)
    for event in (act.FetchGaveUp(record.height, DIGEST), act.PayloadFetched(record.height, DIGEST, False)):
        actions = client.machine.handle(event)
        assert not any(isinstance(action, act.ReportPeer | act.FetchPayload) for action in actions)
    assert client.machine.session is session, "until the job is done"


def test_a_client_whose_payloads_never_decode_is_dropped() -> None:
    """Its batches are trained by others, nobody diverges, and every other client has counted it."""
    world = make_world(Fault("malformed", (2,), "Train", 6, by=2), num_clients=4)
    assert world.run(max_seconds=900.0)
    assert world.ledger.unequal_digests == world.ledger.count_lost_batches(world.account) == 0
    number = world.account.find_epoch_client(world.clients[2].signer)
    assert number is not None
    assert world.account.epoch_clients[number].state is ClientState.Dropped
    counts = [world.wires.ports[number].node.stats.offences for number in (0, 1, 3)]
    assert all(offences["payload_malformed"] >= 1 for offences in counts), counts


def test_payloads_of_past_epochs_are_dropped() -> None:
    """The last rounds of every epoch used to stay in the store for ever."""
    world = make_world(total_steps=120, epoch_time=35, num_clients=4)
    assert world.run()
    assert world.account.epoch >= 8
    for client in world.clients:
        assert len(client.store) <= (KEPT_ROUNDS + 1) * 4


def test_a_payload_that_arrives_after_its_epoch_is_dropped() -> None:
    world = make_world()
    client, session = reach_round(world, 8)
    assert client.machine.handle(act.PayloadFetched(session.newest, DIGEST, True))[0] == act.DropPayloads(
        (DIGEST,)
    )
    machine = ClientMachine(client.machine.identity)
    assert machine.handle(act.PayloadFetched(0, DIGEST, True)) == [act.DropPayloads((DIGEST,))]


def test_our_own_payload_is_dropped_when_its_round_is_long_over() -> None:
    """It used to stay in the store until the client ended."""
    world = make_world()
    client, session = reach_round(world, 14)
    late = act.Trained(session.newest - KEPT_ROUNDS, Commitment(DIGEST), 1, 1.0, 1.0)
    assert act.DropPayloads((DIGEST,)) in client.machine.handle(late)
    machine = ClientMachine(client.machine.identity)
    assert act.DropPayloads((DIGEST,)) in machine.handle(late)


def test_a_leave_that_lands_after_the_join_is_made_good() -> None:
    """A client that left the epoch and joined the next stayed out when the leave landed last."""
    world = make_world(total_steps=40, epoch_time=35)
    assert world.run(
        lambda: world.account.run_state is RunState.WaitingForMembers and world.account.epoch > 0
    )
    identity = world.clients[0].machine.identity
    machine = ClientMachine(identity)
    assert act.SendJoin() in machine.handle(act.AccountChanged(world.account))
    joined, left = world.account.copy(), world.account.copy()
    index = world.account.find_entry(identity.signer)
    joined.record["entries"][index]["active"] = joined.next_active
    joined.record["nonce"] += 1
    left.record["entries"][index]["active"] = 0
    left.record["nonce"] += 2
    assert act.SendJoin() not in machine.handle(act.AccountChanged(joined))
    assert act.SendJoin() in machine.handle(act.AccountChanged(left))


def get_announced(world: World, client: SimClient) -> bytes:
    """Where the account says that a client is to be dialed."""
    index = world.account.find_entry(client.signer)
    assert index is not None
    return world.account.entries[index].address_hint


@pytest.mark.parametrize("point", ["WaitingForMembers", "Warmup", "RoundTrain"])
def test_who_is_started_again_at_another_port_says_so(point: str) -> None:
    """Who has joined already does not join again: peers would go on dialing the port of its former life."""
    fault = Fault("restart", (1,), point, 1, seconds=1.0)
    world = make_world(fault, total_steps=30, epoch_time=35, waiting_for_members_extra_time=10)
    client = world.clients[1]
    before = client.address_hint
    assert world.run(lambda: bool(world.faults.fired) and not client.is_dead)
    assert client.address_hint != before
    begin = world.clock.now
    assert world.run(lambda: get_announced(world, client) == client.address_hint)
    assert world.clock.now < begin + 5.0, "and not with its next join"
    assert world.run()


def test_an_address_is_said_once_and_only_by_who_is_dialed_at_another() -> None:
    world = make_world()
    assert world.run(lambda: world.account.run_state is RunState.Warmup)
    client = world.clients[0]
    same = ClientMachine(client.machine.identity)
    assert act.SendAnnounce() not in same.handle(act.AccountChanged(world.account))
    moved = ClientMachine(replace(client.machine.identity, address_hint=bytes(64)))
    assert act.SendAnnounce() in moved.handle(act.AccountChanged(world.account))
    assert act.SendAnnounce() not in moved.handle(act.AccountChanged(world.account)), "it is under way"
    moved.handle(act.SendFailed("announce"))
    assert act.SendAnnounce() in moved.handle(act.AccountChanged(world.account))
    moved.handle(act.SendFailed("announce"))
    moved.handle(
        act.AccountChanged(process_announce(world.account, signer=client.signer, address_hint=bytes(64)))
    )
    assert act.SendAnnounce() not in moved.handle(act.AccountChanged(world.account)), "two would never end it"
    stranger = ClientMachine(replace(moved.identity, p2p_key=bytes(32)))
    assert act.SendAnnounce() not in stranger.handle(act.AccountChanged(world.account))


def test_a_payload_that_another_round_names_too_is_kept() -> None:
    """Who does no work sends the same bytes twice; dropped with the first round, the second lacked them."""
    client, session = reach_round(make_world(), 8)
    session.records[session.newest].add_candidate(0, Commitment(DIGEST, b"\2" * 32))
    height, other = session.newest - KEPT_ROUNDS, b"\1" * 32
    for payload_hash, kept in ((DIGEST, True), (other, False)):
        late = act.Trained(height, Commitment(payload_hash), 1, 1.0, 1.0)
        assert (act.DropPayloads((payload_hash,)) in client.machine.handle(late)) is not kept


def test_all_leave_in_one_round_and_come_back_to_what_they_had_trained() -> None:
    """They used to begin again from the run's first model."""
    everybody = tuple(range(4))
    leave = Fault("leave", everybody, "Train", 9, by=1, seconds=60.0)
    world = make_world(leave, num_clients=4, total_steps=40)
    assert world.run(lambda: all(client.stopped for client in world.clients))
    trained = {client.disk[-1] for client in world.clients}
    assert world.run(lambda: world.account.epoch == 1 and world.account.current_round.height == 1)
    assert {client.weights for client in world.clients} <= trained
    assert world.run()
    assert world.ledger.models_lost == world.ledger.unequal_digests == 0
    assert not any(event.kind == "model_lost" for client in world.clients for event in client.events)


def test_a_fork_in_the_middle_of_a_round_costs_no_replica() -> None:
    """Rounds that the fork has replaced are trained anew or assigned again; nobody has other weights."""
    for seed in range(3):
        forks = [Fault("fork", (), "Train", count, value=6.0) for count in (12, 23, 31)]
        world = World(Settings(5, seed=seed, config={**LONG, "total_steps": 30}), forks)
        assert world.run()
        assert world.ledger.unequal_digests == world.ledger.count_lost_batches(world.account) == 0


def count_stale_checks(world: World) -> int:
    """Checks of clients for which nobody has drawn them, by the account that they follow."""
    stale = 0
    for client in world.clients:
        session, account = client.machine.session, client.machine.account
        if session is None or account is None or account.start_timestamp != session.start:
            continue
        for check in session.verification._checks.values():
            drawn = compute_duties(account, check.height)
            stale += Duty(check.target.verifier, check.target.trainer) not in drawn
    return stale


def test_a_fork_in_a_verified_run_leaves_no_check_behind() -> None:
    """Who was drawn in a round that a fork has replaced was not drawn, and nobody waits for its look."""
    for seed in range(3):
        forks = [Fault("fork", (), "Train", count, value=6.0) for count in (9, 16, 23)]
        config = {**LONG, "total_steps": 30, "verification_percent": 34}
        world = World(Settings(6, seed=seed, config=config), forks)
        num_forks = 0
        while not world.run(max_seconds=1.0):
            num_forks = sum("replaced round" in str(e.fields) for e in world.clients[0].events)
            assert count_stale_checks(world) == 0
        assert num_forks, "a fork has replaced a round"
        assert world.ledger.unequal_digests == 0
        # who has announced a result sits the replaced round out, so some may be lost: they are reported
        assert world.ledger.count_lost_batches(world.account) == 0
        samples = world.ledger.count_samples(world.account)
        assert not samples.missing
        assert not samples.twice
