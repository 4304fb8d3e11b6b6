"""Closing, reviving and migrating, alone and within one transaction."""

from __future__ import annotations

from attack_baselines import BASELINES
from attack_chain import ABSENT
from attack_funded import FundedRun
from attack_oracle import find_breaches_of_all, judge
from attack_scenes import build_scene, get_scene
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from spl.token.instructions import create_associated_token_account

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_participant
from psyche_py.coordinator.layout import ACCOUNT_SIZE
from psyche_py.coordinator.state import read_account


def make_create(run: FundedRun) -> list[Instruction]:
    """Allocating the run's account and creating the run again."""
    program = get_program_id("coordinator")
    allocate = run.chain.make_account(run.owner, run.account_key, ACCOUNT_SIZE, program)
    create = get_program("treasurer").encode("run_create", run.get_create_accounts(), run.get_create_args())
    return [allocate, create]


def make_claim(run: FundedRun, points: int) -> Instruction:
    """participant_claim of client 0."""
    accounts = run.get_claim_accounts(run.wallets[0])
    return get_program("treasurer").encode("participant_claim", accounts, {"claim_earned_points": points})


def pay(payer: Pubkey, address: Pubkey) -> Instruction:
    return transfer(TransferParams(from_pubkey=payer, to_pubkey=address, lamports=10**9))


def test_a_closed_treasurer_run_stays_closed() -> None:
    """Its four accounts, paid back to life by anybody in the same transaction, are nobody's."""
    scene = get_scene("waiting")
    chain, run = scene.chain, scene.empty
    close = BASELINES["treasurer", "run_close"].build(scene)
    outcome = chain.honest(close)
    addresses = (run.fund, run.vault, run.address, run.instance)
    assert all(outcome.changes[address][1] == ABSENT for address in addresses)
    revive = [pay(scene.thief.pubkey(), address) for address in addresses]
    outcome = chain.honest(close, *revive)
    assert all(outcome.changes[address][1] == (10**9, SYSTEM_PROGRAM, b"") for address in addresses)
    values = dict.fromkeys(get_program("treasurer").get_argument_names("run_update"))
    update = get_program("treasurer").encode(
        "run_update", run.get_update_accounts(), {**values, "paused": True}
    )
    for between in ([], revive):
        chain.attack("using a closed run", "WrongOwner", close, *between, update)
        chain.attack("closing a run twice", "WrongOwner", close, *between, close)
        chain.attack("ticking a closed run", "WrongOwner", close, *between, run.encode("tick", scene.thief))


def test_a_vault_made_again_is_empty_and_without_owner() -> None:
    """Anybody may make the associated account again; the run that could open it is gone."""
    scene = get_scene("waiting")
    chain, run = scene.chain, scene.empty
    close = BASELINES["treasurer", "run_close"].build(scene)
    again = create_associated_token_account(scene.thief.pubkey(), run.fund, run.mint.pubkey())
    chain.honest(close, again)
    withdraw = get_program("treasurer").encode("run_withdraw", run.get_withdraw_accounts(), {"amount": 1})
    chain.attack("withdrawing from a new vault", "WrongOwner", close, again, withdraw)


def test_a_run_made_again_owes_nothing_for_the_old_one() -> None:
    """Closed and created again in one transaction: no byte, point or claim of the old run is left."""
    scene = get_scene("waiting")
    chain, run = scene.chain, scene.empty
    chain.remember(run.account_key)
    close = BASELINES["treasurer", "run_close"].build(scene)
    outcome = chain.honest(close, *make_create(run))
    account = read_account(outcome.changes[run.address][1].data)
    assert not account.entries
    assert not account.epoch_clients
    fund = outcome.changes.get(run.fund)
    assert fund is None or fund[1].data[177:] == bytes(16), "old sums are left"


def test_an_old_record_claims_nothing_of_a_run_made_again() -> None:
    """A participant's record outlives its run; points come from the new coordinator account alone."""
    scene = build_scene("waiting")
    chain, run = scene.chain, scene.ended
    run.enlist(run.wallets[1])
    withdraw = BASELINES["treasurer", "run_withdraw"].build(scene)
    claims = [
        get_program("treasurer").encode(
            "participant_claim", run.get_claim_accounts(user), {"claim_earned_points": 50}
        )
        for user in run.wallets
    ]
    close = get_program("treasurer").encode("run_close", run.get_close_accounts(), {})
    chain.attack("closing before all are paid", "PointsNotClaimed", withdraw, claims[0], close)
    chain.attack("closing before the rest is taken", "VaultNotEmpty", *claims, close)
    chain.remember(run.account_key)
    chain.commit(withdraw, *claims, close)
    chain.commit(*make_create(run))
    run.fill(1000)
    assert chain.get_state(find_participant(run.fund, run.wallets[0].pubkey())) != ABSENT
    for points in (1, 50):
        chain.attack("claiming of the old run", "InsufficientPoints", make_claim(run, points))
    chain.attack("withdrawing at once", "RunNotFinished", withdraw)


def test_migrating_a_record_pays_nothing_twice() -> None:
    """20 of 50 points were paid before the coordinator knew of claims: 30 are left, in any order."""
    scene = get_scene("waiting")
    chain, run = scene.chain, scene.rival_funded
    user = run.wallets[1]
    migrate = BASELINES["treasurer", "participant_migrate"].build(scene)
    claims = {
        points: get_program("treasurer").encode(
            "participant_claim", run.get_claim_accounts(user), {"claim_earned_points": points}
        )
        for points in (1, 20, 30, 31, 50)
    }
    for claim in claims.values():
        chain.attack("claiming with an older record", "WrongVersion", claim)
    assert judge(chain, "migrating and claiming", migrate, claims[30]).error is None
    for points in (31, 50):
        chain.attack("claiming what was paid", "InsufficientPoints", migrate, claims[points])
    chain.attack("claiming once more", "InsufficientPoints", migrate, claims[30], claims[1])
    chain.attack("migrating twice", "NothingToMigrate", migrate, migrate)
    chain.attack("migrating after the claim", "NothingToMigrate", migrate, claims[20], migrate)


def test_migrating_a_run_twice_or_for_another() -> None:
    scene = get_scene("older")
    chain, run = scene.chain, scene.run
    migrate = run.encode("migrate", scene.thief)
    assert judge(chain, "migrating by a stranger", migrate).error is None
    chain.attack("migrating twice", "NothingToMigrate", migrate, migrate)
    chain.attack("migrating what is new", "NothingToMigrate", scene.rival.encode("migrate", scene.thief))
    for call in (run.encode("tick", scene.thief), run.encode("leave_run", run.wallets[0])):
        chain.attack("using an older run", "WrongVersion", call)
        outcome = chain.attempt(migrate, call)
        breaches = find_breaches_of_all(chain, [migrate, call], outcome)
        chain.judge("migrating and using", not breaches, outcome, breaches)
