"""Mining pools and airdrops to attack, two of each: one of "owner" and one of "rival owner"."""

from __future__ import annotations

from typing import Any

from airdrop_harness import NO_GUARANTEE, AirdropHarness
from attack_chain import AttackChain
from mining_pool_harness import PoolHarness
from token_harness import TokenMint

GUARANTEE = 7 * 24 * 3600
"""Seconds: some of the fuzzer's waits are shorter, some longer."""
REPAID = 90


def build_pools(chain: AttackChain) -> dict[str, Any]:
    """``pool`` has deposits of 300 and 100 and takes 600 more; ``rival_pool`` has repaid REPAID for them."""
    pools = {"pool": (1, "owner"), "rival_pool": (2, "rival owner")}
    made = {}
    for name, (index, owner) in pools.items():
        pool = PoolHarness(chain, index)
        pool.authority = chain.make_wallet(owner)
        pool.create()
        pool.update(max_deposit=1000)
        for number, amount in enumerate((300, 100)):
            lender = pool.make_lender(f"lender {number}", 2 * amount)
            pool.deposit(lender, amount)
        pool.tokens.open(pool.authority.pubkey(), pool.collateral)
        made[name] = pool
    made["rival_pool"].enable()
    made["rival_pool"].repay(REPAID)
    return made


def build_airdrops(chain: AttackChain) -> dict[str, Any]:
    """Vaults hold 500 beyond what the lists promise; line 1 of each has had 100 of its 500."""
    airdrops = {
        "airdrop": (7, "owner", chain.now + GUARANTEE),
        "rival_airdrop": (8, "rival owner", NO_GUARANTEE),
    }
    made = {}
    for name, (number, owner, until) in airdrops.items():
        mint = TokenMint(chain, chain.make_wallet("authority"), f"airdropped {number}")
        airdrop = AirdropHarness(chain, number, mint)
        airdrop.authority = chain.make_wallet(owner)
        airdrop.open(2540, guaranteed_until=until)
        airdrop.make_collateral(airdrop.authority)
        airdrop.redeem(airdrop.lines[1], 100)
        made[name] = airdrop
    return made
