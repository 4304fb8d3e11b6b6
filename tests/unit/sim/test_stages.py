"""The stages of a round are all of it, and none waits for what could have been there before."""

from __future__ import annotations

import statistics
from dataclasses import astuple, replace

import pytest

from psyche_py.chain.rpc import CLUSTER_OPTIONS
from psyche_py.sim.chain import SLOT_SECONDS
from psyche_py.sim.client import PAYLOADS_AT_HALF
from psyche_py.sim.endpoint import BLOCKHASH_SECONDS
from psyche_py.sim.faults import Fault
from psyche_py.sim.settings import Link, Settings
from psyche_py.sim.stages import STAGES, Stages, compute_stages, summarise_stages
from psyche_py.sim.timeline import RoundTimes
from psyche_py.sim.world import World

LATENCY = 0.04
CALM = Settings(
    num_clients=8,
    seed=3,
    config={"total_steps": 16, "epoch_time": 400, "max_round_train_time": 60},
    link=Link(latency_seconds=LATENCY),
    train_seconds=12.0,
)


def play(settings: Settings, *faults: Fault) -> list[tuple[RoundTimes, Stages]]:
    world = World(settings, faults)
    assert world.run()
    found = [(times, compute_stages(times)) for times in world.timeline.rounds]
    return [(times, stages) for times, stages in found if stages is not None]


def test_the_stages_are_the_whole_round() -> None:
    rounds = play(CALM)
    assert len(rounds) >= 12
    for times, stages in rounds:
        assert all(seconds >= 0.0 for seconds in astuple(stages))
        assert sum(astuple(stages)) == pytest.approx(times.end - times.start)
        assert 0.0 <= stages.slot <= SLOT_SECONDS + 1e-9


def test_an_attestation_does_not_wait_for_a_blockhash() -> None:
    """Rounds are longer than a blockhash is used; it is fetched when the first one has finished."""
    for _, stages in play(CALM)[1:]:
        assert stages.transaction == pytest.approx(LATENCY)


def test_a_blockhash_is_as_old_as_the_client_s_own_code_lets_it_be() -> None:
    """The simulator may not import the chain's code, so the number is there twice."""
    assert CLUSTER_OPTIONS.max_blockhash_age_seconds == BLOCKHASH_SECONDS


def test_where_all_are_elected_nobody_waits_for_a_word() -> None:
    """The last one to finish attests itself, and its transaction is the one that the round waits for."""
    for _, stages in play(CALM):
        assert stages.announcement == 0.0


FEW_WITNESSES = replace(CALM, config={**CALM.config, "witness_nodes": 3, "min_clients": 3})


def test_a_witness_waits_for_all_who_do_not_attest_and_for_no_other_witness() -> None:
    earlier = 0
    for times, _ in play(FEW_WITNESSES):
        witnesses = times.witnessed.keys()
        assert len(witnesses) == 3
        first = min(times.witnessed.values())
        assert all(time <= first for number, time in times.finished.items() if number not in witnesses)
        assert all(times.finished[number] <= times.witnessed[number] for number in witnesses)
        earlier += any(times.finished[number] > first for number in witnesses)
    assert earlier, "the draw of 12 rounds never had a witness that finished last"


def test_where_a_run_verifies_a_witness_waits_for_all() -> None:
    verified = replace(FEW_WITNESSES, config={**FEW_WITNESSES.config, "verification_percent": 25})
    for times, _ in play(verified):
        assert max(times.finished.values()) <= min(times.witnessed.values())


def test_where_a_run_verifies_the_last_word_takes_one_hop_and_no_pause() -> None:
    """No round ends before everybody has heard of all results: what is heard of later counts as late."""
    verified = replace(CALM, config={**CALM.config, "verification_percent": 25})
    announcements = [stages.announcement for _, stages in play(verified)]
    assert max(announcements) < 2 * LATENCY
    assert statistics.median(announcements) > LATENCY


def test_an_update_is_decoded_while_others_still_train() -> None:
    whole = CALM.apply_seconds
    expected = whole * PAYLOADS_AT_HALF / (8 + PAYLOADS_AT_HALF)
    applied = [stages.apply for times, stages in play(CALM) if times.height > 1]
    assert statistics.median(applied) == pytest.approx(expected)
    assert max(applied) <= whole + 1e-9


def test_a_payload_that_comes_late_is_seen_in_its_stage() -> None:
    slow = Fault("slow_link", (0,), "Train", 4, seconds=60.0, value=150_000.0)
    payloads = [stages.payloads for _, stages in play(replace(CALM, train_seconds=4.0), slow)]
    assert max(payloads) > 2.0
    assert min(payloads) < 0.1


def test_a_round_that_its_time_limit_ended_has_none() -> None:
    assert compute_stages(RoundTimes(0, 3, 3, 10.0, 22.0)) is None
    assert compute_stages(RoundTimes(0, 3, 3, 10.0)) is None


def test_median_and_95th_percentile() -> None:
    stages = [Stages(float(i), *(0.0,) * (len(STAGES) - 1)) for i in range(101)]
    summary = summarise_stages(stages)
    assert summary["update"] == (50.0, 95.0)
    assert summary["slot"] == (0.0, 0.0)
