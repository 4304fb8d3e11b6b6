"""The JSON-RPC methods we use, over a pool of endpoints, with plain results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Commitment
from solana.rpc.types import MemcmpOpts, TxOpts
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from psyche_py.chain.engine_transaction import to_err_json
from psyche_py.chain.port import AccountInfo, Memcmp
from psyche_py.chain.rpc.pool import RpcPool

MAX_ACCOUNTS_PER_CALL = 100
ENCODING = "base64+zstd"
"""Run accounts are mostly zeros: 80 KB become a few."""

COMMITMENTS = ("processed", "confirmed", "finalized")


@dataclass(frozen=True, slots=True)
class SignatureStatus:
    """Where a transaction stands. ``level`` indexes COMMITMENTS; ``err`` in JSON-RPC shape."""

    slot: int
    err: Any
    level: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a transaction would do."""

    err: Any
    logs: tuple[str, ...]
    compute_units: int


class RpcCalls:
    """See the module. Every method raises what ``RpcPool.call`` does."""

    def __init__(self, pool: RpcPool, commitment: str) -> None:
        self.pool = pool
        self.commitment = commitment
        self._level = Commitment(commitment)

    async def get_account(self, pubkey: Pubkey) -> AccountInfo | None:
        """The account at our commitment."""
        response = await self.pool.call(lambda c: c.get_account_info(pubkey, encoding=ENCODING))
        return to_account_info(pubkey, response.value, response.context.slot)

    async def get_multiple_accounts(self, pubkeys: Sequence[Pubkey]) -> list[AccountInfo | None]:
        """Accounts in the order asked; up to 100 of them are of one slot."""
        found: list[AccountInfo | None] = []
        for start in range(0, len(pubkeys), MAX_ACCOUNTS_PER_CALL):
            batch = list(pubkeys[start : start + MAX_ACCOUNTS_PER_CALL])

            async def ask(client: AsyncClient, keys: list[Pubkey] = batch) -> Any:
                return await client.get_multiple_accounts(keys, encoding=ENCODING)

            response = await self.pool.call(ask)
            found += [
                to_account_info(key, value, response.context.slot)
                for key, value in zip(batch, response.value, strict=True)
            ]
        return found

    async def get_program_accounts(
        self, program_id: Pubkey, data_size: int | None, memcmp: Sequence[Memcmp]
    ) -> list[AccountInfo]:
        """Accounts of a program. The answer carries no slot; that of a question before it is given."""
        import base58

        filters: list[int | MemcmpOpts] = [
            MemcmpOpts(offset=item.offset, bytes=base58.b58encode(item.data).decode()) for item in memcmp
        ]
        if data_size is not None:
            filters.append(data_size)
        slot = await self.get_slot()
        response = await self.pool.call(
            lambda c: c.get_program_accounts(program_id, encoding=ENCODING, filters=filters)
        )
        infos = [to_account_info(item.pubkey, item.account, slot) for item in response.value]
        return [info for info in infos if info is not None]

    async def get_slot(self) -> int:
        """Newest slot at our commitment."""
        return int((await self.pool.call(lambda c: c.get_slot())).value)

    async def get_block_height(self) -> int:
        """Newest block height at our commitment; not the same number as the slot."""
        return int((await self.pool.call(lambda c: c.get_block_height())).value)

    async def get_minimum_balance(self, num_bytes: int) -> int:
        """Rent exemption for ``num_bytes``, in lamports."""
        response = await self.pool.call(lambda c: c.get_minimum_balance_for_rent_exemption(num_bytes))
        return int(response.value)

    async def get_latest_blockhash(self) -> tuple[Hash, int]:
        """(blockhash, last block height at which a transaction that names it can land)."""
        response = await self.pool.call(lambda c: c.get_latest_blockhash())
        return response.value.blockhash, int(response.value.last_valid_block_height)

    async def send_raw(self, transaction: bytes, *, skip_preflight: bool) -> None:
        """Hand over a transaction. Raises PreflightFailed. The endpoint itself does not resend."""
        options = TxOpts(
            skip_confirmation=True,
            skip_preflight=skip_preflight,
            preflight_commitment=self._level,
            max_retries=0,
        )
        await self.pool.call(lambda c: c.send_raw_transaction(transaction, options))

    async def simulate(self, transaction: VersionedTransaction) -> Simulation:
        """What the transaction would do now."""
        response = await self.pool.call(lambda c: c.simulate_transaction(transaction))
        value = response.value
        err = None if value.err is None else to_err_json(value.err)
        return Simulation(err, tuple(value.logs or ()), int(value.units_consumed or 0))

    async def get_signature_status(
        self, signature: Signature, *, search_history: bool = False
    ) -> SignatureStatus | None:
        """None when the cluster does not know the transaction (any more, without ``search_history``)."""
        response = await self.pool.call(
            lambda c: c.get_signature_statuses([signature], search_transaction_history=search_history)
        )
        status = response.value[0]
        if status is None:
            return None
        name = str(status.confirmation_status).rsplit(".", 1)[-1].lower()
        level = COMMITMENTS.index(name) if name in COMMITMENTS else 0
        err = None if status.err is None else to_err_json(status.err)
        return SignatureStatus(int(status.slot), err, level)

    async def get_transaction_logs(self, signature: Signature, *, deadline_seconds: float) -> tuple[str, ...]:
        """Log lines of a landed transaction; empty when the endpoint keeps none."""
        level = Commitment("confirmed" if self.commitment == "processed" else self.commitment)
        response = await self.pool.call(
            lambda c: c.get_transaction(signature, "json", level, max_supported_transaction_version=0),
            deadline_seconds=deadline_seconds,
        )
        if response.value is None or response.value.transaction.meta is None:
            return ()
        return tuple(response.value.transaction.meta.log_messages or ())

    async def request_airdrop(self, pubkey: Pubkey, lamports: int, *, deadline_seconds: float) -> Signature:
        """Ask the cluster's faucet."""
        response = await self.pool.call(
            lambda c: c.request_airdrop(pubkey, lamports),
            deadline_seconds=deadline_seconds,
            is_patient=False,
        )
        signature: Signature = response.value
        return signature


def to_account_info(pubkey: Pubkey, account: Any, slot: int) -> AccountInfo | None:
    """From a solders Account; None for None and for an account that was emptied."""
    if account is None or account.lamports == 0:
        return None
    return AccountInfo(pubkey, account.lamports, account.owner, bytes(account.data), slot, account.executable)
