"""Landed transactions: from the engine's result to the JSON we keep, and from that to JSON-RPC's shapes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import base58
from solders.instruction import CompiledInstruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche_py.chain.litesvm_engine import ProcessedTransaction
from psyche_py.chain.localnet.rpc_errors import (
    UNSUPPORTED_TRANSACTION_VERSION,
    RpcError,
)

TRANSACTION_ENCODINGS = ("json", "jsonParsed", "base64", "base58", "binary")
MEMO_PROGRAMS = frozenset(
    Pubkey.from_string(text)
    for text in (
        "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo",
        "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr",
    )
)


def to_meta(
    processed: ProcessedTransaction, pre_tokens: Sequence[Any], post_tokens: Sequence[Any]
) -> dict[str, Any]:
    """What is kept of a landed transaction, ready for ``json.dumps``.

    ``pre_tokens``, ``post_tokens``: its token balances in the shape of getTransaction.
    """
    message = processed.transaction.message
    num_static = len(message.account_keys)
    num_writable = (
        sum(len(lookup.writable_indexes) for lookup in message.address_table_lookups)
        if isinstance(message, MessageV0)
        else 0
    )
    loaded = [str(key) for key in processed.account_keys[num_static:]]
    return {
        "signature": str(processed.signature),
        "slot": processed.slot,
        "blockTime": processed.unix_timestamp,
        "memo": _read_memo(processed.transaction),
        "transaction": base64.b64encode(bytes(processed.transaction)).decode(),
        "meta": {
            "err": processed.err,
            "status": {"Ok": None} if processed.err is None else {"Err": processed.err},
            "fee": processed.fee,
            "preBalances": processed.pre_balances,
            "postBalances": processed.post_balances,
            "innerInstructions": encode_inner_instructions(processed.inner_instructions),
            "logMessages": processed.logs,
            "preTokenBalances": pre_tokens,
            "postTokenBalances": post_tokens,
            "rewards": [],
            "loadedAddresses": {"writable": loaded[:num_writable], "readonly": loaded[num_writable:]},
            "computeUnitsConsumed": processed.compute_units,
            **encode_return_data(processed.return_data),
        },
    }


def encode_return_data(returned: Any) -> dict[str, Any]:
    """``{"returnData": ...}``, or nothing at all when the program returned nothing."""
    if returned is None:
        return {}
    program_id = returned.program_id() if callable(returned.program_id) else returned.program_id
    data = returned.data() if callable(returned.data) else returned.data
    encoded = base64.b64encode(bytes(data)).decode()
    return {"returnData": {"programId": str(program_id), "data": [encoded, "base64"]}}


def encode_inner_instructions(groups: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Instructions that programs called, per outer instruction that called any."""
    return [
        {
            "index": index,
            "instructions": [
                _encode_instruction(inner.instruction(), inner.stack_height()) for inner in group
            ],
        }
        for index, group in enumerate(groups)
        if group
    ]


def _encode_instruction(instruction: CompiledInstruction, stack_height: int | None) -> dict[str, Any]:
    return {
        "programIdIndex": instruction.program_id_index,
        "accounts": list(instruction.accounts),
        "data": base58.b58encode(bytes(instruction.data)).decode(),
        "stackHeight": stack_height,
    }


def _read_memo(transaction: VersionedTransaction) -> str | None:
    """Memos in the form of getSignaturesForAddress: ``[length] text``, several joined by ``; ``."""
    keys = transaction.message.account_keys
    memos = []
    for instruction in transaction.message.instructions:
        index = instruction.program_id_index
        if index < len(keys) and keys[index] in MEMO_PROGRAMS:
            data = bytes(instruction.data)
            memos.append(f"[{len(data)}] {data.decode(errors='replace')}")
    return "; ".join(memos) or None


# ---- answering ---------------------------------------------------------------------------------------


def encode_stored(raw_meta: bytes, encoding: str, max_version: int | None) -> dict[str, Any]:
    """The answer of getTransaction from the JSON of :func:`to_meta`; raises as :func:`encode_with_meta`."""
    stored = json.loads(raw_meta)
    return {"slot": stored["slot"], "blockTime": stored["blockTime"]} | encode_with_meta(
        raw_meta, encoding, max_version
    )


def encode_with_meta(raw_meta: bytes, encoding: str, max_version: int | None) -> dict[str, Any]:
    """``transaction``, ``meta``, and ``version`` when the client knows versions: an entry of getBlock.

    Raises RpcError -32015 when the transaction's version is higher than the client takes.
    """
    stored = json.loads(raw_meta)
    transaction = VersionedTransaction.from_bytes(base64.b64decode(stored["transaction"]))
    version: Any = 0 if isinstance(transaction.message, MessageV0) else "legacy"
    if version == 0 and max_version is None:
        raise RpcError(
            UNSUPPORTED_TRANSACTION_VERSION,
            "Transaction version (0) is not supported by the requesting client. Please try the request again "
            'with the following configuration parameter: "maxSupportedTransactionVersion": 0',
        )
    meta = dict(stored["meta"])
    if encoding == "jsonParsed":
        keys = [str(key) for key in transaction.message.account_keys]
        loaded = meta.pop("loadedAddresses")
        keys += loaded["writable"] + loaded["readonly"]
        meta["innerInstructions"] = [
            {
                "index": group["index"],
                "instructions": [_name_accounts(inner, keys) for inner in group["instructions"]],
            }
            for group in meta["innerInstructions"]
        ]
        body: Any = _encode_parsed(transaction, keys, loaded)
    elif encoding == "json":
        body = _encode_raw(transaction)
    elif encoding == "base64":
        body = [stored["transaction"], "base64"]
    else:
        text = base58.b58encode(bytes(transaction)).decode()
        body = text if encoding == "binary" else [text, "base58"]
    answer: dict[str, Any] = {"meta": meta, "transaction": body}
    if max_version is not None:
        answer["version"] = version
    return answer


def _encode_raw(transaction: VersionedTransaction) -> dict[str, Any]:
    message = transaction.message
    body: dict[str, Any] = {
        "header": {
            "numRequiredSignatures": message.header.num_required_signatures,
            "numReadonlySignedAccounts": message.header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": message.header.num_readonly_unsigned_accounts,
        },
        "accountKeys": [str(key) for key in message.account_keys],
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": [_encode_instruction(i, None) for i in message.instructions],
    }
    if isinstance(message, MessageV0):
        body["addressTableLookups"] = _encode_lookups(message)
    return {"signatures": [str(s) for s in transaction.signatures], "message": body}


def _encode_lookups(message: MessageV0) -> list[dict[str, Any]]:
    return [
        {
            "accountKey": str(lookup.account_key),
            "writableIndexes": list(lookup.writable_indexes),
            "readonlyIndexes": list(lookup.readonly_indexes),
        }
        for lookup in message.address_table_lookups
    ]


def _encode_parsed(
    transaction: VersionedTransaction, keys: Sequence[str], loaded: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """``jsonParsed``: accounts by name; instructions undecoded, as a node shows programs it does not know."""
    message = transaction.message
    signed = message.header.num_required_signatures
    writable_signed = signed - message.header.num_readonly_signed_accounts
    num_static = len(message.account_keys)
    writable_static = num_static - message.header.num_readonly_unsigned_accounts
    accounts = []
    for index, key in enumerate(keys):
        is_static = index < num_static
        if is_static:
            is_writable = index < writable_signed or signed <= index < writable_static
        else:
            is_writable = index < num_static + len(loaded["writable"])
        accounts.append(
            {
                "pubkey": key,
                "signer": index < signed,
                "writable": is_writable,
                "source": "transaction" if is_static else "lookupTable",
            }
        )
    body: dict[str, Any] = {
        "accountKeys": accounts,
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": [_name_accounts(_encode_instruction(i, None), keys) for i in message.instructions],
    }
    if isinstance(message, MessageV0):
        body["addressTableLookups"] = _encode_lookups(message)
    return {"signatures": [str(s) for s in transaction.signatures], "message": body}


def _name_accounts(instruction: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """UiPartiallyDecodedInstruction."""
    return {
        "programId": keys[instruction["programIdIndex"]],
        "accounts": [keys[index] for index in instruction["accounts"]],
        "data": instruction["data"],
        "stackHeight": instruction["stackHeight"],
    }
