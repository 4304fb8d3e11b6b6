"""The mining pool's straight path, and each of its refusals; attacks have a file of their own."""

from __future__ import annotations

import pytest
from mining_pool_harness import U64_MAX, PoolHarness
from programs_harness import ProgramChain, refused
from solders.pubkey import Pubkey
from spl.token.instructions import ApproveParams, approve

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import TOKEN_PROGRAM, find_pool, find_token_account


@pytest.fixture
def pool() -> PoolHarness:
    """Created; takes nothing yet."""
    harness = PoolHarness(ProgramChain())
    harness.tokens.open(harness.authority.pubkey(), harness.collateral)
    harness.create()
    return harness


@pytest.fixture
def lent(pool: PoolHarness) -> PoolHarness:
    """Takes up to 1000; "first" has lent 300 and "second" 100."""
    pool.update(max_deposit=1000)
    pool.deposit(pool.make_lender("first", 5000), 300)
    pool.deposit(pool.make_lender("second", 5000), 100)
    return pool


# ---- the straight path --------------------------------------------------------------------------------


def test_create_writes_every_field(pool: PoolHarness) -> None:
    account = pool.pool
    seeds = [b"Pool", (1).to_bytes(8, "little")]
    assert account.bump == Pubkey.find_program_address(seeds, get_program_id("mining_pool"))[1]
    assert (account.index, account.authority) == (1, pool.authority.pubkey())
    assert (account.collateral_mint, account.collateral_vault) == (pool.collateral, pool.vault)
    amounts = (
        account.max_deposit_collateral_amount,
        account.total_deposited_collateral_amount,
        account.total_extracted_collateral_amount,
        account.total_claimed_redeemable_amount,
    )
    assert amounts == (0, 0, 0, 0)
    assert (account.claiming_enabled, account.freeze) == (False, False)
    assert (account.redeemable_mint, account.redeemable_vault) == (Pubkey.default(), Pubkey.default())
    assert account.metadata_text == "a pool"
    assert pool.tokens.get_amount(pool.vault) == 0


def test_lend_extract_repay_claim(lent: PoolHarness) -> None:
    first, second = (lent.chain.make_wallet(name) for name in ("first", "second"))
    assert lent.tokens.get_amount(lent.vault) == 400
    lent.extract(150)
    lent.extract(250)
    assert lent.tokens.get_amount(find_token_account(lent.authority.pubkey(), lent.collateral)) == 400
    lent.enable()
    account = lent.pool
    assert (account.claiming_enabled, account.redeemable_mint) == (True, lent.redeemable)
    assert account.redeemable_vault == lent.redeemable_vault
    assert account.total_extracted_collateral_amount == 400

    lent.repay(1001)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        lent.claim(first, 751)
    lent.claim(first, 700)
    lent.claim(first, 50)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        lent.claim(first, 1)
    lent.claim(second, 250)
    lent.repay(3)  # 1004 in all: 753 and 251
    lent.claim(second, 1)
    lent.claim(first, 3)
    assert (lent.get_paid(first), lent.get_paid(second)) == (753, 251)
    assert lent.tokens.get_amount(lent.redeemable_vault) == 0
    assert lent.pool.total_claimed_redeemable_amount == 1004
    record = lent.get_lender(first)
    assert (record.deposited_collateral_amount, record.claimed_redeemable_amount) == (300, 753)


def test_repayment_in_the_token_that_was_lent() -> None:
    """One mint, two vaults: what is lent never counts as repaid, and what is repaid cannot be extracted."""
    pool = PoolHarness(ProgramChain(), same_mint=True)
    pool.tokens.open(pool.authority.pubkey(), pool.collateral)
    pool.create()
    pool.update(max_deposit=400)
    first, second = pool.make_lender("first", 300), pool.make_lender("second", 100)
    pool.deposit(first, 300)
    pool.deposit(second, 100)
    pool.extract(50)
    pool.enable()
    assert pool.redeemable_vault != pool.vault
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(first, 1)
    pool.repay(40)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(first, 31)
    pool.claim(first, 30)
    with refused("ParamsCollateralAmountIsTooLarge"):
        pool.extract(351)
    pool.extract(350)
    with refused("WrongAccount"):
        pool.extract(1, pool_collateral=pool.redeemable_vault)
    with refused("WrongOwner"):
        pool.extract(1, pool=pool.redeemable_authority, pool_collateral=pool.redeemable_vault)
    pool.claim(second, 10)
    assert pool.tokens.get_amount(pool.redeemable_vault) == 0


def test_what_was_repaid_before_enabling_counts(lent: PoolHarness) -> None:
    lent.repay(40)
    lent.enable()
    lent.claim(lent.chain.make_wallet("first"), 30)


def test_zero_is_no_error_and_moves_nothing(lent: PoolHarness) -> None:
    first = lent.chain.make_wallet("first")
    before = lent.pool
    lent.deposit(first, 0)
    lent.extract(0)
    assert lent.pool == before
    lent.enable()
    lent.claim(first, 0)


def test_update_changes_what_is_given_and_nothing_else(pool: PoolHarness) -> None:
    pool.update(max_deposit=7)
    pool.update(freeze=True)
    pool.update(metadata="x" * 400)
    pool.update()
    account = pool.pool
    assert (account.max_deposit_collateral_amount, account.freeze) == (7, True)
    assert account.metadata_text == "x" * 400
    pool.update(freeze=False, metadata="é")
    account = pool.pool
    assert (account.max_deposit_collateral_amount, account.freeze) == (7, False)
    assert (account.metadata_length, bytes(account.metadata)) == (2, "é".encode().ljust(400, b"\0"))


def test_metadata_has_an_end(pool: PoolHarness) -> None:
    with refused("ParamsMetadataLengthIsTooLarge"):
        pool.update(metadata="x" * 401)
    other = PoolHarness(pool.chain, 2)
    with refused("ParamsMetadataLengthIsTooLarge"):
        other.create(metadata="x" * 401)


@pytest.mark.parametrize("index", [0, U64_MAX])
def test_indices_at_both_ends(index: int) -> None:
    pool = PoolHarness(ProgramChain(), index)
    pool.create()
    assert pool.pool.index == index
    with refused("AlreadyInitialized"):
        pool.create()


def test_sol_and_a_vault_sent_ahead_stop_nothing() -> None:
    pool = PoolHarness(ProgramChain())
    pool.chain.svm.airdrop(pool.address, 10**6)
    pool.tokens.open(pool.address, pool.collateral)
    pool.create()
    pool.update(max_deposit=10)
    pool.tokens.open(pool.redeemable_authority, pool.redeemable)
    pool.deposit(pool.make_lender("first", 10), 10)
    pool.enable()


# ---- the limit of deposits ----------------------------------------------------------------------------


def test_a_new_pool_takes_nothing(pool: PoolHarness) -> None:
    user = pool.make_lender("first", 10)
    with refused("ParamsCollateralAmountIsTooLarge"):
        pool.deposit(user, 1)
    pool.deposit(user, 0)


def test_deposits_end_at_the_limit(lent: PoolHarness) -> None:
    second = lent.chain.make_wallet("second")
    with refused("ParamsCollateralAmountIsTooLarge"):
        lent.deposit(second, 601)
    lent.deposit(second, 600)
    with refused("ParamsCollateralAmountIsTooLarge"):
        lent.deposit(second, 1)
    assert lent.pool.total_deposited_collateral_amount == 1000


def test_the_limit_falls_to_the_deposits_and_never_rises_behind_a_lender(lent: PoolHarness) -> None:
    with refused("ParamsMaxDepositIsBelowTotalDeposited"):
        lent.update(max_deposit=399)
    with refused("ParamsMaxDepositIsRaised"):
        lent.update(max_deposit=1001)
    lent.update(max_deposit=1000)
    lent.update(max_deposit=400)
    with refused("ParamsMaxDepositIsRaised"):
        lent.update(max_deposit=401)
    with refused("ParamsCollateralAmountIsTooLarge"):
        lent.deposit(lent.chain.make_wallet("first"), 1)


def test_the_limit_is_free_before_the_first_deposit(pool: PoolHarness) -> None:
    for amount in (U64_MAX, 0, 5, U64_MAX):
        pool.update(max_deposit=amount)
        assert pool.pool.max_deposit_collateral_amount == amount


def test_extracted_tokens_deposited_again_take_no_more_than_the_limit_left(lent: PoolHarness) -> None:
    """The authority lends to itself in a circle; a lender's share stays at or above deposit / limit."""
    lent.tokens.open(lent.authority.pubkey(), lent.redeemable)
    lent.enter(lent.authority)
    for _ in range(2):
        lent.extract(300)
        lent.deposit(lent.authority, 300)
    lent.extract(400)
    with refused("ParamsCollateralAmountIsTooLarge"):
        lent.deposit(lent.authority, 1)
    lent.enable()
    lent.repay(1000)
    lent.claim(lent.chain.make_wallet("first"), 300)


# ---- amounts at both ends -----------------------------------------------------------------------------


def test_the_largest_amounts(pool: PoolHarness) -> None:
    pool.update(max_deposit=U64_MAX)
    whale = pool.make_lender("whale", U64_MAX)
    with refused("ParamsCollateralAmountIsTooLarge"):
        pool.extract(1)
    pool.deposit(whale, U64_MAX)
    with refused("ParamsCollateralAmountIsTooLarge"):
        pool.deposit(whale, 1)
    pool.extract(U64_MAX)
    pool.enable()
    pool.repay(U64_MAX)
    pool.claim(whale, U64_MAX)
    assert pool.get_paid(whale) == U64_MAX
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(whale, U64_MAX)


def test_more_repaid_in_all_than_64_bits_hold(pool: PoolHarness) -> None:
    """The supply goes round three times; totals have 128 bits, so claims go on."""
    pool.update(max_deposit=3)
    whale, small = pool.make_lender("whale", 2), pool.make_lender("small", 1)
    pool.deposit(whale, 2)
    pool.deposit(small, 1)
    pool.enable()
    pool.repay(U64_MAX)
    part = U64_MAX // 3
    for round_number in range(3):
        pool.claim(whale, 2 * part)
        pool.claim(small, part)
        assert pool.pool.total_claimed_redeemable_amount == (round_number + 1) * U64_MAX
        for user in (whale, small):
            source = find_token_account(user.pubkey(), pool.redeemable)
            pool.tokens.move(source, pool.redeemable_vault, user, pool.get_paid(user))
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(small, part + 1)


def test_what_is_given_to_the_collateral_vault_can_be_extracted_until_the_count_is_full(
    pool: PoolHarness,
) -> None:
    pool.update(max_deposit=U64_MAX)
    pool.deposit(pool.make_lender("whale", U64_MAX), U64_MAX)
    pool.extract(U64_MAX)
    own = find_token_account(pool.authority.pubkey(), pool.collateral)
    pool.tokens.move(own, pool.vault, pool.authority, 1)
    with refused("ArithmeticOverflow"):
        pool.extract(1)


def test_a_tiny_share_rounds_down_to_nothing(pool: PoolHarness) -> None:
    pool.update(max_deposit=U64_MAX)
    whale, small = pool.make_lender("whale", U64_MAX - 1), pool.make_lender("small", 1)
    pool.deposit(whale, U64_MAX - 1)
    pool.deposit(small, 1)
    pool.enable()
    pool.repay(U64_MAX - 1)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(small, 1)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(whale, U64_MAX - 1)
    pool.claim(whale, U64_MAX - 2)
    pool.repay(1)
    pool.claim(small, 1)
    pool.claim(whale, 1)
    assert pool.tokens.get_amount(pool.redeemable_vault) == 0


# ---- states that refuse -------------------------------------------------------------------------------


def test_no_deposits_after_enabling(lent: PoolHarness) -> None:
    lent.enable()
    with refused("PoolClaimingEnabledIsTrue"):
        lent.deposit(lent.chain.make_wallet("first"), 1)
    late = lent.make_lender("late", 100)
    with refused("PoolClaimingEnabledIsTrue"):
        lent.deposit(late, 0)
    lent.repay(100)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        lent.claim(late, 1)
    assert lent.pool.total_deposited_collateral_amount == 400


def test_enabling_is_once_and_needs_lenders(pool: PoolHarness) -> None:
    with refused("PoolTotalDepositedCollateralAmountIsZero"):
        pool.enable()
    pool.update(max_deposit=1)
    pool.deposit(pool.make_lender("first", 1), 1)
    pool.enable()
    with refused("PoolClaimingEnabledIsTrue"):
        pool.enable()
    other = pool.tokens.make_mint("other")
    vault = find_token_account(pool.redeemable_authority, other)
    with refused("PoolClaimingEnabledIsTrue"):
        pool.enable(redeemable_mint=other, pool_redeemable=vault)
    assert pool.pool.redeemable_mint == pool.redeemable


def test_no_claims_before_enabling(lent: PoolHarness) -> None:
    lent.repay(100)
    with refused("PoolClaimingEnabledIsFalse"):
        lent.claim(lent.chain.make_wallet("first"), 0)


def test_a_frozen_pool_moves_nothing_until_it_thaws(lent: PoolHarness) -> None:
    first = lent.chain.make_wallet("first")
    lent.update(freeze=True)
    for act in (
        lambda: lent.deposit(first, 1),
        lambda: lent.extract(1),
        lambda: lent.enable(),
        lambda: lent.claim(first, 0),
    ):
        with refused("PoolFreezeIsTrue"):
            act()
    lent.enter(lent.chain.make_wallet("third"))
    lent.update(freeze=False)
    lent.deposit(first, 1)
    lent.extract(1)
    lent.enable()
    lent.repay(401)
    lent.update(freeze=True)
    with refused("PoolFreezeIsTrue"):
        lent.claim(first, 1)
    lent.update(freeze=False)
    lent.claim(first, 301)


def test_delegates_are_refused(lent: PoolHarness) -> None:
    first = lent.chain.make_wallet("first")
    source = find_token_account(first.pubkey(), lent.collateral)
    params = ApproveParams(TOKEN_PROGRAM, source, lent.authority.pubkey(), first.pubkey(), 1)
    lent.chain.send([approve(params)], [first])
    with refused("WrongAccount"):
        lent.deposit(first, 1)


def test_errors_keep_their_numbers() -> None:
    names = [entry.name for code, entry in sorted(get_program("mining_pool").errors.items()) if code < 6100]
    assert names == [
        "ParamsCollateralAmountIsTooLarge",
        "ParamsRedeemableAmountIsTooLarge",
        "ParamsMetadataLengthIsTooLarge",
        "PoolClaimingEnabledIsTrue",
        "PoolClaimingEnabledIsFalse",
        "PoolFreezeIsTrue",
        "PoolTotalDepositedCollateralAmountIsZero",
        "ParamsMaxDepositIsBelowTotalDeposited",
        "ParamsMaxDepositIsRaised",
    ]


def test_pools_are_apart(lent: PoolHarness) -> None:
    assert find_pool(1) == lent.address != find_pool(2)
    other = PoolHarness(lent.chain, 2)
    other.create()
    assert other.pool.total_deposited_collateral_amount == 0
