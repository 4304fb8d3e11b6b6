"""What is earned is paid, once, to who earned it; what is not stays until the owner may have it."""

from __future__ import annotations

from typing import Any

import pytest
from attack_arithmetic import set_points
from attack_authorizer import THIRTY_DAYS
from attack_chain import AttackChain, Outcome
from attack_funded import FundedRun
from attack_oracle import judge, judge_and_keep
from attack_scenes import Scene, build_scene, get_scene
from solders.instruction import Instruction
from solders.keypair import Keypair

from psyche_py.chain.anchor import get_program
from psyche_py.chain.pda import find_token_account
from psyche_py.coordinator.layout import RunState


def make_claim(run: FundedRun, user: Keypair, points: int) -> Instruction:
    """participant_claim."""
    arguments = {"claim_earned_points": points}
    return get_program("treasurer").encode("participant_claim", run.get_claim_accounts(user), arguments)


def make_withdraw(run: FundedRun, amount: int, **changes: Any) -> Instruction:
    """run_withdraw."""
    accounts = {**run.get_withdraw_accounts(), **changes}
    return get_program("treasurer").encode("run_withdraw", accounts, {"amount": amount})


def make_close(run: FundedRun) -> Instruction:
    """run_close."""
    return get_program("treasurer").encode("run_close", run.get_close_accounts(), {})


def get_amount(chain: AttackChain, run: FundedRun, user: Keypair) -> int:
    """Base units that a user has."""
    data = chain.get_data(find_token_account(user.pubkey(), run.mint.pubkey()))
    assert data is not None
    return int.from_bytes(data[64:72], "little")


def enlist_all(scene: Scene) -> tuple[AttackChain, FundedRun, Keypair, Keypair]:
    """The funded run with both of its clients enlisted; vault 80, 50 points each."""
    run = scene.funded
    run.enlist(run.wallets[1])
    return scene.chain, run, *run.wallets


def keep(chain: AttackChain, what: str, *instructions: Instruction) -> Outcome:
    """Judged, and kept; it must be accepted."""
    outcome = judge_and_keep(chain, what, *instructions)
    assert outcome.error is None, outcome
    return outcome


def test_a_short_vault_owes_the_rest() -> None:
    """80 in the vault, 100 owed: nobody gets more than their 50, in however many claims, nobody loses any."""
    chain, run, one, other = enlist_all(build_scene("waiting"))
    for points in (51, 52, 100, 2**32, 2**64 - 1):
        chain.attack("claiming what is not earned", "InsufficientPoints", make_claim(run, one, points))
    chain.attack("claiming nothing", "InvalidParameter", make_claim(run, one, 0))
    keep(chain, "all of one", make_claim(run, one, 50))
    keep(chain, "more than is left of the other", make_claim(run, other, 50))
    assert (get_amount(chain, run, one), get_amount(chain, run, other)) == (50, 30)
    chain.attack("more than what is owed", "InsufficientPoints", make_claim(run, other, 21))
    chain.attack("from an empty vault", "InsufficientVault", make_claim(run, other, 20))
    chain.attack("a second time", "InsufficientPoints", make_claim(run, one, 1))
    run.fill(1000)
    chain.attack("a second time, from a full vault", "InsufficientPoints", make_claim(run, one, 1))
    keep(chain, "the rest", make_claim(run, other, 20))
    chain.attack("a third time", "InsufficientPoints", make_claim(run, other, 1))
    assert (get_amount(chain, run, one), get_amount(chain, run, other)) == (50, 50)


def test_nobody_claims_what_another_has_earned() -> None:
    """Neither in the other's name, nor into an own account, nor by an own record."""
    chain, run, one, other = enlist_all(build_scene("waiting"))
    thief = chain.make_wallet("thief")
    chain.attack("claiming without points", "InsufficientPoints", make_claim(run, thief, 1))
    accounts, theirs = run.get_claim_accounts(one), run.get_claim_accounts(thief)
    wrong = {"user_collateral": "WrongAccount", "participant": "WrongPda"}
    for slot, error in wrong.items():
        mixed = {**accounts, slot: theirs[slot]}
        claim = get_program("treasurer").encode("participant_claim", mixed, {"claim_earned_points": 50})
        chain.attack(f"claiming with another's {slot}", error, claim)
        mixed = {**theirs, slot: accounts[slot]}
        claim = get_program("treasurer").encode("participant_claim", mixed, {"claim_earned_points": 50})
        chain.attack(f"claiming as another by {slot}", error, claim)
    chain.honest(make_claim(run, other, 50))


@pytest.mark.parametrize("sums", [(50, 60, 0), (50, 50, 0), (50, 30, 30), (0, 1, 0)])
def test_nothing_is_claimed_after_slashing_below_zero(sums: tuple[int, int, int]) -> None:
    """Points earned, slashed and claimed."""
    scene = get_scene("waiting")
    chain, run, user = scene.chain, scene.funded, scene.funded.wallets[0]
    chain.honest(make_claim(run, user, 50))
    data = set_points(chain.get_state(run.address).data, run, user.pubkey(), sums)
    with chain.altered(run.address, data=data):
        for points in (1, 10, 20, 50, 2**64 - 10, 2**64 - 1):
            chain.attack("claiming after slashing", "InsufficientPoints", make_claim(run, user, points))


def test_only_the_treasurer_says_what_was_paid() -> None:
    """record_claim by a stranger, a client or the run's owner would take points from somebody."""
    scene = get_scene("waiting")
    chain, run = scene.chain, scene.funded
    for signer in (scene.thief, run.owner, run.wallets[0], scene.rival.owner):
        accounts = {
            "authority": signer.pubkey(),
            "instance": run.instance,
            "coordinator_account": run.address,
        }
        for user in (*run.wallets, scene.thief):
            arguments = {"user": user.pubkey(), "points": 1}
            hostile = get_program("coordinator").encode("record_claim", accounts, arguments)
            chain.attack("recording another's claim", "WrongAuthority", hostile)
        accounts["spill"] = signer.pubkey()
        free = get_program("coordinator").encode("free_coordinator", accounts, {})
        chain.attack("closing past the treasurer", "WrongAuthority", free)


def test_the_owner_cannot_drain_a_run_that_is_not_over() -> None:
    """Training, paused, or finished for less than thirty days, to the second."""
    scene = build_scene("waiting")
    chain, run = scene.chain, scene.funded
    run.fill(1000)
    run.open_wallet(run.owner)
    for amount in (0, 1, 980, 1080):
        chain.attack("withdrawing while it trains", "RunNotFinished", make_withdraw(run, amount))
    chain.attack("closing while it trains", "RunNotFinished", make_close(run))
    run.own("set_paused", paused=True)
    chain.attack("withdrawing while it is paused", "RunNotFinished", make_withdraw(run, 1))
    chain.attack("closing while it is paused", "RunNotFinished", make_close(run))
    run.own("set_paused", paused=False)
    run.finish()
    chain.attack("closing while it owes", "PointsNotClaimed", make_close(run))
    for seconds in (0, 1, THIRTY_DAYS // 2, THIRTY_DAYS - 1):
        with chain.undone():
            chain.set_now(chain.now + seconds)
            chain.attack(f"withdrawing after {seconds} s", "WithdrawDelayNotOver", make_withdraw(run, 1))
            chain.honest(make_claim(run, run.wallets[0], 50))
    chain.set_now(chain.now + THIRTY_DAYS)
    for amount in (981, 982, 1079, 1080, 1081, 2**64 - 1):
        chain.attack("withdrawing what is owed", "CollateralIsPromised", make_withdraw(run, amount))
    thief = {"authority": scene.thief.pubkey()}
    own = find_token_account(scene.thief.pubkey(), run.mint.pubkey())
    hostile = make_withdraw(run, 1, **thief, authority_collateral=own)
    chain.attack("a thief withdraws", "WrongAuthority", hostile)
    keep(chain, "all that nobody is owed", make_withdraw(run, 980))
    chain.attack("one more", "CollateralIsPromised", make_withdraw(run, 1))
    run.enlist(run.wallets[1])
    for user in run.wallets:
        keep(chain, "years later", make_claim(run, user, 50))
    judge(chain, "closing when all are paid", make_close(run))


def test_a_finished_run_cannot_be_restarted_or_repriced() -> None:
    """So nobody moves the second from which the thirty days count, or the points."""
    scene = get_scene("waiting")
    chain, run = scene.chain, scene.ended
    assert run.state is RunState.Finished
    values = dict.fromkeys(get_program("treasurer").get_argument_names("run_update"))
    before = chain.get_state(run.address)
    changes: list[dict[str, Any]] = [
        {"paused": True},
        {"paused": False},
        {"epoch_earning_rate_total_shared": 2**40},
    ]
    changes += [{"epoch_slashing_rate_per_client": 2**40}, {"client_version": "other"}]
    for change in changes:
        update = get_program("treasurer").encode(
            "run_update", run.get_update_accounts(), {**values, **change}
        )
        outcome = judge(chain, f"changing a finished run: {change}", update)
        _, after = outcome.changes.get(run.address, (before, before))
        with chain.altered(run.address, data=after.data):
            assert run.state is RunState.Finished
            assert [entry.earned for entry in run.account.entries] == [50, 50]
            chain.honest(make_claim(run, run.wallets[0], 50))


@pytest.mark.parametrize("rate", [0, 1, 10**9, 2**63, 2**64 - 1])
@pytest.mark.parametrize("slashing", [0, 2**64 - 1])
def test_new_rates_take_nothing_from_what_was_earned(rate: int, slashing: int) -> None:
    """Points earned before are paid in full, from a vault that covers them, until the epoch with the new rate
    is settled, at whatever second the owner changes it."""
    chain, run, one, other = enlist_all(build_scene("waiting"))
    run.fill(20)
    claims = make_claim(run, one, 50), make_claim(run, other, 50)
    chain.honest(*claims)
    values = dict.fromkeys(get_program("treasurer").get_argument_names("run_update"))
    rates = {"epoch_earning_rate_total_shared": rate, "epoch_slashing_rate_per_client": slashing}
    update = get_program("treasurer").encode("run_update", run.get_update_accounts(), {**values, **rates})
    keep(chain, "new rates", update)
    chain.honest(update, *claims)
    run.join_all()
    chain.honest(*claims)
    run.start_training()
    chain.honest(*claims)
    chain.advance(200)
    while run.state is RunState.RoundTrain:
        run.play_round()
        chain.honest(*claims)
    assert run.state is RunState.Cooldown
    chain.honest(*claims)
    keep(chain, "both, before it is settled", *claims)
    run.tick(10)
    assert (get_amount(chain, run, one), get_amount(chain, run, other)) == (50, 50)
    assert [entry.claimed for entry in run.account.entries] == [50, 50]
    earned = [entry.earned for entry in run.account.entries]
    assert all(points >= 50 for points in earned), "an epoch took points away"
