"""Lenders of a mining pool and claimers of an airdrop against each other, and against the authority."""

from __future__ import annotations

from typing import Any

from attack_baselines import BASELINES
from attack_chain import replace_account
from attack_money_baselines import get_lender_accounts
from attack_oracle import judge_and_keep
from attack_scenes import build_scene, get_scene
from attack_ventures import GUARANTEE, REPAID
from mining_pool_harness import PoolHarness
from solders.instruction import Instruction
from solders.keypair import Keypair

from psyche_py.chain.allocation_tree import AllocationTree, compute_leaf, compute_parent
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.anchor import get_program


def make_deposit(pool: PoolHarness, user: Keypair, amount: int) -> Instruction:
    """lender_deposit."""
    accounts = get_lender_accounts(pool, user, "collateral")
    return get_program("mining_pool").encode("lender_deposit", accounts, {"collateral_amount": amount})


def make_claim(pool: PoolHarness, user: Keypair, amount: int) -> Instruction:
    """lender_claim."""
    accounts = get_lender_accounts(pool, user, "redeemable")
    accounts["redeemable_authority"] = pool.redeemable_authority
    return get_program("mining_pool").encode("lender_claim", accounts, {"redeemable_amount": amount})


def make_update(pool: PoolHarness, **changes: Any) -> Instruction:
    """pool_update."""
    arguments = {"max_deposit_collateral_amount": None, "freeze": None, "metadata": None, **changes}
    accounts = {"authority": pool.authority.pubkey(), "pool": pool.address}
    return get_program("mining_pool").encode("pool_update", accounts, arguments)


def test_each_lender_gets_its_share_whoever_claims_first() -> None:
    """90 repaid on deposits of 300 and 100: 67 and 22, in both orders, in parts, and after more comes."""
    for order in ((0, 1), (1, 0)):
        scene = build_scene("waiting")
        chain, pool = scene.chain, scene.rival_pool
        lenders = [chain.make_wallet(f"lender {number}") for number in range(2)]
        shares = [REPAID * 300 // 400, REPAID * 100 // 400]
        for number in order:
            more = make_claim(pool, lenders[number], shares[number] + 1)
            chain.attack("more than the share", "ParamsRedeemableAmountIsTooLarge", more)
            for amount in (1, shares[number] - 1):
                part = make_claim(pool, lenders[number], amount)
                assert judge_and_keep(chain, "a part of the share", part).error is None
            again = make_claim(pool, lenders[number], 1)
            chain.attack("once more", "ParamsRedeemableAmountIsTooLarge", again)
        pool.repay(400 - REPAID)
        for number, share in enumerate((300, 100)):
            rest = make_claim(pool, lenders[number], share - shares[number])
            assert judge_and_keep(chain, "the rest", rest).error is None
            again = make_claim(pool, lenders[number], 1)
            chain.attack("after all is repaid", "ParamsRedeemableAmountIsTooLarge", again)


def test_nobody_dilutes_the_lenders() -> None:
    """No deposit after claiming is enabled, no higher limit after the first deposit, no second token."""
    scene = get_scene("waiting")
    chain, pool, user = scene.chain, scene.pool, scene.chain.make_wallet("lender 0")
    deposit, enable = make_deposit(pool, user, 1), BASELINES["mining_pool", "pool_claimable"].build(scene)
    chain.honest(deposit, enable)
    chain.attack("lending after the end", "PoolClaimingEnabledIsTrue", enable, deposit)
    chain.attack("enabling twice", "PoolClaimingEnabledIsTrue", enable, enable)
    raised = make_update(pool, max_deposit_collateral_amount=1001)
    chain.attack("a higher limit", "ParamsMaxDepositIsRaised", raised)
    lowered = make_update(pool, max_deposit_collateral_amount=399)
    chain.attack("a limit below what is lent", "ParamsMaxDepositIsBelowTotalDeposited", lowered)
    limited = make_update(pool, max_deposit_collateral_amount=400)
    chain.attack("beyond the limit", "ParamsCollateralAmountIsTooLarge", limited, deposit)
    frozen = make_update(pool, freeze=True)
    for call in (deposit, enable, BASELINES["mining_pool", "pool_extract"].build(scene)):
        chain.honest(call)
        chain.attack("in a frozen pool", "PoolFreezeIsTrue", frozen, call)


def test_the_authority_cannot_take_repayments() -> None:
    """Even when loan and repayment are of one token: the vaults differ, and so do their owners."""
    scene = build_scene("waiting")
    chain, pool = scene.chain, PoolHarness(scene.chain, 5, same_mint=True)
    pool.create()
    pool.update(max_deposit=100)
    user = pool.make_lender("lender 5", 100)
    pool.deposit(user, 100)
    pool.tokens.open(pool.authority.pubkey(), pool.collateral)
    pool.enable()
    pool.repay(80)
    extract = BASELINES["mining_pool", "pool_extract"].build(scene)
    accounts = {
        "authority": pool.authority.pubkey(),
        "authority_collateral": pool.tokens.find(pool.authority.pubkey(), pool.collateral),
        "pool": pool.address,
        "pool_collateral": pool.redeemable_vault,
        "collateral_mint": pool.collateral,
        "token_program": pool.tokens.program,
    }
    hostile = get_program("mining_pool").encode("pool_extract", accounts, {"collateral_amount": 1})
    chain.attack("extracting repayments", "WrongAccount", hostile)
    assert judge_and_keep(chain, "a lender claims all", make_claim(pool, user, 80)).error is None
    chain.honest(extract)


def test_an_airdrops_line_is_its_wallets_alone() -> None:
    """Another wallet, nonce, time or amount; an inner node as a leaf; a proof with levels too many or few."""
    scene = get_scene("waiting")
    chain, airdrop = scene.chain, scene.airdrop
    line = airdrop.lines[1]
    chain.honest(airdrop.encode_redeem(line, 400))
    invalid = "ParamsMerkleProofIsInvalid"
    forged: list[dict[str, Any]] = [
        {"end_collateral_amount": 501}, {"end_collateral_amount": 2**64 - 1}, {"start_unix_timestamp": -1},
        {"duration_seconds": 1}, {"merkle_proof": b""}, {"merkle_proof": bytes(40)},
    ]  # fmt: skip
    proof = airdrop.tree.get_proof(line)
    forged += [
        {"merkle_proof": proof[:-40]},
        {"merkle_proof": proof + bytes(40)},
        {"merkle_proof": proof[:-1]},
    ]
    forged += [{"merkle_proof": proof[40:] + proof[:40]}] if proof[40:] + proof[:40] != proof else []
    for changes in forged:
        chain.attack(f"a forged line {changes}", invalid, airdrop.encode_redeem(line, 1, **changes))
    other = airdrop.lines[2]
    hostile = replace_account(airdrop.encode_redeem(line, 1), 0, pubkey=other.wallet)
    chain.attack("another's line", "WrongPda", hostile)
    theirs = airdrop.encode_redeem(other, 1, merkle_proof=proof)
    chain.attack("another's proof", invalid, theirs)


def test_a_list_that_promises_more_than_it_says_pays_no_more() -> None:
    """The authority understates a branch: lines under the lie cannot be proven, others are covered."""
    scene = build_scene("waiting")
    chain, airdrop = scene.chain, scene.rival_airdrop
    line = airdrop.lines[1]
    hidden = Allocation(line.wallet, 10**6, 9)
    root, total = compute_parent(compute_leaf(line), compute_leaf(hidden))
    airdrop.update(list=root + (500).to_bytes(8, "little"))
    proof = compute_leaf(hidden)[0] + (10**6).to_bytes(8, "little")
    assert total == 500 + 10**6
    hostile = airdrop.encode_redeem(line, 1, merkle_proof=proof)
    chain.attack("a line of a list that lies", "ParamsMerkleProofIsInvalid", hostile)


def test_a_guarantee_holds_to_its_last_second() -> None:
    """No other list, no withdrawal of what is promised, no shorter guarantee; a freeze only prolongs it."""
    scene = build_scene("waiting")
    chain, airdrop = scene.chain, scene.airdrop
    base = BASELINES["distributor", "airdrop_withdraw"].build(scene)
    accounts = dict(
        zip(
            BASELINES["distributor", "airdrop_withdraw"].slots, (m.pubkey for m in base.accounts), strict=True
        )
    )
    promised = get_program("distributor").encode("airdrop_withdraw", accounts, {"collateral_amount": 501})
    names = ("claim_freeze", "list", "guaranteed_until_unix_timestamp", "metadata")
    owned = {"authority": airdrop.authority.pubkey(), "airdrop": airdrop.address}

    def update(**changes: Any) -> Instruction:
        return get_program("distributor").encode("airdrop_update", owned, {**dict.fromkeys(names), **changes})

    other = update(list=airdrop.pack_list(AllocationTree([Allocation(scene.thief.pubkey(), 77)])))
    start, until = chain.now, airdrop.get_airdrop()["guaranteed_until_unix_timestamp"]
    assert 0 < until - start <= GUARANTEE
    freeze = update(claim_freeze=True)
    for now in (start, until - 1):
        with chain.undone():
            chain.set_now(now)
            for call in (promised, other):
                chain.attack("breaking the guarantee", "AirdropIsGuaranteed", call)
                chain.attack("freezing, then breaking it", "AirdropIsGuaranteed", freeze, call)
            shorter = update(guaranteed_until_unix_timestamp=until - 1)
            chain.attack("a shorter guarantee", "ParamsGuaranteeIsTooShort", shorter)
            chain.honest(base)
    assert judge_and_keep(chain, "a freeze", freeze).error is None
    chain.set_now(until + 10**6)
    for call in (promised, other):
        chain.attack("waiting frozen", "AirdropIsGuaranteed", call)
        chain.attack("thawing late", "AirdropIsGuaranteed", update(claim_freeze=False), call)
    assert judge_and_keep(chain, "a thaw", update(claim_freeze=False)).error is None
    chain.set_now(until + 10**6 + until - start)
    chain.honest(promised)
    chain.honest(other)
