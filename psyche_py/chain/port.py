"""What the rest of the project asks of a chain. Adapters: ``litesvm`` (in process) and ``rpc`` (a cluster).

All methods raise subclasses of :class:`psyche_py.errors.ChainError` (see ``chain.errors``) and none waits for
ever: every adapter bounds its own waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import trio
    from solders.instruction import Instruction
    from solders.keypair import Keypair
    from solders.pubkey import Pubkey
    from solders.signature import Signature

MAX_TRANSACTION_BYTES = 1232
"""Largest serialised transaction: an IPv6 packet of 1280 bytes less its headers."""

MAX_COMPUTE_UNITS = 1_400_000
"""Most compute units a transaction may ask for."""


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """An account as it stood at ``slot`` (the slot it was read at, not the one it last changed in)."""

    pubkey: Pubkey
    lamports: int
    owner: Pubkey
    data: bytes
    slot: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class ChainTime:
    """The Clock sysvar: what programs see as the present. ``unix_timestamp`` is in whole seconds."""

    slot: int
    unix_timestamp: int


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """A transaction that landed without error.

    ``compute_units`` and ``logs`` are for people; they are None and empty where the backend would need
    another request to learn them.
    """

    signature: Signature
    slot: int
    compute_units: int | None
    logs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Memcmp:
    """Keep accounts whose data has ``data`` at ``offset``."""

    offset: int
    data: bytes


class ChainBackend(Protocol):
    """A chain we can read, write and watch."""

    async def get_account(self, pubkey: Pubkey) -> AccountInfo | None:
        """The account now, or None where there is none."""
        ...

    async def get_multiple_accounts(self, pubkeys: Sequence[Pubkey]) -> list[AccountInfo | None]:
        """Several accounts of one slot, in the order asked; None where there is none."""
        ...

    async def get_program_accounts(
        self, program_id: Pubkey, *, data_size: int | None = None, memcmp: Sequence[Memcmp] = ()
    ) -> list[AccountInfo]:
        """All accounts that ``program_id`` owns and that pass every filter."""
        ...

    async def get_chain_time(self) -> ChainTime:
        """Slot and time that programs see."""
        ...

    async def get_minimum_balance(self, num_bytes: int) -> int:
        """Lamports that make an account of ``num_bytes`` rent exempt."""
        ...

    async def prepare(self) -> None:
        """Get now what the next transaction needs, so that :meth:`send` need not ask for it first.

        May be called at any time, and need not be. Raises RateLimited, RpcUnavailable.
        """
        ...

    async def send(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair], *, label: str = ""
    ) -> TransactionResult:
        """Put the instructions in one transaction, sign, send, and wait until it has landed.

        The first signer pays. ``label`` names the transaction in errors.
        Raises ProgramError (a program refused, nothing changed), TransactionFailed (the runtime refused),
        TransactionExpired (never landed, safe to send anew), TransactionUnconfirmed (the cluster went away
        and we do not know), InsufficientFunds, RateLimited, RpcUnavailable.
        """
        ...

    async def request_airdrop(self, pubkey: Pubkey, lamports: int) -> None:
        """Test money, where the cluster gives any; returns when it has arrived. Raises AirdropRefused."""
        ...

    def subscribe_account(
        self, pubkey: Pubkey
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[AccountInfo]]:
        """Watch one account.

        The channel's first item is the account as it is now. Slots never go back, and a reader that is slow
        gets only the newest state: the account is the truth, not its history. Raises AccountNotFound on
        entering when there is no such account.
        """
        ...
