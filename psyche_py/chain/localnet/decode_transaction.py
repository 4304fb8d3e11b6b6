"""Transactions as clients send them: text to a VersionedTransaction, with a node's error messages."""

from __future__ import annotations

import base64
import binascii

import base58
from solders.message import Message, MessageV0, from_bytes_versioned
from solders.transaction import SanitizeError, VersionedTransaction

from psyche_py.chain.localnet.rpc_errors import invalid_params
from psyche_py.chain.port import MAX_TRANSACTION_BYTES

TRANSACTION_TYPE = "solana_transaction::versioned::VersionedTransaction"
MESSAGE_TYPE = "solana_message::versions::VersionedMessage"
MAX_BASE58_CHARS = 1683
MAX_BASE64_CHARS = 1644


def _decode_text(text: str, encoding: str, type_name: str) -> bytes:
    limit = MAX_BASE64_CHARS if encoding == "base64" else MAX_BASE58_CHARS
    if len(text) > limit:
        raise invalid_params(
            f"{encoding} encoded {type_name} too large: {len(text)} bytes "
            f"(max: encoded/raw {limit}/{MAX_TRANSACTION_BYTES})"
        )
    try:
        raw = base64.b64decode(text, validate=True) if encoding == "base64" else base58.b58decode(text)
    except (ValueError, binascii.Error) as error:
        raise invalid_params(f"invalid {encoding} encoding: {error}") from None
    if len(raw) > MAX_TRANSACTION_BYTES:
        raise invalid_params(
            f"decoded {type_name} too large: {len(raw)} bytes (max: {MAX_TRANSACTION_BYTES} bytes)"
        )
    return raw


def decode_transaction(text: str, encoding: str) -> VersionedTransaction:
    """A well-formed transaction; its signatures are not checked. Raises RpcError -32602."""
    raw = _decode_text(text, encoding, TRANSACTION_TYPE)
    try:
        transaction = VersionedTransaction.from_bytes(raw)
    except ValueError as error:
        raise invalid_params(f"failed to deserialize {TRANSACTION_TYPE}: {error}") from None
    try:
        transaction.sanitize()
    except SanitizeError:
        raise invalid_params(
            "invalid transaction: Transaction failed to sanitize accounts offsets correctly"
        ) from None
    return transaction


def decode_message(text: str) -> Message | MessageV0:
    """A message in base64. Raises RpcError -32602."""
    raw = _decode_text(text, "base64", MESSAGE_TYPE)
    try:
        return from_bytes_versioned(raw)
    except ValueError as error:
        raise invalid_params(f"failed to deserialize {MESSAGE_TYPE}: {error}") from None
