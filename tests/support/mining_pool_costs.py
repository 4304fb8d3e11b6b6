"""The dearest call of each instruction of the mining pool program.

Mints of either token program, addresses that are hard to derive, the longest metadata; for a claim, amounts
whose long divisions take longest.
"""

from __future__ import annotations

from functools import cache

from bump_search import find_worst_number, find_worst_wallet
from cost_search import Knobs, Setting, search_worst
from mining_pool_harness import PoolHarness
from programs_harness import ProgramChain, Refused
from recording_svm import TOKENS, RecordingSvm, merge_worst
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import find_lender, find_pool
from psyche_py.coordinator.pda import get_lender_seeds, get_pool_seeds, get_redeemable_seeds

MAX_METADATA = 400
MAX_U64 = 2**64 - 1
FUNDS = 10**6
# where the programs keep what a claim is computed from
TOTAL_DEPOSITED, TOTAL_CLAIMED = 121, 203
DEPOSITED, CLAIMED = 9, 17
TOKEN_AMOUNT = 64
CLAIM_KNOBS: Knobs = {
    "total_deposited": (MAX_U64, 2**63, 2**32 + 1, 2**63 + 2**31 + 1, 3, 1),
    "part_deposited": (1.0, 0.5, 0.999),
    "total_claimed": (2**127 - 1, 2**96 + 12_345, 2**64 + 1, 0, 2**127 + 2**63 + 1),
    "vault": (MAX_U64, 2**63, 1),
    "claimed": (0, 1),
    "amount": (1, MAX_U64),
}


@cache
def find_worst_index() -> int:
    """Index of a pool whose two addresses are hard to derive."""
    program = get_program_id("mining_pool")
    return find_worst_number(
        lambda index: [
            (get_pool_seeds(index), program),
            (get_redeemable_seeds(bytes(find_pool(index))), program),
        ]
    )


def find_mining_pool_costs(budget: int) -> dict[str, int]:
    """Compute units by instruction; ``budget`` amounts are tried for the claim."""
    worst: dict[str, int] = {}
    for token_program, extensions in TOKENS:
        chain = ProgramChain()
        chain.svm = RecordingSvm(chain.svm)
        pool = PoolHarness(chain, find_worst_index(), token_program=token_program, extensions=extensions)
        _play(pool, budget)
        merge_worst(worst, chain.svm.worst["mining_pool"])
    return worst


def _play(pool: PoolHarness, budget: int) -> None:
    """Every instruction once, then claims at every kind of amount."""
    chain, program = pool.chain, get_program_id("mining_pool")
    pool.create(metadata="m" * MAX_METADATA)
    pool.update(max_deposit=MAX_U64, freeze=False, metadata="n" * MAX_METADATA)
    address = bytes(pool.address)
    lender = find_worst_wallet(lambda key: [(get_lender_seeds(address, key), program)])
    chain.svm.airdrop(lender.pubkey(), 10**12)
    for mint in {pool.collateral, pool.redeemable}:
        pool.tokens.issue(mint, lender.pubkey(), FUNDS)
    pool.tokens.open(pool.authority.pubkey(), pool.collateral)
    pool.enter(lender)
    pool.deposit(lender, FUNDS)
    pool.extract(FUNDS)
    pool.enable()
    pool.repay(FUNDS)
    search_worst(CLAIM_KNOBS, lambda setting: _claim(pool, lender, setting), budget=budget)


def _claim(pool: PoolHarness, lender: Keypair, setting: Setting) -> int:
    """Compute units of a claim of these amounts."""
    total = setting["total_deposited"]
    record = find_lender(pool.address, lender.pubkey())
    _put(pool, pool.address, TOTAL_DEPOSITED, total, 8)
    _put(pool, pool.address, TOTAL_CLAIMED, setting["total_claimed"], 16)
    _put(pool, record, DEPOSITED, max(int(total * setting["part_deposited"]), 1) & MAX_U64, 8)
    _put(pool, record, CLAIMED, setting["claimed"], 16)
    _put(pool, pool.redeemable_vault, TOKEN_AMOUNT, setting["vault"], 8)
    _put(pool, pool.tokens.find(lender.pubkey(), pool.redeemable), TOKEN_AMOUNT, 0, 8)
    try:
        pool.claim(lender, min(setting["amount"], setting["vault"]))
    except Refused:
        return 0
    return pool.chain.units


def _put(pool: PoolHarness, address: Pubkey, offset: int, value: int, size: int) -> None:
    """Write an amount into an account behind the programs' back."""
    svm = pool.chain.svm
    old = svm.get_account(address)
    data = bytearray(old.data)
    data[offset : offset + size] = value.to_bytes(size, "little")
    svm.set_account(address, Account(old.lamports, bytes(data), old.owner))
