"""Transactions as the engine sees them: the accounts they name, what became of them, errors as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from solders.account import Account
from solders.hash import Hash
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import TransactionMetadata

ADDRESS_TABLE_HEADER_BYTES = 56
"""An address lookup table account: 56 bytes of meta, then 32 bytes per address."""


@dataclass(frozen=True, slots=True)
class ProcessedTransaction:
    """What became of a transaction. ``err`` is None, or an error in JSON-RPC shape (``chain.errors``).

    ``is_landed`` False: the transaction was turned away, pays no fee and may be sent again. Balances are in
    lamports, in the order of ``account_keys``; ``changed`` are the accounts whose bytes or lamports differ
    from before. ``inner_instructions`` and ``return_data`` are solders objects.
    """

    signature: Signature
    transaction: VersionedTransaction
    slot: int
    unix_timestamp: int
    err: Any
    is_landed: bool
    logs: tuple[str, ...]
    compute_units: int
    fee: int
    account_keys: tuple[Pubkey, ...]
    pre_balances: tuple[int, ...]
    post_balances: tuple[int, ...]
    changed: tuple[Pubkey, ...]
    inner_instructions: Any
    return_data: Any


@dataclass(frozen=True, slots=True)
class SimulatedTransaction:
    """What a transaction would do now; nothing was changed. ``post_accounts`` is empty after an error."""

    slot: int
    err: Any
    logs: tuple[str, ...]
    compute_units: int
    inner_instructions: Any
    return_data: Any
    post_accounts: Mapping[Pubkey, Account]


@dataclass(frozen=True, slots=True)
class RecentBlockhash:
    """A blockhash and the last block height at which a transaction that names it can land."""

    blockhash: Hash
    last_valid_block_height: int


def get_account_keys(
    transaction: VersionedTransaction, read: Callable[[Pubkey], Account | None]
) -> tuple[tuple[Pubkey, ...], tuple[Pubkey, ...]]:
    """(all account keys in the order instructions index them, the writable ones).

    Keys from address lookup tables follow the static ones, writable before readonly, as the runtime loads
    them. A table that does not exist contributes nothing: the runtime turns such a transaction away.
    """
    message = transaction.message
    keys = list(message.account_keys)
    header = message.header
    signed = header.num_required_signatures
    writable = [
        key
        for index, key in enumerate(keys)
        if index < signed - header.num_readonly_signed_accounts
        or signed <= index < len(keys) - header.num_readonly_unsigned_accounts
    ]
    if isinstance(message, MessageV0):
        loaded_writable: list[Pubkey] = []
        loaded_readonly: list[Pubkey] = []
        for lookup in message.address_table_lookups:
            table = read(lookup.account_key)
            addresses = _read_addresses(table.data) if table is not None else []
            loaded_writable += [addresses[i] for i in lookup.writable_indexes if i < len(addresses)]
            loaded_readonly += [addresses[i] for i in lookup.readonly_indexes if i < len(addresses)]
        keys += loaded_writable + loaded_readonly
        writable += loaded_writable
    return tuple(keys), tuple(writable)


def _read_addresses(data: bytes) -> list[Pubkey]:
    body = data[ADDRESS_TABLE_HEADER_BYTES:]
    return [Pubkey(body[start : start + 32]) for start in range(0, len(body) - 31, 32)]


def to_err_json(err: Any) -> Any:
    """A solders transaction error in the shape of JSON-RPC, the same for every solders version."""
    kind = type(err).__name__
    if kind == "TransactionErrorFieldless":
        return str(err).rsplit(".", 1)[-1]
    return {kind.removeprefix("TransactionError"): json.loads(err.to_json())}


def get_return_data(meta: TransactionMetadata) -> Any:
    """solders' TransactionReturnData, or None when the program returned nothing."""
    returned: Any = getattr(meta, "return_data")()  # noqa: B009 - the stub calls it otherwise
    raw = returned.data() if callable(returned.data) else returned.data
    return returned if raw else None
