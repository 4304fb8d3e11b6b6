"""Accounts of other programs that the events of a history name by number: authorizations and bonds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

SYSTEM_PROGRAM = 9
"""Number of the authorization that is none: the address of all zeros, which entries without one hold."""


def get_authorization_address(number: int) -> bytes:
    """Where an authorization of a history lies. Number 0 lets everybody join, until it is changed."""
    if number == SYSTEM_PROGRAM:
        return bytes(32)
    return hashlib.sha256(f"authorization {number}".encode()).digest()


@dataclass(frozen=True)
class Authorization:
    """What the authorizer program holds. ``grantee`` None means everybody; ``expires`` 0 never."""

    grantee: int | None = None
    active: bool = True
    expires: int = 0
    delegates: Sequence[int] = ()


@dataclass(frozen=True)
class Bond:
    """What the treasurer holds. With a ``flaw`` the account is not what its place says it is."""

    user: int
    amount: int
    flaw: str | None = None


BOND_FLAWS = ("owner", "kind", "run", "user", "account", "short")
"""Another program's, of another kind, another run's, user's or coordinator account's; a byte too short."""


def get_bond_address(number: int) -> bytes:
    """Where a bond of a history lies."""
    return hashlib.sha256(f"bond {number}".encode()).digest()
