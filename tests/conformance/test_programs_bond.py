"""Bonds: collateral apart from the vault, taken for slashed points alone, given back to who is free."""

from __future__ import annotations

import pytest
from programs_harness import ProgramChain, make_config, refused
from solders.account import Account
from solders.pubkey import Pubkey
from token_harness import TokenMint
from treasury_harness import Treasury

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import TOKEN_2022_PROGRAM, find_bond
from psyche_py.coordinator.layout import ACCOUNT_SIZE, RunState


@pytest.fixture(params=["SPL Token", "Token-2022"])
def staked(request: pytest.FixtureRequest) -> Treasury:
    """One epoch is over, in which two clients earned 50 points each; the first has bonded 30 of its 100."""
    chain = ProgramChain()
    owner = chain.make_wallet("owner")
    program = {"token_program": TOKEN_2022_PROGRAM} if request.param == "Token-2022" else {}
    treasury = Treasury(chain, mint=TokenMint(chain, owner, "collateral", **program))
    treasury.open_funded()
    treasury.play_paid_epoch()
    treasury.fund(80)
    for wallet in treasury.wallets:
        treasury.mint.fund(treasury.mint.make_account(wallet), 100)
        treasury.create_participant(wallet)
    treasury.post_bond(treasury.wallets[0], 30)
    return treasury


def _held(treasury: Treasury, number: int) -> int:
    return treasury.mint.get_amount(treasury.mint.find_account(treasury.wallets[number].pubkey()))


def _in_bond(treasury: Treasury) -> int:
    return treasury.mint.get_amount(treasury.find_bond_collateral(treasury.wallets[0].pubkey()))


def test_posting_opens_a_bond_and_adds_to_it(staked: Treasury) -> None:
    user = staked.wallets[0].pubkey()
    expected = {
        "run": staked.run,
        "user": user,
        "coordinator_account": staked.address,
        "amount": 30,
    }
    bond = staked.get_bond(user)
    assert bond is not None
    assert (
        bond.pop("bump")
        == Pubkey.find_program_address(
            [b"Bond", bytes(staked.run), bytes(user)], get_program_id("treasurer")
        )[1]
    )
    assert bond == expected
    staked.post_bond(staked.wallets[0], 5)
    bond = staked.get_bond(user)
    assert bond is not None
    assert bond["amount"] == 35 == _in_bond(staked)
    assert _held(staked, 0) == 65


def test_what_the_coordinator_reads_lies_where_it_looks(staked: Treasury) -> None:
    """join_run reads these bytes in place: programs/coordinator has no other source for them."""
    user = staked.wallets[0].pubkey()
    data = staked.chain.get_data(find_bond(staked.run, user))
    assert data is not None
    assert len(data) == 113
    assert data[9:41] == bytes(staked.run)
    assert data[41:73] == bytes(user)
    assert data[73:105] == bytes(staked.address)
    assert int.from_bytes(data[105:], "little") == 30


def test_nobody_posts_nothing_or_what_it_does_not_have(staked: Treasury) -> None:
    with refused("InvalidParameter"):
        staked.post_bond(staked.wallets[0], 0)
    with pytest.raises(pytest.fail.Exception, match="insufficient funds"):
        staked.post_bond(staked.wallets[0], 71)
    assert _in_bond(staked) == 30


def test_a_post_takes_the_runs_own_accounts_only(staked: Treasury) -> None:
    first, second = staked.wallets
    other = TokenMint(staked.chain, staked.owner, "other")
    other.fund(other.make_account(second), 100)
    with refused("WrongAccount"):
        staked.post_bond(second, 1, collateral_mint=other.address)
    with refused("WrongAccount"):
        staked.post_bond(second, 1, user_collateral=other.find_account(second.pubkey()))
    with refused("WrongAccount"):
        staked.post_bond(second, 1, bond_collateral=staked.vault)
    with refused("WrongAccount"):
        staked.post_bond(second, 1, bond=staked.find_bond(first.pubkey()))
    with refused("WrongPda"):
        staked.post_bond(second, 1, bond=find_bond(second.pubkey(), second.pubkey()))
    assert staked.get_bond(second.pubkey()) is None


def test_claims_do_not_reach_a_bond(staked: Treasury) -> None:
    with refused("WrongAccount"):
        staked.claim(
            staked.wallets[1], 50, run_collateral=staked.find_bond_collateral(staked.wallets[0].pubkey())
        )
    staked.claim(staked.wallets[1], 50)
    assert _in_bond(staked) == 30


@pytest.mark.parametrize("debt", [12, 30, 1000])
def test_debts_go_from_the_bond_into_the_vault(staked: Treasury, debt: int) -> None:
    """Anybody may take them, once; what the bond cannot pay stays owed."""
    first, second = staked.wallets
    staked.set_entry(0, slashed=50 + debt)
    taken = min(debt, 30)
    staked.slash_bond(first.pubkey(), second)
    assert _in_bond(staked) == 30 - taken
    bond = staked.get_bond(first.pubkey())
    assert bond is not None
    assert bond["amount"] == 30 - taken
    assert staked.mint.get_amount(staked.vault) == 80 + taken
    assert staked.account.entries[0].debt == debt - taken
    with refused("NothingToSlash"):
        staked.slash_bond(first.pubkey(), second)


def test_points_slashed_after_they_were_paid_are_a_debt(staked: Treasury) -> None:
    staked.claim(staked.wallets[0], 50)
    staked.set_entry(0, slashed=20)
    staked.slash_bond(staked.wallets[0].pubkey(), staked.wallets[1])
    assert _in_bond(staked) == 10
    assert staked.account.entries[0].debt == 0
    assert staked.account.entries[0].claimable == 0


def test_who_owes_nothing_is_not_slashed(staked: Treasury) -> None:
    with refused("NothingToSlash"):
        staked.slash_bond(staked.wallets[0].pubkey(), staked.wallets[1])
    staked.set_entry(0, slashed=50)  # its points pay that
    with refused("NothingToSlash"):
        staked.slash_bond(staked.wallets[0].pubkey(), staked.wallets[1])


def test_slashing_takes_the_runs_own_accounts_only(staked: Treasury) -> None:
    first, second = (wallet.pubkey() for wallet in staked.wallets)
    staked.set_entry(0, slashed=60)
    thief = staked.mint.find_account(second)
    with refused("WrongAccount"):
        staked.slash_bond(first, staked.wallets[1], run_collateral=thief)
    with refused("WrongAccount"):
        staked.slash_bond(first, staked.wallets[1], bond_collateral=thief)
    other = Treasury(staked.chain, "other run", mint=staked.mint)
    other.open_funded()
    with refused("WrongAccount"):
        staked.slash_bond(first, staked.wallets[1], run=other.run, run_collateral=other.vault)
    with refused("WrongAccount"):
        staked.slash_bond(first, staked.wallets[1], coordinator_account=other.address)
    with refused("WrongProgram"):
        staked.slash_bond(first, staked.wallets[1], coordinator_program=get_program_id("treasurer"))
    assert _in_bond(staked) == 30


def test_a_bond_of_a_strangers_program_is_none(staked: Treasury) -> None:
    first = staked.wallets[0].pubkey()
    data = staked.chain.get_data(staked.find_bond(first))
    assert data is not None
    fake = Pubkey.new_unique()
    staked.chain.svm.set_account(fake, Account(10**9, data, get_program_id("coordinator")))
    staked.set_entry(0, slashed=60)
    with refused("WrongOwner"):
        staked.slash_bond(first, staked.wallets[1], bond=fake)
    with refused("WrongOwner"):
        staked.return_bond(staked.wallets[0], bond=fake)
    staked.chain.svm.set_account(fake, Account(10**9, bytes(113), get_program_id("treasurer")))
    with refused("WrongDiscriminator"):
        staked.return_bond(staked.wallets[0], bond=fake)


def test_a_free_client_gets_its_bond_and_every_lamport_back(staked: Treasury) -> None:
    """It took part in the last epoch and has not joined the next."""
    wallet = staked.wallets[0]
    accounts = [
        wallet.pubkey(),
        staked.find_bond(wallet.pubkey()),
        staked.find_bond_collateral(wallet.pubkey()),
    ]
    assert staked.state is RunState.WaitingForMembers
    before = sum(staked.chain.svm.get_balance(account) or 0 for account in accounts)
    staked.return_bond(wallet)
    fee = 5000
    assert staked.chain.svm.get_balance(wallet.pubkey()) == before - fee
    assert _held(staked, 0) == 100
    assert staked.get_bond(wallet.pubkey()) is None
    staked.post_bond(wallet, 7)  # and it can be opened again
    assert _in_bond(staked) == 7


def test_who_has_joined_or_is_in_the_epoch_keeps_its_bond_at_stake(staked: Treasury) -> None:
    wallet = staked.wallets[0]
    staked.join_all()
    with refused("BondInUse"):
        staked.return_bond(wallet)
    staked.start_training()
    with refused("BondInUse"):
        staked.return_bond(wallet)
    staked.act("leave_run", wallet)
    with refused("BondInUse"):  # what it did in this epoch may still be looked at
        staked.return_bond(wallet)
    staked.chain.advance(200)
    while staked.state is not RunState.WaitingForMembers:
        staked.tick(30)
    staked.return_bond(wallet)
    assert _held(staked, 0) == 100


def test_who_left_before_the_epoch_is_free(staked: Treasury) -> None:
    staked.join(staked.wallets[0])
    staked.act("leave_run", staked.wallets[0])
    staked.return_bond(staked.wallets[0])
    assert _held(staked, 0) == 100


def test_a_debtor_gets_what_is_left_after_it_has_paid(staked: Treasury) -> None:
    staked.set_entry(0, slashed=60)
    with refused("BondOwesDebt"):
        staked.return_bond(staked.wallets[0])
    staked.slash_bond(staked.wallets[0].pubkey(), staked.wallets[0])
    staked.return_bond(staked.wallets[0])
    assert _held(staked, 0) == 90


def test_nobody_gets_anothers_bond(staked: Treasury) -> None:
    first, second = staked.wallets
    with refused("WrongAccount"):
        staked.return_bond(
            second,
            bond=staked.find_bond(first.pubkey()),
            bond_collateral=staked.find_bond_collateral(first.pubkey()),
        )
    with refused("WrongAccount"):
        staked.return_bond(first, coordinator_account=second.pubkey())
    assert _in_bond(staked) == 30


def test_junk_sent_to_a_bond_does_not_close_it(staked: Treasury) -> None:
    """Its address can own tokens of any mint; only the collateral counts."""
    wallet = staked.wallets[0]
    junk = TokenMint(staked.chain, staked.owner, "junk")
    bond = staked.find_bond(wallet.pubkey())
    address = junk.make_account_of(bond, wallet)
    junk.fund(address, 29)
    junk.make_account(wallet)
    with refused("WrongAccount"):
        staked.return_bond(
            wallet,
            collateral_mint=junk.address,
            bond_collateral=address,
            user_collateral=junk.find_account(wallet.pubkey()),
        )


def test_gifts_to_a_bond_are_its_owners(staked: Treasury) -> None:
    staked.mint.fund(staked.find_bond_collateral(staked.wallets[0].pubkey()), 5)
    staked.return_bond(staked.wallets[0])
    assert _held(staked, 0) == 105


def test_a_bond_outlives_its_run(staked: Treasury) -> None:
    staked.fund(20)
    for wallet in staked.wallets:
        staked.claim(wallet, 50)
    staked.finish()
    staked.close()
    assert not staked.chain.get_data(staked.run)
    assert not staked.chain.get_data(staked.address)
    staked.return_bond(staked.wallets[0])
    assert _held(staked, 0) == 150
    with refused("WrongOwner"):
        staked.slash_bond(staked.wallets[0].pubkey(), staked.wallets[1])


def test_a_run_that_asks_for_a_bond_lets_in_who_has_posted_it(staked: Treasury) -> None:
    """Another's bond, or one for another run, opens nothing."""
    first, second = staked.wallets
    bond = staked.find_bond(first.pubkey())
    staked.change(paused=True)
    staked.change(config=make_config(required_bond=30).to_bytes())
    staked.change(paused=False)
    with refused("BondMissing"):
        staked.join(first)
    with refused("BondMissing"):
        staked.join(second, bond=bond)
    staked.join(first, bond=bond)
    other = Treasury(staked.chain, "other run", mint=staked.mint)
    other.open_funded()
    other.post_bond(second, 100)
    with refused("BondMissing"):
        staked.join(second, bond=other.find_bond(second.pubkey()))
    other.return_bond(second)
    staked.post_bond(second, 29)
    with refused("BondMissing"):
        staked.join(second, bond=staked.find_bond(second.pubkey()))
    staked.post_bond(second, 1)
    staked.join(second, bond=staked.find_bond(second.pubkey()))
    staked.start_training()
    assert staked.state is RunState.RoundTrain


def test_a_bond_that_has_to_pay_a_debt_counts_for_the_rest(staked: Treasury) -> None:
    """Else a debtor would join first and have its bond taken afterwards."""
    first, second = staked.wallets
    bond = staked.find_bond(first.pubkey())
    staked.set_entry(0, slashed=50 + 4)
    staked.join(first)  # a run that asks for no bond lets debtors in
    staked.change(paused=True)
    staked.change(config=make_config(required_bond=30).to_bytes())
    staked.change(paused=False)
    with refused("BondMissing"):
        staked.join(first, bond=bond)
    staked.post_bond(first, 3)
    with refused("BondMissing"):
        staked.join(first, bond=bond)
    staked.post_bond(first, 1)
    staked.join(first, bond=bond)
    staked.slash_bond(first.pubkey(), second)
    assert _in_bond(staked) == 30
    staked.join(first, bond=bond)


@pytest.mark.parametrize("slashed", [2**64 - 1, 2**63 + 50])
def test_what_is_asked_and_owed_does_not_overflow(staked: Treasury, slashed: int) -> None:
    staked.set_entry(0, slashed=slashed)
    staked.change(paused=True)
    staked.change(config=make_config(required_bond=2**64 - 1).to_bytes())
    staked.change(paused=False)
    with refused("BondMissing"):
        staked.join(staked.wallets[0], bond=staked.find_bond(staked.wallets[0].pubkey()))


def test_a_closed_run_cannot_keep_bonds_locked(staked: Treasury) -> None:
    """Its owner has the key of the account that it was in, and may put anything there."""
    staked.fund(20)
    for wallet in staked.wallets:
        staked.claim(wallet, 50)
    staked.finish()
    staked.close()
    space, program = ACCOUNT_SIZE, get_program_id("coordinator")
    squat = staked.chain.make_account(staked.owner, staked.account_key, space, program)
    staked.chain.send([squat], [staked.owner, staked.account_key])
    staked.return_bond(staked.wallets[0])
    assert _held(staked, 0) == 150
