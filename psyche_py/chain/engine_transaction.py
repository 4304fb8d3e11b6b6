"""Reading transactions for the engine: which accounts they name, and errors in JSON-RPC shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from solders.account import Account
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

ADDRESS_TABLE_HEADER_BYTES = 56
"""An address lookup table account: 56 bytes of meta, then 32 bytes per address."""


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
