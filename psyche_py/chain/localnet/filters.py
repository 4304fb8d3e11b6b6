"""Filters of getProgramAccounts and programSubscribe."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import base58

from psyche_py.chain.localnet.params import check_int
from psyche_py.chain.localnet.rpc_errors import invalid_params
from psyche_py.chain.port import AccountInfo
from psyche_py.chain.token_state import read_token_account

MAX_FILTERS = 4
MAX_MEMCMP_BYTES = 128
MAX_ENCODED_CHARS = 256


@dataclass(frozen=True, slots=True)
class DataSize:
    """Keep accounts with exactly so many bytes of data."""

    num_bytes: int

    def is_match(self, account: AccountInfo) -> bool:
        """Whether the account passes."""
        return len(account.data) == self.num_bytes


@dataclass(frozen=True, slots=True)
class MemcmpFilter:
    """Keep accounts with ``data`` at ``offset``."""

    offset: int
    data: bytes

    def is_match(self, account: AccountInfo) -> bool:
        """Whether the account passes."""
        return account.data[self.offset : self.offset + len(self.data)] == self.data


@dataclass(frozen=True, slots=True)
class TokenAccountState:
    """Keep initialised token accounts."""

    def is_match(self, account: AccountInfo) -> bool:
        """Whether the account passes."""
        return read_token_account(account.owner, account.data) is not None


Filter = DataSize | MemcmpFilter | TokenAccountState


def is_match(filters: Sequence[Filter], account: AccountInfo) -> bool:
    """Whether the account passes every filter."""
    return all(f.is_match(account) for f in filters)


def parse_filters(value: Any) -> tuple[Filter, ...]:
    """The ``filters`` of a configuration object. Raises RpcError -32602."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid_params("Invalid params: filters must be a sequence.")
    if len(value) > MAX_FILTERS:
        raise invalid_params(f"Too many filters provided; max {MAX_FILTERS}")
    return tuple(_parse_filter(item) for item in value)


def _parse_filter(item: Any) -> Filter:
    if item == "tokenAccountState":
        return TokenAccountState()
    if isinstance(item, dict) and "tokenAccountState" in item:
        return TokenAccountState()
    if isinstance(item, dict) and "dataSize" in item:
        return DataSize(check_int(item["dataSize"]))
    if isinstance(item, dict) and isinstance(item.get("memcmp"), dict):
        return _parse_memcmp(item["memcmp"])
    raise invalid_params("Invalid params: a filter is `memcmp`, `dataSize` or `tokenAccountState`.")


def _parse_memcmp(fields: dict[str, Any]) -> MemcmpFilter:
    raw, encoding = fields.get("bytes"), fields.get("encoding")
    if encoding not in (None, "base58", "base64", "binary", "bytes"):
        raise invalid_params(f"Invalid params: unknown memcmp encoding `{encoding}`.")
    if isinstance(raw, list):
        data = bytes(check_int(byte, maximum=255) for byte in raw[: MAX_MEMCMP_BYTES + 1])
    elif isinstance(raw, str):
        if len(raw) > MAX_ENCODED_CHARS:
            raise invalid_params("Invalid param: encoded memcmp data is too large")
        try:
            data = base64.b64decode(raw, validate=True) if encoding == "base64" else base58.b58decode(raw)
        except (ValueError, binascii.Error):
            raise invalid_params("Invalid param: data decoding failed in memcmp filter") from None
    else:
        raise invalid_params("Invalid params: missing field `bytes`.")
    if len(data) > MAX_MEMCMP_BYTES:
        raise invalid_params("Invalid param: decoded memcmp data is too large")
    return MemcmpFilter(check_int(fields.get("offset")), data)
