"""The dearest call of each instruction of the distributor program.

Mints of either token program, addresses that are hard to derive, the longest metadata and the longest proof,
and a line whose share takes a long division to find.
"""

from __future__ import annotations

from functools import cache

from airdrop_harness import NO_GUARANTEE, AirdropHarness
from bump_search import find_worst_number, find_worst_wallet
from programs_harness import ProgramChain
from recording_svm import TOKENS, RecordingSvm, merge_worst
from token_harness import TokenMint

from psyche_py.chain.allocation_tree import MAX_LEVELS, compute_leaf, compute_parent
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.artifacts import get_program_id
from psyche_py.coordinator.pda import get_airdrop_seeds, get_claim_seeds

MAX_METADATA = 300
MAX_U32 = 2**32 - 1
AMOUNT = 2**63 + 12_345
"""With the time in MAX_U32 seconds, the product of the vesting rule has all of its bits."""
SIBLING_HASHES = (b"\0", b"\xff", b"\x55")
ELAPSED_SECONDS = (1, 2**31 + 1, MAX_U32 - 1)


@cache
def find_worst_id() -> int:
    """Of an airdrop whose address is hard to derive."""
    program = get_program_id("distributor")
    return find_worst_number(lambda number: [(get_airdrop_seeds(number), program)])


def find_distributor_costs() -> dict[str, int]:
    """Compute units by instruction."""
    worst: dict[str, int] = {}
    for token_program, extensions in TOKENS:
        chain = ProgramChain()
        chain.svm = RecordingSvm(chain.svm)
        authority = chain.make_wallet("authority")
        mint = TokenMint(chain, authority, token_program=token_program, extensions=extensions)
        _play(AirdropHarness(chain, find_worst_id(), mint=mint))
        merge_worst(worst, chain.svm.worst["distributor"])
    return worst


def _play(drop: AirdropHarness) -> None:
    """Every instruction, and a redeemed line for each kind of proof and time."""
    chain, address = drop.chain, bytes(drop.address)
    claimer = find_worst_wallet(
        lambda key: [(get_claim_seeds(address, key, 0), get_program_id("distributor"))]
    )
    chain.svm.airdrop(claimer.pubkey(), 10**12)
    drop.wallets = [claimer]
    drop.create(metadata=b"m" * MAX_METADATA)
    for wallet in (claimer, drop.authority):
        drop.make_collateral(wallet)
    drop.fund(AMOUNT)
    drop.create_claim(claimer, 0)
    for hashes in SIBLING_HASHES:
        for elapsed in ELAPSED_SECONDS:
            line = Allocation(claimer.pubkey(), AMOUNT, 0, chain.now - elapsed, MAX_U32)
            _redeem(drop, line, hashes)
    drop.withdraw(drop.get_amount())


def _redeem(drop: AirdropHarness, line: Allocation, filling: bytes) -> None:
    """A line far down in a tree of siblings that are all ``filling``."""
    node, proof = compute_leaf(line), b""
    for level in range(MAX_LEVELS):
        sibling = (filling * 32, level)
        node, proof = compute_parent(node, sibling), proof + sibling[0] + sibling[1].to_bytes(8, "little")
    packed = node[0] + node[1].to_bytes(8, "little")
    drop.update(
        claim_freeze=False,
        list=packed,
        guaranteed_until_unix_timestamp=NO_GUARANTEE,
        metadata=filling * MAX_METADATA,
    )
    drop.redeem(line, 1, merkle_proof=proof)
