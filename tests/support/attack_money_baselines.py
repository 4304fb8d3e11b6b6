"""One honest call of every instruction of the treasurer, the mining pool and the distributor."""

from __future__ import annotations

from typing import Any

from airdrop_harness import AirdropHarness
from attack_calls import baseline
from attack_scenes import Scene
from mining_pool_harness import PROGRAMS, PoolHarness
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.allocation_tree import AllocationTree
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.anchor import get_program
from psyche_py.chain.pda import (
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    find_airdrop,
    find_claim,
    find_instance,
    find_lender,
    find_pool,
    find_token_account,
    find_treasurer_run,
)
from psyche_py.coordinator.model import Metadata

# ---- treasurer --------------------------------------------------------------------------------------------


@baseline("treasurer", "run_create")
def _run_create(scene: Scene) -> Any:
    funded = scene.funded
    args = {**funded.get_create_args(), "index": 4711, "run_id": "fresh"}
    fund = find_treasurer_run(4711)
    accounts = {
        **funded.get_create_accounts(),
        "run": fund,
        "run_collateral": find_token_account(fund, scene.funded.mint.pubkey()),
        "coordinator_instance": find_instance("fresh"),
        "coordinator_account": scene.fresh.pubkey(),
    }
    return accounts, args


@baseline("treasurer", "run_update")
def _run_update(scene: Scene) -> Any:
    values = dict.fromkeys(get_program("treasurer").get_argument_names("run_update"))
    changes = {"metadata": Metadata(name="changed").to_bytes(), "paused": True, "client_version": "changed"}
    return scene.funded.get_update_accounts(), {**values, **changes, "epoch_earning_rate_total_shared": 3}


@baseline("treasurer", "participant_create")
def _participant_create(scene: Scene) -> Any:
    return scene.funded.get_participant_accounts(scene.funded.wallets[1]), {}


@baseline("treasurer", "participant_claim")
def _participant_claim(scene: Scene) -> Any:
    return scene.funded.get_claim_accounts(scene.funded.wallets[0]), {"claim_earned_points": 40}


@baseline("treasurer", "participant_migrate")
def _participant_migrate(scene: Scene) -> Any:
    run = scene.rival_funded
    return run.get_migrate_accounts(scene.thief, run.wallets[1]), {}


@baseline("treasurer", "run_withdraw")
def _run_withdraw(scene: Scene) -> Any:
    return scene.ended.get_withdraw_accounts(), {"amount": 30}


@baseline("treasurer", "run_close")
def _run_close(scene: Scene) -> Any:
    return scene.empty.get_close_accounts(), {}


# ---- mining pool ------------------------------------------------------------------------------------------


@baseline("mining_pool", "pool_create")
def _pool_create(scene: Scene) -> Any:
    owner, address, mint = scene.pool.authority.pubkey(), find_pool(3), scene.pool.collateral
    accounts = {
        "payer": owner,
        "authority": owner,
        "pool": address,
        "pool_collateral": find_token_account(address, mint),
        "collateral_mint": mint,
        **PROGRAMS,
    }
    return accounts, {"index": 3, "metadata": "a third pool"}


@baseline("mining_pool", "pool_update")
def _pool_update(scene: Scene) -> Any:
    accounts = {"authority": scene.pool.authority.pubkey(), "pool": scene.pool.address}
    return accounts, {"max_deposit_collateral_amount": 900, "freeze": True, "metadata": "changed"}


@baseline("mining_pool", "pool_extract")
def _pool_extract(scene: Scene) -> Any:
    pool = scene.pool
    owner = pool.authority.pubkey()
    accounts = {
        "authority": owner,
        "authority_collateral": pool.tokens.find(owner, pool.collateral),
        "pool": pool.address,
        "pool_collateral": pool.vault,
        "collateral_mint": pool.collateral,
        "token_program": TOKEN_PROGRAM,
    }
    return accounts, {"collateral_amount": 50}


@baseline("mining_pool", "pool_claimable")
def _pool_claimable(scene: Scene) -> Any:
    pool = scene.pool
    accounts = {
        "payer": pool.authority.pubkey(),
        "authority": pool.authority.pubkey(),
        "pool": pool.address,
        "redeemable_authority": pool.redeemable_authority,
        "pool_redeemable": pool.redeemable_vault,
        "redeemable_mint": pool.redeemable,
        **PROGRAMS,
    }
    return accounts, {}


@baseline("mining_pool", "lender_create")
def _lender_create(scene: Scene) -> Any:
    user = scene.thief.pubkey()
    accounts = {
        "payer": user,
        "user": user,
        "pool": scene.pool.address,
        "lender": find_lender(scene.pool.address, user),
        "system_program": SYSTEM_PROGRAM,
    }
    return accounts, {}


def get_lender_accounts(pool: PoolHarness, user: Keypair, kind: str) -> dict[str, Pubkey]:
    """Accounts of lender_deposit (``kind`` collateral) and, with the authority added, of lender_claim."""
    mint, vault = {
        "collateral": (pool.collateral, pool.vault),
        "redeemable": (pool.redeemable, pool.redeemable_vault),
    }[kind]
    return {
        "user": user.pubkey(),
        f"user_{kind}": pool.tokens.find(user.pubkey(), mint),
        "pool": pool.address,
        f"pool_{kind}": vault,
        f"{kind}_mint": mint,
        "lender": find_lender(pool.address, user.pubkey()),
        "token_program": TOKEN_PROGRAM,
    }


@baseline("mining_pool", "lender_deposit")
def _lender_deposit(scene: Scene) -> Any:
    user = scene.chain.make_wallet("lender 0")
    return get_lender_accounts(scene.pool, user, "collateral"), {"collateral_amount": 20}


@baseline("mining_pool", "lender_claim")
def _lender_claim(scene: Scene) -> Any:
    pool, user = scene.rival_pool, scene.chain.make_wallet("lender 0")
    accounts = get_lender_accounts(pool, user, "redeemable")
    return {**accounts, "redeemable_authority": pool.redeemable_authority}, {"redeemable_amount": 67}


# ---- distributor ------------------------------------------------------------------------------------------


@baseline("distributor", "airdrop_create")
def _airdrop_create(scene: Scene) -> Any:
    airdrop, address = scene.airdrop, find_airdrop(9)
    owner = airdrop.authority.pubkey()
    accounts = {
        "payer": owner,
        "authority": owner,
        "airdrop": address,
        "airdrop_collateral": find_token_account(address, airdrop.mint),
        "collateral_mint": airdrop.mint,
        **PROGRAMS,
    }
    args = {"id": 9, "list": airdrop.pack_list(airdrop.tree), "metadata": b"about"}
    return accounts, {**args, "guaranteed_until_unix_timestamp": scene.chain.now + 100}


@baseline("distributor", "airdrop_update")
def _airdrop_update(scene: Scene) -> Any:
    airdrop = scene.rival_airdrop
    accounts = {"authority": airdrop.authority.pubkey(), "airdrop": airdrop.address}
    other = airdrop.pack_list(AllocationTree([Allocation(scene.thief.pubkey(), 77)]))
    args = {"claim_freeze": True, "list": other, "metadata": b"changed"}
    return accounts, {**args, "guaranteed_until_unix_timestamp": scene.chain.now + 100}


@baseline("distributor", "airdrop_withdraw")
def _airdrop_withdraw(scene: Scene) -> Any:
    airdrop = scene.airdrop
    owner = airdrop.authority.pubkey()
    accounts = {
        "authority": owner,
        "airdrop": airdrop.address,
        "airdrop_collateral": airdrop.vault,
        "recipient_collateral": airdrop.token.find_account(owner),
        "collateral_mint": airdrop.mint,
        "token_program": TOKEN_PROGRAM,
    }
    return accounts, {"collateral_amount": 500}


@baseline("distributor", "claim_create")
def _claim_create(scene: Scene) -> Any:
    user = scene.thief.pubkey()
    accounts = {
        "payer": user,
        "claimer": user,
        "airdrop": scene.airdrop.address,
        "claim": find_claim(scene.airdrop.address, user, 5),
        "system_program": SYSTEM_PROGRAM,
    }
    return accounts, {"nonce": 5}


def get_redeem_call(airdrop: AirdropHarness, line: int, amount: int) -> Any:
    """claim_redeem of one of the airdrop's lines."""
    return airdrop.encode_redeem(airdrop.lines[line], amount)


@baseline("distributor", "claim_redeem")
def _claim_redeem(scene: Scene) -> Any:
    return get_redeem_call(scene.airdrop, 1, 400)
