"""Bonds: nobody gets at another's, nor at its own while it is at stake; none is locked for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attack_arithmetic import set_field
from attack_chain import ABSENT, AccountState, AttackChain, Outcome, replace_account
from attack_disputes import (
    SLASH,
    accuse,
    decide,
    find_dispute,
    get_client_wallet,
    list_duties,
    list_judges,
    make_verdict,
    make_vote,
    play_until_duty,
    set_slashing,
)
from attack_funded import RATE
from attack_laws import find_lawless
from attack_oracle import judge, judge_and_keep
from attack_scenes import Scene, build_scene, get_scene
from attack_staked import BOND, HELD, StakedRun, open_staked
from programs_harness import ANYBODY, RunHarness, make_p2p_key
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.coordinator.layout import ACCOUNT_SIZE, MAX_CLIENTS, DisputeState, RunState


def sum_collateral(run: StakedRun) -> int:
    """In the vault, in bonds and in wallets together."""
    users = [*run.wallets, *(getattr(run, name) for name in ("newcomer", "poster") if hasattr(run, name))]
    owners = [run.fund, *(user.pubkey() for user in users), *(run.find_bond(user) for user in users)]
    return sum(run.get_amount(owner) for owner in owners)


def build_disputed(**config: int) -> tuple[AttackChain, StakedRun, Scene]:
    """Clients with bonds, one of whom is accused; its judges are asked."""
    scene = build_scene("waiting")
    run = open_staked(scene.chain, "disputed", "owner", 6, **config)
    run.start_training()
    accuse(run)
    run.play_round()
    return scene.chain, run, scene


def get_parties(run: StakedRun) -> tuple[Keypair, Keypair]:
    """Wallets of accuser and trainer."""
    dispute = find_dispute(run)
    return get_client_wallet(run, dispute.accuser), get_client_wallet(run, dispute.trainer)


def test_a_bond_is_at_stake_from_joining_to_the_epochs_end() -> None:
    """Before, between verdict and votes, between the conviction and its end, after leaving, and paused."""
    chain, run, scene = build_disputed()
    accuser, trainer = get_parties(run)

    def attack_all(when: str) -> None:
        for user in (accuser, trainer):
            back = run.make_return(user)
            chain.attack(f"a bond back {when}", "BondInUse", back)
            leave = run.encode("leave_run", user)
            chain.attack(f"leaving with the bond {when}", "BondInUse", leave, back)
            tick = run.encode("tick", scene.thief)
            chain.attack(f"ticking for the bond {when}", "BondInUse", leave, tick, back)

    attack_all("between verdict and votes")
    chain.commit(run.encode("leave_run", trainer))
    attack_all("having left")
    decide(run, True)
    attack_all("when convicted")
    chain.commit(run.make_slash(trainer))
    attack_all("when slashed")
    run.own("set_paused", paused=True)
    while run.state is RunState.RoundTrain:
        run.play_round()
    attack_all("in cooldown")
    run.tick(30)
    assert run.state is RunState.Paused
    for user, amount in ((accuser, BOND), (trainer, BOND - SLASH)):
        before = run.get_amount(user.pubkey())
        assert judge_and_keep(chain, "a bond back", run.make_return(user)).error is None
        assert run.get_amount(user.pubkey()) == before + amount


def test_what_is_owed_is_paid_once() -> None:
    """By whoever sends it, in one transaction or in several, and no more than is owed or there."""
    chain, run, scene = build_disputed()
    accuser, trainer = get_parties(run)
    slash, total = run.make_slash(trainer), sum_collateral(run)
    chain.attack("slashing the accused", "NothingToSlash", slash)
    decide(run, True)
    chain.attack("slashing the accuser", "NothingToSlash", run.make_slash(accuser))
    chain.attack("slashing twice at once", "NothingToSlash", slash, slash)
    chain.attack("a debtor's bond back", "BondInUse", run.make_return(trainer))
    assert judge_and_keep(chain, "slashing", slash).error is None
    chain.attack("slashing twice", "NothingToSlash", slash)
    owner = {"authority": run.owner.pubkey(), "instance": run.instance, "coordinator_account": run.address}
    for signer in (run.owner, scene.thief, trainer):
        accounts = {**owner, "authority": signer.pubkey()}
        args = {"user": trainer.pubkey(), "points": 1}
        hostile = get_program("coordinator").encode("settle_debt", accounts, args)
        chain.attack("settling a debt past the bond", "WrongAuthority", hostile)
    assert (run.get_amount(run.find_bond(trainer)), run.get_amount(run.fund)) == (BOND - SLASH, SLASH)
    assert sum_collateral(run) == total
    run.end_epoch()
    assert sum(entry.earned for entry in run.account.entries) == RATE
    assert run.account.entries[run.account.find_entry(bytes(trainer.pubkey()))].debt == 0  # type: ignore[index]


@pytest.mark.parametrize("slashing", [1, BOND - 1, BOND, BOND + 1, 2**63, 2**64 - 1])
def test_a_bond_pays_what_it_has(slashing: int) -> None:
    """Whatever the rate: collateral is neither made nor lost, and the rest stays owed."""
    scene = build_scene("waiting")
    chain, run = scene.chain, open_staked(scene.chain, "disputed", "owner")
    set_slashing(run, slashing)
    total = sum_collateral(run)
    run.start_training()
    accuse(run)
    run.play_round()
    _, trainer = get_parties(run)
    decide(run, True)
    assert judge_and_keep(chain, f"slashing {slashing}", run.make_slash(trainer)).error is None
    taken = min(slashing, BOND)
    assert (run.get_amount(run.find_bond(trainer)), run.get_amount(run.fund)) == (BOND - taken, taken)
    assert sum_collateral(run) == total == len(run.wallets) * HELD
    entry = run.account.entries[run.account.find_entry(bytes(trainer.pubkey()))]  # type: ignore[index]
    assert entry.debt == slashing - taken
    again = run.make_slash(trainer)
    chain.attack("slashing an empty bond", "NothingToSlash", again)
    run.end_epoch()
    if entry.debt:
        chain.attack("a debtor's bond back", "BondOwesDebt", run.make_return(trainer))


def test_claims_around_a_vote() -> None:
    """Parties are not paid while the dispute is open; in the transaction that decides it the order counts."""
    scene = build_scene("waiting")
    chain, run = scene.chain, open_staked(scene.chain, "disputed", "owner", 6)
    run.start_training()
    run.end_epoch()
    run.fill(1000)
    run.join_staked()
    run.start_training()
    accuse(run)
    run.play_round()
    accuser, trainer = get_parties(run)
    needed = [make_vote(run, index, True) for index in list_judges(run)[:3]]
    for user in (accuser, trainer):
        chain.attack("a claim in a dispute", "InDispute", run.make_claim(user, 1))
        chain.attack("a claim before the votes", "InDispute", run.make_claim(user, 1), *needed)
    earned = run.account.entries[run.account.find_entry(bytes(trainer.pubkey()))].earned  # type: ignore[index]
    assert 0 < earned < SLASH
    assert judge(chain, "the accuser, after them", *needed, run.make_claim(accuser, 1)).error is None
    chain.attack("the convict, after them", "InsufficientPoints", *needed, run.make_claim(trainer, 1))
    outcome = chain.honest(*needed, run.make_slash(trainer))
    assert outcome.changes[run.find_own(run.find_bond(trainer))] is not None
    chain.commit(*needed, run.make_slash(trainer))
    assert run.get_amount(run.find_bond(trainer)) == BOND - (SLASH - earned)


def test_a_bond_exchanged_within_the_transaction_that_joins() -> None:
    """Closed and opened again with less, before or after; a post of nothing; a bond promised later."""
    scene = get_scene("waiting")
    chain, run, user = scene.chain, scene.staked, scene.staked.newcomer
    join, back, less = run.make_join(user), run.make_return(user), run.make_post(user, BOND - 1)
    from spl.token.instructions import create_associated_token_account

    again = create_associated_token_account(user.pubkey(), run.find_bond(user), run.mint.pubkey())
    chain.honest(join)
    chain.attack("joining, bond back", "BondInUse", join, back)
    chain.attack("bond back, joining", "BondMissing", back, join)
    chain.attack("a smaller bond, joining", "BondMissing", back, again, less, join)
    chain.attack("joining, then posting", "BondMissing", back, join, again, less)
    assert chain.honest(back, again, run.make_post(user, BOND), join)
    leave = run.encode("leave_run", user)
    assert judge(chain, "joining, leaving, bond back", join, leave, back).error is None
    chain.attack("and joining without", "BondMissing", join, leave, back, join)


def test_a_debtor_joins_with_what_its_bond_is_worth() -> None:
    """A bond that still has to pay a debt counts only for the rest: else it joins, and then the bond goes."""
    scene = build_scene("waiting")
    chain, run, debtor = scene.chain, scene.staked, scene.staked.debtor
    join, slash = run.make_join(debtor), run.make_slash(debtor)
    assert run.get_amount(run.find_bond(debtor)) == BOND
    chain.attack("a debtor with the bond it had", "BondMissing", join)
    chain.attack("a debtor that has paid", "BondMissing", slash, join)
    rest = run.make_post(debtor, SLASH - 1)
    chain.attack("a debtor with one unit less", "BondMissing", rest, join)
    chain.commit(run.make_post(debtor, SLASH))
    assert judge(chain, "a debtor with bond for both", join).error is None
    assert judge_and_keep(chain, "and slashed", slash, join).error is None
    assert run.get_amount(run.find_bond(debtor)) == BOND


def test_a_convict_that_had_joined_the_next_epoch() -> None:
    """It is out of it, and may join again with a bond for what it owes and what is asked."""
    chain, run, _ = build_disputed()
    _, trainer = get_parties(run)
    chain.commit(run.make_join(trainer))
    decide(run, True)
    entry = run.account.find_entry(bytes(trainer.pubkey()))
    assert entry not in run.account.pending
    chain.attack("joining with a bond that is owed", "BondMissing", run.make_join(trainer))
    chain.commit(run.make_post(trainer, SLASH))
    assert (
        judge_and_keep(chain, "joining with enough", run.make_join(trainer), run.make_slash(trainer)).error
        is None
    )
    assert run.get_amount(run.find_bond(trainer)) == BOND


def test_bonds_that_are_none() -> None:
    """A wallet's run, where no bond can be; accounts of the attacker's, another's bond, another run's."""
    scene = get_scene("waiting")
    chain, run, user = scene.chain, scene.staked, scene.staked.newcomer
    join, bond = run.make_join(user), run.find_bond(user)
    state = chain.get_state(bond)
    forged = chain.make_key("forged bond").pubkey()
    for owner in (SYSTEM_PROGRAM, get_program_id("coordinator"), scene.thief.pubkey()):
        chain.set_state(forged, state._replace(owner=owner))
        chain.attack("a bond of another program", "BondMissing", replace_account(join, 5, pubkey=forged))
    others = [run.find_bond(other) for other in (*run.wallets, run.poster)]
    others += [scene.rival_staked.find_bond(scene.rival_staked.newcomer), run.vault, run.fund, run.address]
    for other in others:
        chain.attack("another's bond", "BondMissing", replace_account(join, 5, pubkey=other))
    data = state.data
    for at in (9, 41, 73):
        wrong = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with chain.altered(bond, data=wrong):
            chain.attack("a bond with another key", "BondMissing", join)
    for amount in (0, 1, BOND - 1):
        with chain.altered(bond, data=data[:105] + amount.to_bytes(8, "little")):
            chain.attack(f"a bond of {amount}", "BondMissing", join)


def test_a_run_of_another_owner_lets_in_nobody_by_the_treasurers_bonds() -> None:
    """A run owned by a wallet that asks for a bond: the treasurer's are for its own runs; nobody has one."""
    scene = build_scene("waiting")
    chain, staked = scene.chain, scene.staked
    run = RunHarness(chain, "not the treasurer's")
    run.owner = scene.thief
    run.authorization = chain.authorize(scene.thief, ANYBODY)
    run.open(0, required_bond=1)
    for user in (staked.newcomer, *staked.wallets):
        join = run.encode(
            "join_run", user, p2p=make_p2p_key(user), address_hint=bytes(64), bond=staked.find_bond(user)
        )
        chain.attack("a bond for another's run", "BondMissing", join)


def test_join_flood_does_not_wash_a_debt_away() -> None:
    """The debtor's place in a full list is nobody's until a full epoch has passed for its bond to pay in."""
    scene = build_scene("waiting")
    chain, run, debtor = scene.chain, scene.staked, scene.staked.debtor
    fill_list(scene, run)
    join, slash = run.make_join(run.newcomer), run.make_slash(debtor)
    entries = run.account.entries
    debt = next(entry.debt for entry in entries if entry.signer == bytes(debtor.pubkey()))
    assert debt == SLASH
    outcome = chain.attempt(join)
    chain.judge("the debtor's place", outcome.error == "ClientsFull", outcome, "ClientsFull")
    assert judge(chain, "slashing in a full list", slash).error is None
    freed = judge(chain, "a place once it has paid", slash, join)
    assert freed.error is None
    chain.attack("a debtor's bond back", "BondOwesDebt", run.make_return(debtor))
    epoch = run.account.epoch
    for number, error in ((epoch, "ClientsFull"), (epoch + 1, None)):
        data = set_field(chain.get_state(run.address).data, "progress", "epoch", value=number)
        with chain.altered(run.address, data=data):
            assert judge(chain, f"a place in epoch {number}", join).error == error


def fill_list(scene: Scene, run: StakedRun) -> None:
    """All places taken, but the debtor's by clients with points to claim; nobody in the newest epoch."""
    record = run.account.copy().record
    debtor = run.account.find_entry(bytes(run.debtor.pubkey()))
    for number in range(MAX_CLIENTS):
        if number >= len(run.account.entries):
            record["entries"][number]["signer"] = number % 251 + 1
            record["entries"][number]["signer"][0] = number // 251
            record["entries"][number]["p2p_key"] = number % 251 + 1
            record["entries"][number]["p2p_key"][0] = 7 + number // 251
        if number != debtor:
            record["entries"][number]["earned"], record["entries"][number]["slashed"] = 1, 0
    record["num_entries"] = MAX_CLIENTS
    record["epoch_state"]["num_clients"], record["disputes"] = 0, np.zeros((), record["disputes"].dtype)
    state = scene.chain.get_state(run.address)
    scene.chain.set_state(run.address, state._replace(data=record.tobytes()))


def test_an_owner_keeps_no_bond_locked_after_closing() -> None:
    """It has the key of the account that its run was in: whatever it puts there, bonds go back."""
    scene = build_scene("waiting")
    chain, run, user = scene.chain, scene.staked, scene.staked.free
    chain.remember(run.account_key)
    close = prepare_close(scene, run)
    back = run.make_return(user)
    assert judge(chain, "a bond back after closing", close, back).error is None
    programs: list[tuple[int, Pubkey]] = [
        (ACCOUNT_SIZE, get_program_id("coordinator")),
        (0, get_program_id("coordinator")),
        (10, get_program_id("treasurer")),
        (ACCOUNT_SIZE, scene.thief.pubkey()),
        (0, SYSTEM_PROGRAM),
    ]
    for space, program in programs:
        squat = chain.make_account(run.owner, run.account_key, space, program)
        outcome = chain.attempt(close, squat, back)
        before, after = outcome.changes.get(run.find_own(user.pubkey()), (ABSENT, ABSENT))
        is_paid = outcome.error is None and read_amount(after) == read_amount(before) + BOND
        chain.judge(f"{space} bytes of {program} in the run's place", is_paid, outcome, "the bond")


def test_a_run_made_again_has_no_claim_on_older_bonds() -> None:
    """The same account, id and owner again: who does not join it is free, and owes it nothing."""
    scene = build_scene("waiting")
    chain, run, user = scene.chain, scene.staked, scene.staked.free
    chain.remember(run.account_key)
    close = prepare_close(scene, run)
    allocate = chain.make_account(run.owner, run.account_key, ACCOUNT_SIZE, get_program_id("coordinator"))
    create = get_program("treasurer").encode("run_create", run.get_create_accounts(), run.get_create_args())
    chain.commit(close)
    chain.commit(allocate, create)
    chain.attack("slashing for the old run", "NothingToSlash", run.make_slash(run.debtor))
    assert judge(chain, "a bond back", run.make_return(user)).error is None


def prepare_close(scene: Scene, run: StakedRun) -> Instruction:
    """Finished, everybody paid, the vault empty: what is left is the owner's to close."""
    chain = scene.chain
    run.fill(RATE)
    for user in run.wallets:
        points = run.account.entries[run.account.find_entry(bytes(user.pubkey()))].claimable  # type: ignore[index]
        if points:
            chain.commit(run.make_claim(user, points))
    run.finish()
    run.open_wallet(run.owner)
    chain.advance(31 * 24 * 3600)
    amount = {"amount": run.get_amount(run.fund)}
    chain.commit(get_program("treasurer").encode("run_withdraw", run.get_withdraw_accounts(), amount))
    return get_program("treasurer").encode("run_close", run.get_close_accounts(), {})


def read_amount(state: AccountState) -> int:
    return int.from_bytes(state.data[64:72], "little") if state != ABSENT else 0


def test_nobody_gets_anothers_bond() -> None:
    """By signing, by mixing accounts, by an own run, by the vault's instructions."""
    scene = get_scene("waiting")
    chain, run, thief, user = scene.chain, scene.staked, scene.thief, scene.staked.free
    rival = scene.rival_staked
    bond, held = run.find_bond(user), run.find_own(run.find_bond(user))
    own = {"user": thief.pubkey(), "user_collateral": run.find_own(thief.pubkey())}
    mixes: list[dict[str, Any]] = [
        own,
        {**own, "coordinator_account": rival.address},
        {**own, "bond": run.find_bond(thief)},
        {**own, "bond": rival.find_bond(rival.free)},
        {"coordinator_account": rival.address},
        {"bond_collateral": run.vault},
        {"bond_collateral": run.find_own(run.find_bond(run.newcomer))},
    ]
    for mix in mixes:
        judge(chain, f"a bond with {sorted(mix)}", run.make_return(user, **mix))
        outcome = chain.attempt(run.make_return(user, **mix))
        chain.judge("another's bond", outcome.error is not None, outcome, "a refusal")
    claims: list[Instruction] = []
    for slot, value in {"run_collateral": held, "user_collateral": held, "participant": bond}.items():
        accounts = {**run.get_claim_accounts(run.wallets[0]), slot: value}
        claims.append(
            get_program("treasurer").encode("participant_claim", accounts, {"claim_earned_points": 1})
        )
    slashes = [
        run.make_slash(user, bond_collateral=run.find_own(run.find_bond(run.debtor))),
        run.make_slash(run.debtor, bond_collateral=held),
        run.make_slash(run.debtor, run_collateral=run.find_own(run.owner.pubkey())),
        run.make_slash(run.debtor, run_collateral=held),
        run.make_slash(run.debtor, run=rival.fund, run_collateral=rival.vault),
    ]
    for call in (*claims, *slashes):
        outcome = chain.attempt(call)
        chain.judge("another's bond", outcome.error is not None, outcome, "a refusal")


def test_the_laws_see_a_robbed_bond() -> None:
    """The same outcome, but the debt goes to the thief; or to the vault, and the debtor still owes it."""
    scene = get_scene("waiting")
    chain, run = scene.chain, scene.staked
    outcome = chain.honest(run.make_slash(run.debtor))
    assert not find_lawless(chain, outcome)
    changes = dict(outcome.changes)
    changes[scene.thief.pubkey()] = changes.pop(run.vault)
    assert find_lawless(chain, _with(outcome, changes))
    still = {**outcome.changes, run.address: (outcome.changes[run.address][0],) * 2}
    assert find_lawless(chain, _with(outcome, still))
    before, after = outcome.changes[run.address]
    shrunk = {**outcome.changes, run.address: (after, before)}
    assert find_lawless(chain, _with(outcome, shrunk))


def _with(outcome: Outcome, changes: dict[Pubkey, tuple[AccountState, AccountState]]) -> Outcome:
    return replace(outcome, changes=changes)


def test_an_open_dispute_of_an_accuser_without_bond_is_its_own_risk() -> None:
    """The bond is asked when joining: whoever is in the epoch has one, accusers too, and lose it alike."""
    scene = build_scene("waiting")
    chain, run = scene.chain, open_staked(scene.chain, "disputed", "owner", 6)
    run.start_training()
    duty = play_until_duty(run)
    assert duty in list_duties(run)
    chain.commit(make_verdict(run, duty))
    run.play_round()
    accuser, trainer = get_parties(run)
    decide(run, False)
    assert find_dispute(run).state is DisputeState.NotGuilty
    assert judge_and_keep(chain, "slashing the accuser", run.make_slash(accuser)).error is None
    assert run.get_amount(run.find_bond(accuser)) == BOND - SLASH
    chain.attack("slashing the acquitted", "NothingToSlash", run.make_slash(trainer))
