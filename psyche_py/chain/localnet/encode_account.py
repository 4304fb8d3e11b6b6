"""Accounts in the shapes of JSON-RPC (``UiAccount``)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import base58
import zstandard
from solders.pubkey import Pubkey

from psyche_py.chain.localnet.rpc_errors import INVALID_REQUEST, RpcError
from psyche_py.chain.localnet.token_json import parse_token_data
from psyche_py.chain.port import AccountInfo
from psyche_py.chain.token_state import read_token_account

MAX_BASE58_BYTES = 128
"""A node refuses to base58-encode more: the algorithm is quadratic."""

RENT_EPOCH_NEVER = 2**64 - 1
"""``rentEpoch`` of a rent-exempt account, and every account is rent exempt by now."""

_compressor = zstandard.ZstdCompressor(level=1)

GetDecimals = Callable[[Pubkey], int | None]


def encode_account(
    account: AccountInfo,
    encoding: str,
    data_slice: tuple[int, int] | None,
    get_decimals: GetDecimals,
) -> dict[str, Any]:
    """UiAccount. Raises RpcError -32600 when the data is too long for base58.

    ``get_decimals``: decimals of a mint, for ``jsonParsed`` token accounts.
    """
    return {
        "lamports": account.lamports,
        "data": _encode_data(account, encoding, data_slice, get_decimals),
        "owner": str(account.owner),
        "executable": account.executable,
        "rentEpoch": RENT_EPOCH_NEVER,
        "space": len(account.data),
    }


def _encode_data(
    account: AccountInfo,
    encoding: str,
    data_slice: tuple[int, int] | None,
    get_decimals: GetDecimals,
) -> Any:
    if encoding == "jsonParsed":
        token = read_token_account(account.owner, account.data)
        decimals = get_decimals(token.mint) if token is not None else None
        parsed = parse_token_data(account.owner, account.data, decimals)
        if parsed is not None:
            return parsed
    data = account.data
    if data_slice is not None:
        offset, length = data_slice
        data = data[offset : offset + length]
    if encoding in ("binary", "base58"):
        if len(data) > MAX_BASE58_BYTES:
            raise RpcError(
                INVALID_REQUEST,
                f"Encoded binary (base 58) data should be less than {MAX_BASE58_BYTES} bytes, "
                "please use Base64 encoding.",
            )
        text = base58.b58encode(data).decode()
        return text if encoding == "binary" else [text, "base58"]
    if encoding == "base64+zstd":
        return [base64.b64encode(_compressor.compress(data)).decode(), "base64+zstd"]
    return [base64.b64encode(data).decode(), "base64"]
