"""The treasurer: it owns runs through its own address, and pays what was earned, once, from the vault."""

from __future__ import annotations

import pytest
from programs_harness import ProgramChain, RunHarness, make_config, make_model, refused
from solders.account import Account
from solders.pubkey import Pubkey
from spl.token.instructions import (
    InitializeAccountParams,
    create_associated_token_account,
    initialize_account,
)
from token_harness import TokenMint
from treasury_harness import Treasury

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, TOKEN_PROGRAM, find_participant
from psyche_py.coordinator.layout import RunState
from psyche_py.coordinator.model import Metadata


@pytest.fixture
def treasury() -> Treasury:
    return Treasury(ProgramChain())


@pytest.fixture
def paid(treasury: Treasury) -> Treasury:
    """One epoch is over: two clients have earned 50 points each, the vault holds 80."""
    treasury.open_funded()
    treasury.play_paid_epoch()
    treasury.fund(80)
    for wallet in treasury.wallets:
        treasury.mint.make_account(wallet)
        treasury.create_participant(wallet)
    return treasury


def test_create_makes_run_vault_and_coordinator(treasury: Treasury) -> None:
    treasury.create()
    run = treasury.get_run()
    assert (
        run.pop("bump")
        == Pubkey.find_program_address(
            [b"Run", treasury.index.to_bytes(8, "little")], get_program_id("treasurer")
        )[1]
    )
    assert run == {
        "index": treasury.index,
        "main_authority": treasury.owner.pubkey(),
        "join_authority": treasury.owner.pubkey(),
        "coordinator_account": treasury.address,
        "coordinator_instance": treasury.instance,
        "collateral_mint": treasury.mint.address,
        "total_claimed_collateral_amount": 0,
        "total_claimed_earned_points": 0,
    }
    data = treasury.chain.get_data(treasury.instance)
    assert data is not None
    instance = get_program("coordinator").decode_account("CoordinatorInstance", data)
    assert instance["main_authority"] == treasury.run
    assert (instance["join_authority"], instance["run_id"]) == (treasury.owner.pubkey(), "run")
    assert treasury.mint.get_amount(treasury.vault) == 0
    assert treasury.account.run_id == "run"


def test_create_is_strict(treasury: Treasury) -> None:
    with refused("RunIdInvalidLength"):
        treasury.create(run_id="x" * 33)
    with refused("InvalidParameter"):
        treasury.create(client_version="x" * 97)
    with refused("WrongPda"):
        treasury.create(index=treasury.index ^ 1)
    with refused("WrongProgram"):
        treasury.create(coordinator_program=get_program_id("authorizer"))
    with refused("WrongProgram"):
        treasury.create(associated_token_program=get_program_id("authorizer"))
    with refused("WrongOwner"):
        treasury.create(collateral_mint=treasury.owner.pubkey())
    treasury.create()
    other = Treasury(treasury.chain, "other")
    with refused("AlreadyInitialized"):
        other.create(index=treasury.index, run=treasury.run, run_collateral=treasury.vault)


def test_update_passes_everything_on(treasury: Treasury) -> None:
    treasury.create()
    treasury.change(
        metadata=Metadata(name="Paid").to_bytes(),
        config=make_config().to_bytes(),
        epoch_earning_rate_total_shared=5,
        epoch_slashing_rate_per_client=6,
        client_version="v2",
    )
    treasury.change(model=make_model().to_bytes(), paused=False)
    account = treasury.account
    assert (account.metadata.name, account.client_version) == ("Paid", "v2")
    assert (
        account.future_rates.earning_rate_total_shared,
        account.future_rates.slashing_rate_per_client,
    ) == (5, 6)
    assert account.run_state is RunState.WaitingForMembers
    with refused("UpdateConfigNotHalted"):
        treasury.change(client_version="v3")
    treasury.change()


def test_only_the_owner_updates(treasury: Treasury) -> None:
    treasury.create()
    thief = treasury.chain.make_wallet("thief")
    with refused("WrongAuthority"):
        treasury.change(signer=thief, paused=False)
    with refused("WrongAuthority"):
        treasury.own("set_paused", signer=treasury.owner, paused=False)
    other = Treasury(treasury.chain, "other")
    other.create(main_authority=thief.pubkey())
    with refused("WrongAccount"):
        other.change(
            signer=thief, epoch_earning_rate_total_shared=10**9, coordinator_account=treasury.address
        )
    with refused("WrongAccount"):
        other.change(
            signer=thief, epoch_earning_rate_total_shared=10**9, coordinator_instance=treasury.instance
        )
    with refused("WrongProgram"):
        treasury.change(epoch_earning_rate_total_shared=1, coordinator_program=get_program_id("authorizer"))


def test_claims_are_paid_exactly_and_once(paid: Treasury) -> None:
    first = paid.wallets[0]
    wallet = paid.mint.make_account(first)
    assert [entry.earned for entry in paid.account.entries] == [50, 50]
    with refused("InsufficientPoints"):
        paid.claim(first, 51)
    paid.claim(first, 20)
    assert (paid.mint.get_amount(wallet), paid.mint.get_amount(paid.vault)) == (20, 60)
    with refused("InsufficientPoints"):
        paid.claim(first, 31)
    paid.claim(first, 30)
    assert (paid.mint.get_amount(wallet), paid.mint.get_amount(paid.vault)) == (50, 30)
    assert [paid.get_claimed(0), paid.get_claimed(1)] == [50, 0]
    for points in (1, 50, 2**64 - 1):
        with refused("InsufficientPoints"):
            paid.claim(first, points)
    with refused("InvalidParameter"):
        paid.claim(first, 0)
    assert (paid.mint.get_amount(wallet), paid.mint.get_amount(paid.vault)) == (50, 30)


def test_a_short_vault_pays_what_it_has_and_the_rest_later(paid: Treasury) -> None:
    first, second = paid.wallets
    paid.claim(first, 50)
    paid.claim(second, 50)
    account = paid.mint.find_account(second.pubkey())
    assert (paid.mint.get_amount(account), paid.mint.get_amount(paid.vault)) == (30, 0)
    assert paid.get_claimed(1) == 30
    with refused("InsufficientVault"):
        paid.claim(second, 20)
    paid.fund(5)
    paid.claim(second, 20)
    assert paid.mint.get_amount(account) == 35
    paid.fund(100)
    with refused("InsufficientPoints"):
        paid.claim(second, 16)
    paid.claim(second, 15)
    assert (paid.mint.get_amount(account), paid.mint.get_amount(paid.vault)) == (50, 85)
    run = paid.get_run()
    assert (run["total_claimed_collateral_amount"], run["total_claimed_earned_points"]) == (100, 100)
    record = paid.get_participant(second.pubkey())
    assert (record["claimed_collateral_amount"], record["claimed_earned_points"]) == (50, 50)


def test_sums_of_a_lifetime_never_block_a_claim(paid: Treasury) -> None:
    """At the end of the number they stay there; the entry decides what is owed."""
    svm, first = paid.chain.svm, paid.wallets[0]
    for address, at in ((paid.run, 177), (find_participant(paid.run, first.pubkey()), 9)):
        account = svm.get_account(address)
        data = bytearray(account.data)
        data[at : at + 16] = b"\xff" * 16
        svm.set_account(address, type(account)(account.lamports, bytes(data), account.owner))
    paid.claim(first, 50)
    assert paid.get_run()["total_claimed_earned_points"] == 2**64 - 1
    assert paid.get_participant(first.pubkey())["claimed_earned_points"] == 2**64 - 1
    assert paid.get_claimed(0) == 50


def test_later_epochs_add_up(paid: Treasury) -> None:
    first = paid.wallets[0]
    paid.claim(first, 50)
    paid.play_paid_epoch()
    with refused("InsufficientPoints"):
        paid.claim(first, 51)
    paid.fund(1000)
    paid.claim(first, 50)
    assert paid.mint.get_amount(paid.mint.make_account(first)) == 100


def test_slashed_points_cannot_be_claimed(paid: Treasury) -> None:
    first = paid.wallets[0]
    paid.set_entry(0, slashed=45)
    with refused("InsufficientPoints"):
        paid.claim(first, 6)
    paid.claim(first, 5)
    for slashed in (46, 50, 1000, 2**64 - 1):
        paid.set_entry(0, slashed=slashed)
        with refused("InsufficientPoints"):
            paid.claim(first, 1)
    paid.set_entry(0, earned=2**64 - 1, slashed=2**64 - 9)
    with refused("InsufficientPoints"):
        paid.claim(first, 4)
    paid.claim(first, 3)


def test_nobody_claims_for_another(paid: Treasury) -> None:
    first, second = paid.wallets
    thief = paid.chain.make_wallet("thief")
    loot = paid.mint.make_account(thief)
    with refused("WrongPda"):
        paid.claim(first, 10, participant=find_participant(paid.run, second.pubkey()))
    with refused("WrongAccount"):
        paid.claim(first, 10, user_collateral=loot)
    paid.create_participant(thief)
    with refused("InsufficientPoints"):
        paid.claim(thief, 1)
    with refused("WrongPda"):
        paid.create_participant(thief, participant=find_participant(paid.run, first.pubkey()))
    with refused("AlreadyInitialized"):
        paid.create_participant(first)


def test_claims_read_only_the_runs_own_account(paid: Treasury) -> None:
    first = paid.wallets[0]
    rich = RunHarness(paid.chain, "rich")
    rich.create()
    with refused("WrongAccount"):
        paid.claim(first, 10, coordinator_account=rich.address)
    other = Treasury(paid.chain, "other")
    other.create()
    with refused("WrongPda"):
        paid.claim(first, 10, run=other.run)
    with refused("WrongAccount"):
        paid.claim(first, 10, run_collateral=other.vault)
    with refused("WrongAccount"):
        paid.claim(first, 10, coordinator_instance=other.instance)
    with refused("WrongAccount"):
        paid.claim(first, 10, collateral_mint=paid.mint.find_account(first.pubkey()))


def test_claims_call_no_other_programs_than_the_coordinator_and_the_mints(paid: Treasury) -> None:
    """A program that called back into the treasurer would be in the middle of a payment."""
    first = paid.wallets[0]
    for program in (get_program_id("treasurer"), get_program_id("authorizer"), SYSTEM_PROGRAM):
        with refused("WrongProgram"):
            paid.claim(first, 10, token_program=program)
        with refused("WrongProgram"):
            paid.claim(first, 10, coordinator_program=program)


def test_claims_into_another_mint_or_another_vault_are_refused(paid: Treasury) -> None:
    first = paid.wallets[0]
    another = TokenMint(paid.chain, paid.owner, "another")
    theirs = another.make_account(first)
    with refused("WrongAccount"):
        paid.claim(first, 10, user_collateral=theirs)
    with refused("WrongAccount"):
        paid.claim(first, 10, user_collateral=theirs, collateral_mint=another.address)
    fake_vault = another.find_account(paid.run)
    create = create_associated_token_account(first.pubkey(), paid.run, another.address)
    paid.chain.send([create], [first])
    another.fund(fake_vault, 100)
    with refused("WrongAccount"):
        paid.claim(first, 10, run_collateral=fake_vault)
    with refused("WrongAccount"):
        paid.claim(
            first, 10, run_collateral=fake_vault, user_collateral=theirs, collateral_mint=another.address
        )
    assert paid.get_claimed(0) == 0


def test_only_the_associated_account_is_the_vault(paid: Treasury) -> None:
    """Another token account that the run owns holds somebody's gift, but is no vault."""
    first = paid.wallets[0]
    other = paid.chain.make_wallet("a second vault")
    allocate = paid.chain.make_account(first, other, 165, TOKEN_PROGRAM)
    params = InitializeAccountParams(
        program_id=TOKEN_PROGRAM, account=other.pubkey(), mint=paid.mint.address, owner=paid.run
    )
    paid.chain.svm.set_account(other.pubkey(), Account(0, b"", SYSTEM_PROGRAM))
    paid.chain.send([allocate, initialize_account(params)], [first, other])
    paid.mint.fund(other.pubkey(), 10)
    with refused("WrongAccount"):
        paid.claim(first, 10, run_collateral=other.pubkey())


def test_a_token_account_with_a_delegate_is_refused(paid: Treasury) -> None:
    first = paid.wallets[0]
    paid.mint.approve(first, paid.owner.pubkey(), 1)
    with refused("WrongAccount"):
        paid.claim(first, 10)


def test_claims_work_while_the_run_is_paused(paid: Treasury) -> None:
    paid.change(paused=True)
    assert paid.state is RunState.Paused
    paid.claim(paid.wallets[0], 50)
