"""Seeds of the program derived addresses. Deriving them needs a curve check and lives in ``chain``."""

from __future__ import annotations

import hashlib

JOIN_SCOPE = b"CoordinatorJoinRun"
ANYBODY = bytes(32)
"""The grantee of an authorization that lets everybody join."""


def get_instance_seeds(run_id: str) -> list[bytes]:
    """Coordinator program: the run's instance."""
    return [b"coordinator", run_id.encode()]


def get_authorization_seeds(grantor: bytes, grantee: bytes, scope: bytes = JOIN_SCOPE) -> list[bytes]:
    """Authorizer program."""
    return [b"Authorization", grantor, grantee, scope]


def compute_treasurer_index(run_id: str) -> int:
    """The treasurer run index a run id stands for unless another is given (Psyche's CLI rule)."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8], "little")


def get_treasurer_run_seeds(index: int) -> list[bytes]:
    """Treasurer program: a funded run."""
    return [b"Run", index.to_bytes(8, "little")]


def compute_pool_index(name: str) -> int:
    """The index of the mining pool called ``name``: as for a treasurer run."""
    return compute_treasurer_index(name)


def get_pool_seeds(index: int) -> list[bytes]:
    """Mining pool program: a pool."""
    return [b"Pool", index.to_bytes(8, "little")]


def get_redeemable_seeds(pool: bytes) -> list[bytes]:
    """Mining pool program: who owns the vault that repayments go to."""
    return [b"Redeemable", pool]


def get_lender_seeds(pool: bytes, user: bytes) -> list[bytes]:
    """Mining pool program: what a user has lent and claimed."""
    return [b"Lender", pool, user]


def get_participant_seeds(run: bytes, user: bytes) -> list[bytes]:
    """Treasurer program: what a user has claimed."""
    return [b"Participant", run, user]


def get_bond_seeds(run: bytes, user: bytes) -> list[bytes]:
    """Treasurer program: what a user has at stake beside its points."""
    return [b"Bond", run, user]


def get_airdrop_seeds(airdrop_id: int) -> list[bytes]:
    """Distributor program: an airdrop."""
    return [b"Airdrop", airdrop_id.to_bytes(8, "little")]


def get_claim_seeds(airdrop: bytes, claimer: bytes, nonce: int) -> list[bytes]:
    """Distributor program: what a claimer has redeemed of its allocation ``nonce``."""
    return [b"Claim", airdrop, claimer, nonce.to_bytes(8, "little")]
