"""Accusations that are not the sender's to make, come twice, too late, too early, or in the way of others."""

from __future__ import annotations

import pytest
from attack_disputes import (
    FRAUD,
    REFUSAL,
    accuse,
    decide,
    find_dispute,
    get_client_wallet,
    list_duties,
    list_judges,
    make_evidence_hash,
    make_verdict,
    make_vote,
    play_until_duty,
)
from attack_oracle import judge, judge_and_keep
from attack_scenes import STATES, build_scene, build_verified, get_scene
from programs_harness import RunHarness

from psyche_py.coordinator.duties import Duty
from psyche_py.coordinator.layout import MAX_DISPUTES, ClientState, DisputeState, RunState

LATEST = 2
"""Rounds after the verifier's own in which its verdict is still taken."""


def list_not_drawn(run: RunHarness) -> list[Duty]:
    """Every accusation of the current round that nobody was drawn for."""
    num, duties = len(run.account.epoch_clients), set(list_duties(run))
    pairs = [Duty(verifier, trainer) for verifier in range(num) for trainer in range(num)]
    return [duty for duty in pairs if duty not in duties]


def test_only_the_drawn_verifier_accuses_only_whom_it_was_drawn_for() -> None:
    scene = get_scene("accusing")
    chain, run = scene.chain, scene.run
    for duty in list_duties(run):
        chain.honest(make_verdict(run, duty))
        for trainer in (255, 256, 2**15, 2**16 - 1, duty.trainer + 256):
            hostile = make_verdict(run, duty, trainer=trainer)
            chain.attack(f"accusing client {trainer}", "NotTheVerifier", hostile)
    for duty in list_not_drawn(run):
        chain.attack(f"not drawn: {duty}", "NotTheVerifier", make_verdict(run, duty))


def test_a_verdict_in_anothers_name() -> None:
    scene = get_scene("accusing")
    chain, run = scene.chain, scene.run
    duty = list_duties(run)[0]
    for index in range(len(run.account.epoch_clients)):
        if index != duty.verifier:
            hostile = make_verdict(run, duty, signer=get_client_wallet(run, index))
            chain.attack("a verdict for another", "ClientNotInEpoch", hostile)
    for stranger in (scene.thief, run.owner, scene.rival.wallets[0]):
        hostile = make_verdict(run, duty, signer=stranger)
        chain.attack("a verdict of a stranger", "SignerNotAClient", hostile)
    for index in (4, 255, 256, 2**15, 2**16 - 1, duty.verifier + 256):
        hostile = make_verdict(run, duty, index=index)
        chain.attack(f"a verdict as {index}", "ClientNotInEpoch", hostile)


def test_reasons_and_heights_at_their_ends() -> None:
    scene = get_scene("accusing")
    chain, run = scene.chain, scene.run
    duty, height = list_duties(run)[0], run.account.current_round.height - 1
    for reason in range(1, 9):
        chain.honest(make_verdict(run, duty, reason=reason))
    for reason in (0, 9, 127, 128, 255):
        hostile = make_verdict(run, duty, reason=reason)
        chain.attack(f"reason {reason}", "InvalidInstructionData", hostile)
    for other in {0, 1, height - 1, height + 1, height + 2, height + 2**31, 2**32 - 2, 2**32 - 1} - {
        height,
        -1,
    }:
        if Duty(duty.verifier, duty.trainer) not in list_duties(run, late=height - other):
            hostile = make_verdict(run, duty, height=other)
            chain.attack(f"about round {other}", "NotTheVerifier", hostile)


def test_a_second_verdict_about_the_same_result() -> None:
    """In one transaction or later, for another reason or by other evidence, and when it is decided."""
    scene = build_scene("accusing")
    chain, run = scene.chain, scene.run
    duty, height = list_duties(run)[0], run.account.current_round.height - 1
    first = make_verdict(run, duty)
    others = [make_verdict(run, duty, number=1), make_verdict(run, duty, reason=REFUSAL), first]
    for second in others:
        chain.attack("a double verdict", "DuplicateVerdict", first, second)
    chain.commit(first)
    for second in others:
        chain.attack("a double verdict", "DuplicateVerdict", second)
    run.play_round()
    for second in [make_verdict(run, duty, number=n, height=height) for n in (0, 1)]:
        chain.attack("a double verdict, a round later", "DuplicateVerdict", second)
    decide(run, True)
    again = make_verdict(run, duty, number=2, height=height)
    chain.attack("once it is decided", "DuplicateVerdict", again)


def test_an_acquitted_trainer_is_not_accused_again() -> None:
    """A refusal that was answered leaves the accuser in the run: it may not ask the same again."""
    scene = build_verified(4)
    chain, run = scene.chain, scene.run
    duty = accuse(run, reason=REFUSAL)
    height = run.account.current_round.height - 1
    run.play_round()
    decide(run, False)
    assert find_dispute(run).state is DisputeState.NotGuilty
    for reason in (REFUSAL, FRAUD):
        hostile = make_verdict(run, duty, number=1, height=height, reason=reason)
        chain.attack("accusing the acquitted", "DuplicateVerdict", hostile)


def test_a_verdict_that_comes_too_late() -> None:
    """In the verifier's round and the two after it, not in the third; the round is named, so waiting makes it
    no other."""
    scene = build_verified(6, max_witness_contradictions=16)
    chain, run = scene.chain, scene.run
    duty = play_until_duty(run)
    height = run.account.current_round.height - 1
    held = make_verdict(run, duty)
    for late in range(LATEST + 1):
        assert run.account.current_round.height == height + 1 + late
        chain.honest(held)
        run.play_round()
    for _ in range(3):
        chain.attack("a verdict too late", "NotTheVerifier", held)
        run.play_round()


@pytest.mark.parametrize("state", [state for state in STATES if state not in ("accusing", "older")])
def test_a_verdict_of_another_run_or_time(state: str) -> None:
    """Where no round runs, and where one runs without such a draw."""
    home, scene = get_scene("accusing"), get_scene(state)
    verdict = make_verdict(home.run, list_duties(home.run)[0])
    home.chain.honest(verdict)
    scene.chain.keys.update(home.chain.keys)
    if not scene.run.wallets:
        names = ["SignerNotAClient", "Halted"]
    else:
        names = ["InvalidRunState", "Halted", "NotTheVerifier", "ClientNotInEpoch", "DuplicateVerdict"]
    scene.chain.attack(f"a verdict in {state}", names, verdict)


def test_a_verifier_that_is_gone_accuses_nobody() -> None:
    """Withdrawn, and Dropped; a trainer that leaves is accused all the same."""
    scene = build_scene("accusing")
    chain, run = scene.chain, scene.run
    duty = list_duties(run)[0]
    verdict = make_verdict(run, duty)
    leave = run.encode("leave_run", get_client_wallet(run, duty.verifier))
    chain.attack("accusing and gone", "ClientNotInEpoch", leave, verdict)
    flees = run.encode("leave_run", get_client_wallet(run, duty.trainer))
    assert judge_and_keep(chain, "fleeing before the verdict", flees, verdict).error is None
    assert find_dispute(run).is_open
    run.play_round()
    decide(run, True)
    assert run.account.epoch_clients[duty.trainer].state is ClientState.Ejected
    entry = run.account.entries[run.account.epoch_clients[duty.trainer].entry]
    assert (entry.slashed, entry.debt) == (30, 30)


def test_a_front_runner_with_anothers_evidence_gains_nothing() -> None:
    """It names the hash first, for its own duty: the honest verifier sends other bytes of the same evidence,
    and a vote about either is none about the other."""
    scene = build_verified(6)
    chain, run = scene.chain, scene.run
    while len(list_duties(run)) < 2:
        run.play_round()
    honest, thief = list_duties(run)[:2]
    assert honest.trainer != thief.trainer
    chain.commit(make_verdict(run, thief, number=7))
    chain.attack("a taken hash", "DuplicateVerdict", make_verdict(run, honest, number=7))
    assert judge_and_keep(chain, "salted evidence", make_verdict(run, honest, number=8)).error is None
    run.play_round()
    decide(run, False, number=7)
    decide(run, True, number=8)
    states = {client.index: client.state for client in run.account.epoch_clients}
    assert states[thief.verifier] is ClientState.Ejected, "it pays for the accusation that it copied"
    assert states[honest.trainer] is ClientState.Ejected
    assert states[thief.trainer] is ClientState.Healthy or thief.trainer == honest.verifier


def test_all_places_taken() -> None:
    """Seven open disputes keep an eighth out, as long as they are open: then it is taken, still in time."""
    scene = build_verified(32)
    chain, run = scene.chain, scene.run
    play_until_duty(run)
    duties = list_duties(run)
    targets = {duty.trainer: duty for duty in duties}
    assert len(targets) > MAX_DISPUTES
    first, *rest = targets.values()
    for number, duty in enumerate(rest[:MAX_DISPUTES]):
        chain.commit(make_verdict(run, duty, number, reason=REFUSAL))
    height = run.account.current_round.height - 1
    late = make_verdict(run, first, number=99, height=height)
    chain.attack("an eighth dispute", "DisputesFull", late)
    run.play_round()
    chain.attack("an eighth dispute, a round later", "DisputesFull", late)
    decide(run, False, 0)
    assert judge_and_keep(chain, "the eighth, after one was decided", late).error is None
    run.play_round()
    decide(run, True, 99)
    assert run.account.epoch_clients[first.trainer].state is ClientState.Ejected


def test_refusals_cried_for_nothing_end() -> None:
    """They cost no points; who cries more than it may is out, and so far nobody else is slashed."""
    run = build_verified(4, max_refusals=1).run
    cried: dict[int, int] = {}
    for number in range(12):
        healthy = [c.index for c in run.account.epoch_clients if c.state is ClientState.Healthy]
        if run.state is not RunState.RoundTrain or len(healthy) < 4:
            break
        duty = accuse(run, number, reason=REFUSAL)
        for party in (duty.verifier, duty.trainer):
            cried[party] = cried.get(party, 0) + 1
        run.play_round()
        decide(run, False, number)
    out = [c.index for c in run.account.epoch_clients if c.state is ClientState.Dropped]
    assert out == sorted(party for party, num in cried.items() if num > 1)
    assert not any(entry.slashed for entry in run.account.entries)


def test_a_verdict_and_its_votes_in_one_transaction() -> None:
    """Nobody judges in the round of the verdict: whoever sends all of it at once is refused."""
    scene = get_scene("accusing")
    chain, run = scene.chain, scene.run
    duty = list_duties(run)[0]
    for index in range(len(run.account.epoch_clients)):
        vote = make_vote(run, index, True)
        chain.attack("a vote at once", "VotingOver", make_verdict(run, duty), vote)
    tick = run.encode("tick", scene.thief)
    judge(
        chain, "a verdict, a tick, another verdict", make_verdict(run, duty), tick, make_verdict(run, duty, 1)
    )


def test_votes_name_evidence_that_exists() -> None:
    scene = get_scene("judging")
    chain, run = scene.chain, scene.run
    voter = list_judges(run)[1]
    chain.honest(make_vote(run, voter, True))
    for forged in (bytes(32), b"\xff" * 32, make_evidence_hash(1), make_evidence_hash(0)[::-1]):
        hostile = make_vote(run, voter, True, evidence_hash=forged)
        chain.attack("a vote on forged evidence", "NoSuchDispute", hostile)
