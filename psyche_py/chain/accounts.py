"""The Borsh accounts of the run's programs as dataclasses. The run's big account is ``coordinator.state``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.port import AccountInfo
from psyche_py.coordinator.layout import compute_account_discriminator
from psyche_py.errors import ChainError


@dataclass(frozen=True, slots=True)
class BorshAccount:
    """Base of the accounts below."""

    PROGRAM: ClassVar[str]

    bump: int

    @classmethod
    def decode(cls, info: AccountInfo) -> Self:
        """Raises ChainError when the account is another program's, or of another type, or damaged."""
        program = get_program(cls.PROGRAM)
        if info.owner != program.program_id:
            raise ChainError(
                f"Account {info.pubkey} belongs to program {info.owner}, not to our {cls.PROGRAM} program.",
                "Check the run id and the cluster.",
            )
        values: dict[str, Any] = program.decode_account(cls.__name__, info.data)
        return cls(**{field.name: _simplify(values[field.name]) for field in fields(cls)})

    @classmethod
    def get_discriminator(cls) -> bytes:
        """First 8 bytes of every such account."""
        return compute_account_discriminator(cls.__name__)


def _simplify(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], Pubkey):
        return tuple(value)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class CoordinatorInstance(BorshAccount):
    """Where a run id leads: the run's account, and who owns it."""

    PROGRAM: ClassVar[str] = "coordinator"

    main_authority: Pubkey
    join_authority: Pubkey
    coordinator_account: Pubkey
    run_id: str


@dataclass(frozen=True, slots=True)
class Authorization(BorshAccount):
    """``grantor`` lets ``grantee`` and its delegates do ``scope``, while ``active``."""

    PROGRAM: ClassVar[str] = "authorizer"

    grantor: Pubkey
    grantee: Pubkey
    scope: bytes
    active: bool
    delegates: tuple[Pubkey, ...]
    grantor_update_unix_timestamp: int


@dataclass(frozen=True, slots=True)
class Run(BorshAccount):
    """A funded run: the treasurer owns the coordinator run and a vault of ``collateral_mint``."""

    PROGRAM: ClassVar[str] = "treasurer"

    index: int
    main_authority: Pubkey
    join_authority: Pubkey
    coordinator_account: Pubkey
    coordinator_instance: Pubkey
    collateral_mint: Pubkey
    total_claimed_collateral_amount: int
    total_claimed_earned_points: int


@dataclass(frozen=True, slots=True)
class Participant(BorshAccount):
    """What a user has claimed from a funded run."""

    PROGRAM: ClassVar[str] = "treasurer"

    claimed_collateral_amount: int
    claimed_earned_points: int
