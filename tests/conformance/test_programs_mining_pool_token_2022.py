"""Mining pools of Token-2022 mints: those that behave are taken on both sides, the others refused by name."""

from __future__ import annotations

import pytest
from mining_pool_harness import PoolHarness, TokenBank
from programs_harness import ProgramChain, refused
from token_2022 import CPI_GUARD, encode_switch_on

from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM

REFUSED = {
    "TransferFee": "MintTransferFee",
    "CloseAuthority": "MintCloseAuthority",
    "ConfidentialTransfer": "MintConfidentialTransfer",
    "DefaultAccountState": "MintDefaultAccountState",
    "NonTransferable": "MintNonTransferable",
    "InterestBearing": "MintInterestBearing",
    "PermanentDelegate": "MintPermanentDelegate",
    "TransferHook": "MintTransferHook",
}


@pytest.fixture
def pool() -> PoolHarness:
    """Of Token-2022; "first" has lent 300."""
    harness = PoolHarness(ProgramChain(), token_program=TOKEN_2022_PROGRAM)
    harness.tokens.open(harness.authority.pubkey(), harness.collateral)
    harness.create()
    harness.update(max_deposit=1000)
    harness.deposit(harness.make_lender("first", 1000), 300)
    return harness


def test_lend_extract_repay_claim(pool: PoolHarness) -> None:
    first = pool.chain.make_wallet("first")
    pool.extract(300)
    pool.enable()
    pool.repay(100)
    pool.claim(first, 100)
    assert pool.get_paid(first) == 100


def test_lent_in_one_program_and_repaid_in_the_other(pool: PoolHarness) -> None:
    first, plain = pool.chain.make_wallet("first"), TokenBank(pool.chain)
    mint = plain.make_mint("plain")
    vault = plain.find(pool.redeemable_authority, mint)
    pool.enable(redeemable_mint=mint, pool_redeemable=vault, token_program=TOKEN_PROGRAM)
    plain.issue(mint, pool.redeemable_authority, 50)
    wallet = plain.open(first.pubkey(), mint)
    paid = {"redeemable_mint": mint, "pool_redeemable": vault, "user_redeemable": wallet}
    with refused("WrongProgram"):
        pool.claim(first, 50, **paid)
    pool.claim(first, 50, **paid, token_program=TOKEN_PROGRAM)
    assert plain.get_amount(wallet) == 50


@pytest.mark.parametrize("extension", REFUSED)
def test_a_mint_that_could_take_money_back_is_refused_on_both_sides(
    pool: PoolHarness, extension: str
) -> None:
    mint = pool.tokens.make_mint("bad", [extension])
    other = PoolHarness(pool.chain, 2, token_program=TOKEN_2022_PROGRAM)
    with refused(REFUSED[extension]):
        other.create(collateral_mint=mint, pool_collateral=pool.tokens.find(other.address, mint))
    vault = pool.tokens.find(pool.redeemable_authority, mint)
    with refused(REFUSED[extension]):
        pool.enable(redeemable_mint=mint, pool_redeemable=vault)
    assert pool.chain.get_data(other.address) is None
    assert not pool.pool.claiming_enabled


@pytest.mark.parametrize("extension", ["MetadataPointer", "GroupPointer", "GroupMemberPointer"])
def test_a_mint_with_metadata_is_taken(pool: PoolHarness, extension: str) -> None:
    mint = pool.tokens.make_mint("good", [extension])
    other = PoolHarness(pool.chain, 2, token_program=TOKEN_2022_PROGRAM)
    other.create(collateral_mint=mint, pool_collateral=pool.tokens.find(other.address, mint))
    pool.enable(redeemable_mint=mint, pool_redeemable=pool.tokens.find(pool.redeemable_authority, mint))


def test_the_mints_own_program_is_asked_for(pool: PoolHarness) -> None:
    first = pool.chain.make_wallet("first")
    with refused("WrongProgram"):
        pool.deposit(first, 1, token_program=TOKEN_PROGRAM)
    with refused("WrongProgram"):
        pool.extract(1, token_program=TOKEN_PROGRAM)
    with refused("WrongProgram"):
        pool.enable(token_program=TOKEN_PROGRAM)


def test_a_vault_that_is_frozen_already_is_not_taken(pool: PoolHarness) -> None:
    """Enabling is for ever, and nothing could be claimed."""
    pool.tokens.freeze(pool.tokens.open(pool.redeemable_authority, pool.redeemable), pool.redeemable)
    with refused("TokenAccountFrozen"):
        pool.enable()
    assert not pool.pool.claiming_enabled


def test_a_guarded_token_account_is_told_what_is_wrong(pool: PoolHarness) -> None:
    first = pool.chain.make_wallet("first")
    source = pool.tokens.find(first.pubkey(), pool.collateral)
    pool.chain.send(encode_switch_on(source, first.pubkey(), CPI_GUARD), [first])
    with refused("TokenAccountCpiGuard"):
        pool.deposit(first, 1)
