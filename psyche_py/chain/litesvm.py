"""ChainBackend in this process: the real programs in LiteSVM, with a clock that the caller moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import read_all_programs
from psyche_py.chain.decode_error import to_exception
from psyche_py.chain.errors import AccountNotFound, TransactionExpired
from psyche_py.chain.latest import LatestAccount
from psyche_py.chain.litesvm_engine import LiteSvmEngine, ProcessedTransaction
from psyche_py.chain.port import AccountInfo, ChainTime, Memcmp, TransactionResult
from psyche_py.chain.transaction import add_budget, sign


class LiteSvmBackend:
    """A chain for tests and simulations.

    Each transaction gets a slot of its own, so the same instructions can be sent again and again; the time
    stands still until :meth:`set_time` or :meth:`advance`.
    """

    def __init__(self, engine: LiteSvmEngine) -> None:
        self.engine = engine

    @classmethod
    def create(
        cls, *, unix_timestamp: int = 1_700_000_000, programs: Mapping[Pubkey, bytes] | None = None
    ) -> LiteSvmBackend:
        """A fresh chain with our programs (or ``programs``) installed."""
        installed = read_all_programs() if programs is None else programs
        return cls(LiteSvmEngine(unix_timestamp=unix_timestamp, programs=installed))

    # ---- the clock ----------------------------------------------------------------------------------

    def set_time(self, unix_timestamp: int) -> None:
        """Begin a new slot at this time (or at the present time, when that is later)."""
        self.engine.advance_slot(unix_timestamp)

    def advance(self, seconds: int) -> None:
        """Begin a new slot ``seconds`` later."""
        self.engine.advance_slot(self.engine.unix_timestamp + seconds)

    # ---- ChainBackend -------------------------------------------------------------------------------

    async def get_account(self, pubkey: Pubkey) -> AccountInfo | None:
        """See ChainBackend."""
        await trio.lowlevel.checkpoint()
        return self.engine.get_account(pubkey)

    async def get_multiple_accounts(self, pubkeys: Sequence[Pubkey]) -> list[AccountInfo | None]:
        """See ChainBackend."""
        await trio.lowlevel.checkpoint()
        return [self.engine.get_account(pubkey) for pubkey in pubkeys]

    async def get_program_accounts(
        self, program_id: Pubkey, *, data_size: int | None = None, memcmp: Sequence[Memcmp] = ()
    ) -> list[AccountInfo]:
        """See ChainBackend."""
        await trio.lowlevel.checkpoint()
        return [
            info
            for info in self.engine.get_program_accounts(program_id)
            if (data_size is None or len(info.data) == data_size)
            and all(info.data[f.offset : f.offset + len(f.data)] == f.data for f in memcmp)
        ]

    async def get_chain_time(self) -> ChainTime:
        """See ChainBackend."""
        await trio.lowlevel.checkpoint()
        return ChainTime(self.engine.slot, self.engine.unix_timestamp)

    async def get_minimum_balance(self, num_bytes: int) -> int:
        """See ChainBackend."""
        await trio.lowlevel.checkpoint()
        return self.engine.get_minimum_balance(num_bytes)

    async def prepare(self) -> None:
        """See ChainBackend: nothing is far away here."""
        await trio.lowlevel.checkpoint()

    async def send(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair], *, label: str = ""
    ) -> TransactionResult:
        """See ChainBackend."""
        await trio.lowlevel.checkpoint()
        budgeted = add_budget(instructions)
        blockhash = self.engine.get_latest_blockhash().blockhash
        transaction = sign(budgeted, signers, blockhash, label=label)
        processed = self.engine.process_transaction(transaction)
        self.engine.advance_slot(self.engine.unix_timestamp)
        if processed.err == "BlockhashNotFound":
            raise TransactionExpired(
                f"{label}: the blockhash is too old.", signature=str(processed.signature)
            )
        if processed.err is not None:
            payer = str(signers[0].pubkey())
            raise to_exception(processed.err, processed.logs, budgeted, label=label, payer=payer)
        return TransactionResult(processed.signature, processed.slot, processed.compute_units, processed.logs)

    async def request_airdrop(self, pubkey: Pubkey, lamports: int) -> None:
        """See ChainBackend."""
        await trio.lowlevel.checkpoint()
        self.engine.airdrop(pubkey, lamports)

    @asynccontextmanager
    async def subscribe_account(
        self, pubkey: Pubkey
    ) -> AsyncIterator[trio.MemoryReceiveChannel[AccountInfo]]:
        """See ChainBackend. The channel ends when the account is closed."""
        latest = LatestAccount()

        def notify(processed: ProcessedTransaction) -> None:
            if pubkey not in processed.changed:
                return
            info = self.engine.get_account(pubkey)
            if info is None:
                latest.close()
            else:
                latest.offer(info, is_pushed=True)

        current = await self.get_account(pubkey)
        if current is None:
            raise AccountNotFound(f"There is no account {pubkey}.", "Check its address.", pubkey=str(pubkey))
        latest.offer(current, is_pushed=True)
        unsubscribe = self.engine.add_transaction_listener(notify)
        try:
            async with latest.channel:
                yield latest.channel
        finally:
            unsubscribe()
            latest.close()
