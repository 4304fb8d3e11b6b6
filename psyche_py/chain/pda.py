"""Program derived addresses, from the seeds of ``coordinator.pda``."""

from __future__ import annotations

from functools import cache

from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.coordinator import pda as seeds
from psyche_py.coordinator.layout import MAX_RUN_ID_BYTES
from psyche_py.errors import UsageError

SYSTEM_PROGRAM = Pubkey.from_string("11111111111111111111111111111111")
TOKEN_PROGRAM = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022_PROGRAM = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
ASSOCIATED_TOKEN_PROGRAM = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")


@cache
def find_instance(run_id: str) -> Pubkey:
    """The run's CoordinatorInstance. Raises UsageError when the run id has not 1 to 32 bytes."""
    if not 1 <= len(run_id.encode()) <= MAX_RUN_ID_BYTES:
        raise UsageError(
            f"The run id {run_id!r} has {len(run_id.encode())} bytes.", "A run id has 1 to 32 bytes of UTF-8."
        )
    program_id = get_program_id("coordinator")
    return Pubkey.find_program_address(seeds.get_instance_seeds(run_id), program_id)[0]


@cache
def find_authorization(grantor: Pubkey, grantee: Pubkey, scope: bytes = seeds.JOIN_SCOPE) -> Pubkey:
    """The Authorization by which ``grantor`` lets ``grantee`` (or its delegates) do ``scope``."""
    parts = seeds.get_authorization_seeds(bytes(grantor), bytes(grantee), scope)
    return Pubkey.find_program_address(parts, get_program_id("authorizer"))[0]


@cache
def find_treasurer_run(index: int) -> Pubkey:
    """The treasurer's Run number ``index``; usually ``coordinator.pda.compute_treasurer_index(run_id)``."""
    return Pubkey.find_program_address(seeds.get_treasurer_run_seeds(index), get_program_id("treasurer"))[0]


@cache
def find_participant(run: Pubkey, user: Pubkey) -> Pubkey:
    """The record of what ``user`` has claimed from treasurer run ``run``."""
    parts = seeds.get_participant_seeds(bytes(run), bytes(user))
    return Pubkey.find_program_address(parts, get_program_id("treasurer"))[0]


@cache
def find_bond(run: Pubkey, user: Pubkey) -> Pubkey:
    """The bond of ``user`` in treasurer run ``run``; its token account is this address's associated one."""
    parts = seeds.get_bond_seeds(bytes(run), bytes(user))
    return Pubkey.find_program_address(parts, get_program_id("treasurer"))[0]


@cache
def find_pool(index: int) -> Pubkey:
    """The mining pool number ``index``; usually ``coordinator.pda.compute_pool_index(name)``."""
    return Pubkey.find_program_address(seeds.get_pool_seeds(index), get_program_id("mining_pool"))[0]


@cache
def find_redeemable_authority(pool: Pubkey) -> Pubkey:
    """Where repayments to mining pool ``pool`` are sent: the owner of its redeemable vault."""
    parts = seeds.get_redeemable_seeds(bytes(pool))
    return Pubkey.find_program_address(parts, get_program_id("mining_pool"))[0]


@cache
def find_lender(pool: Pubkey, user: Pubkey) -> Pubkey:
    """The record of what ``user`` has lent to mining pool ``pool`` and claimed from it."""
    parts = seeds.get_lender_seeds(bytes(pool), bytes(user))
    return Pubkey.find_program_address(parts, get_program_id("mining_pool"))[0]


@cache
def find_airdrop(airdrop_id: int) -> Pubkey:
    """The distributor's Airdrop number ``airdrop_id``."""
    return Pubkey.find_program_address(seeds.get_airdrop_seeds(airdrop_id), get_program_id("distributor"))[0]


@cache
def find_claim(airdrop: Pubkey, claimer: Pubkey, nonce: int) -> Pubkey:
    """The record of what ``claimer`` has redeemed of its allocation ``nonce``."""
    parts = seeds.get_claim_seeds(bytes(airdrop), bytes(claimer), nonce)
    return Pubkey.find_program_address(parts, get_program_id("distributor"))[0]


@cache
def find_token_account(owner: Pubkey, mint: Pubkey, token_program: Pubkey = TOKEN_PROGRAM) -> Pubkey:
    """The associated token account of ``owner`` for ``mint``, which is ``token_program``'s."""
    parts = [bytes(owner), bytes(token_program), bytes(mint)]
    return Pubkey.find_program_address(parts, ASSOCIATED_TOKEN_PROGRAM)[0]
