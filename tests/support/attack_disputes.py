"""Disputes in a run to attack: played into with real transactions, and the calls that make them."""

from __future__ import annotations

import hashlib
from typing import Any

from programs_harness import RunHarness
from solders.instruction import Instruction
from solders.keypair import Keypair

from psyche_py.coordinator.committee import compute_tie_breaker_seats
from psyche_py.coordinator.duties import Duty, compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.coordinator.state import Dispute

VERIFIED = {"verification_percent": 50}
"""Configuration of a run in which half of the clients verify."""
SLASH = 30
FRAUD, REFUSAL = 6, 2


def set_slashing(run: RunHarness, points: int = SLASH) -> None:
    """What the losers of the epochs to come lose."""
    run.own("set_future_epoch_rates", earning_rate_total_shared=None, slashing_rate_per_client=points)


def list_duties(run: RunHarness, late: int = 0) -> list[Duty]:
    """Duties of the round that was ``late`` rounds ago that can still be done."""
    account = run.account
    clients = account.epoch_clients
    return [
        duty
        for duty in compute_duties(account, account.current_round.height - late)
        if clients[duty.verifier].state is ClientState.Healthy
        and clients[duty.trainer].state is not ClientState.Ejected
    ]


def play_until_duty(run: RunHarness) -> Duty:
    """Rounds until somebody has to look at somebody: small runs have no verifiers while they judge."""
    while not list_duties(run):
        run.play_round()
        assert run.state is RunState.RoundTrain
    return list_duties(run)[0]


def get_client_wallet(run: RunHarness, index: int) -> Keypair:
    """The wallet of an epoch client."""
    return run.get_wallet(run.account.epoch_clients[index])


def make_evidence_hash(number: int) -> bytes:
    """Evidence is nothing to the program but a hash."""
    return hashlib.sha256(f"evidence {number}".encode()).digest()


def make_verdict(
    run: RunHarness, duty: Duty, number: int = 0, signer: Keypair | None = None, **changes: Any
) -> Instruction:
    """The verdict of a duty of the current round, by evidence of that number, but for ``changes``."""
    args = {
        "index": duty.verifier,
        "trainer": duty.trainer,
        "height": run.account.current_round.height - 1,
        "reason": FRAUD,
        "evidence_hash": make_evidence_hash(number),
        **changes,
    }
    return run.encode("verdict", signer or get_client_wallet(run, duty.verifier), **args)


def accuse(run: RunHarness, number: int = 0, **changes: Any) -> Duty:
    """The first duty's verifier does it."""
    duty = play_until_duty(run)
    run.chain.commit(make_verdict(run, duty, number, **changes))  # type: ignore[attr-defined]
    return duty


def find_dispute(run: RunHarness, number: int = 0) -> Dispute:
    """The dispute about the evidence of that number, as it stands now."""
    (found,) = [d for d in run.account.disputes if d.evidence_hash == make_evidence_hash(number)]
    return found


def list_judges(run: RunHarness, number: int = 0) -> list[int]:
    """Epoch clients that may vote, by their places in the committee."""
    account, dispute = run.account, find_dispute(run, number)
    round_ = account.get_round_at(dispute.judge_height)
    assert round_ is not None
    return [i for i in compute_tie_breaker_seats(round_) if is_tie_breaker(account, dispute, i)]


def make_vote(
    run: RunHarness,
    index: int,
    is_guilty: bool,
    number: int = 0,
    signer: Keypair | None = None,
    **changes: Any,
) -> Instruction:
    """A vote of an epoch client, but for ``changes``."""
    args = {"index": index, "evidence_hash": make_evidence_hash(number), "is_guilty": is_guilty, **changes}
    return run.encode("vote", signer or get_client_wallet(run, index), **args)


def decide(run: RunHarness, is_guilty: bool, number: int = 0) -> None:
    """As many judges as it takes say so, of those that are still there."""
    voted = [voter for voter, _ in find_dispute(run, number).votes]
    for index in list_judges(run, number):
        is_there = run.account.epoch_clients[index].state is ClientState.Healthy and index not in voted
        if is_there and find_dispute(run, number).is_open:
            run.chain.commit(make_vote(run, index, is_guilty, number))  # type: ignore[attr-defined]
    assert not find_dispute(run, number).is_open


def play_dispute(run: RunHarness, state: str) -> None:
    """From waiting members into an epoch: "accusing" has a duty to do, in "judging" a dispute lacks one vote,
    in "indebted" the trainer was found guilty and owes what it was slashed."""
    set_slashing(run)
    run.start_training()
    if state == "accusing":
        play_until_duty(run)
        return
    accuse(run)
    run.play_round()
    assert run.state is RunState.RoundTrain
    if state == "judging":
        run.chain.commit(make_vote(run, list_judges(run)[0], True))  # type: ignore[attr-defined]
        assert find_dispute(run).is_open
        return
    decide(run, True)
