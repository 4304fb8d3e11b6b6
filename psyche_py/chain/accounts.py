"""The Borsh accounts of the run's programs as dataclasses. The run's big account is ``coordinator.state``."""

from __future__ import annotations

import struct
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
        values: dict[str, Any] = program.decode_account(cls.__name__, cls._complete(info.data))
        return cls(**{field.name: _simplify(values[field.name]) for field in fields(cls)})

    @classmethod
    def _complete(cls, data: bytes) -> bytes:
        """Bytes of an older layout as the newest would have them."""
        return data

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
    """``grantor`` lets ``grantee`` and its delegates do ``scope``, while ``active`` and not expired.

    ``expires_unix_timestamp`` is the first second at which it no longer counts; 0 is never.
    """

    PROGRAM: ClassVar[str] = "authorizer"
    _SCOPE_OFFSET: ClassVar[int] = 8 + 1 + 32 + 32
    EXPIRY_BYTES: ClassVar[int] = 8

    grantor: Pubkey
    grantee: Pubkey
    scope: bytes
    active: bool
    delegates: tuple[Pubkey, ...]
    grantor_update_unix_timestamp: int
    expires_unix_timestamp: int

    def is_expired(self, unix_timestamp: int) -> bool:
        """Whether its time is over at ``unix_timestamp`` of the chain's clock."""
        return self.expires_unix_timestamp != 0 and unix_timestamp >= self.expires_unix_timestamp

    @classmethod
    def lacks_expiry(cls, data: bytes) -> bool:
        """Whether the account was made before there were expiries: it ends 8 bytes earlier."""
        try:
            (scope_bytes,) = struct.unpack_from("<I", data, cls._SCOPE_OFFSET)
            at = cls._SCOPE_OFFSET + 4 + scope_bytes + 1
            (num_delegates,) = struct.unpack_from("<I", data, at)
        except struct.error:
            return False  # damaged: decoding says so
        return bool(len(data) == at + 4 + 32 * num_delegates + 8)

    @classmethod
    def _complete(cls, data: bytes) -> bytes:
        return data + bytes(cls.EXPIRY_BYTES) if cls.lacks_expiry(data) else data


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
    """What a user has claimed from a funded run in its lifetime.

    In ``version`` 1 these sums decided what was left to claim; since 2 the coordinator's entry does.
    """

    PROGRAM: ClassVar[str] = "treasurer"
    _FIRST_BYTES: ClassVar[int] = 8 + 1 + 8 + 8

    claimed_collateral_amount: int
    claimed_earned_points: int
    version: int

    @property
    def is_newest(self) -> bool:
        """Whether it can be claimed with; participant_migrate makes it so."""
        return self.version == 2

    @classmethod
    def _complete(cls, data: bytes) -> bytes:
        return data + b"\1" if len(data) == cls._FIRST_BYTES else data


@dataclass(frozen=True, slots=True)
class Bond(BorshAccount):
    """What ``user`` has at stake in treasurer run ``run`` beside its points: ``amount`` base units."""

    PROGRAM: ClassVar[str] = "treasurer"

    run: Pubkey
    user: Pubkey
    coordinator_account: Pubkey
    amount: int
