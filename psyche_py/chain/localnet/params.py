"""Reading the ``params`` of a request: every value is checked, and errors are worded as a node's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from solders.hash import Hash, ParseHashError
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche_py.chain.localnet.rpc_errors import MIN_CONTEXT_SLOT_NOT_REACHED, RpcError, invalid_params

COMMITMENTS = ("processed", "confirmed", "finalized")
LEGACY_COMMITMENTS = {
    "recent": "processed",
    "single": "confirmed",
    "singleGossip": "confirmed",
    "root": "finalized",
    "max": "finalized",
}
MAX_U64 = 2**64 - 1
ACCOUNT_ENCODINGS = ("binary", "base58", "base64", "base64+zstd", "jsonParsed")


def parse_pubkey(value: Any) -> Pubkey:
    """A base58 address. Raises RpcError -32602."""
    if not isinstance(value, str):
        raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected a string.")
    try:
        return Pubkey.from_string(value)
    except ValueError:
        # a node tells these two apart; so do the tests of client libraries
        is_base58 = all(c in "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz" for c in value)
        raise invalid_params(f"Invalid param: {'WrongSize' if is_base58 else 'Invalid'}") from None


def parse_signature(value: Any) -> Signature:
    """A base58 signature. Raises RpcError -32602."""
    if not isinstance(value, str):
        raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected a string.")
    try:
        return Signature.from_string(value)
    except ValueError:
        raise invalid_params("Invalid param: Invalid") from None


def parse_hash(value: Any) -> Hash:
    """A base58 hash. Raises RpcError -32602."""
    if not isinstance(value, str):
        raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected a string.")
    try:
        return Hash.from_string(value)
    except ParseHashError:
        raise invalid_params("Invalid param: Invalid") from None


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f'string "{value[:64]}"'
    return "sequence" if isinstance(value, list) else "map"


class Config:
    """The optional configuration object of a method. Unknown keys are ignored, as by a node."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def get(self, name: str) -> Any:
        """The raw value; None when absent."""
        return self.fields.get(name)

    def get_bool(self, name: str, default: bool = False) -> bool:
        """A flag."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected a boolean.")
        return value

    def get_int(self, name: str, *, maximum: int = MAX_U64) -> int | None:
        """An unsigned integer, None when absent."""
        value = self.fields.get(name)
        return None if value is None else check_int(value, maximum=maximum)

    def get_str(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of ``choices``."""
        value = self.fields.get(name)
        if value is None:
            return default
        if value not in choices:
            expected = ", ".join(f"`{choice}`" for choice in choices)
            raise invalid_params(f"Invalid params: unknown variant `{value}`, expected one of {expected}.")
        return str(value)

    def get_commitment(self, name: str = "commitment", default: str = "finalized") -> str:
        """Commitment level; the names of old clients are understood."""
        value = self.fields.get(name)
        if isinstance(value, str) and value in LEGACY_COMMITMENTS:
            return LEGACY_COMMITMENTS[value]
        return self.get_str(name, COMMITMENTS, default)

    def get_encoding(self, default: str = "binary") -> str:
        """Account encoding."""
        return self.get_str("encoding", ACCOUNT_ENCODINGS, default)

    def get_data_slice(self) -> tuple[int, int] | None:
        """(offset, length) of ``dataSlice``."""
        value = self.fields.get("dataSlice")
        if value is None:
            return None
        if not isinstance(value, dict) or not {"offset", "length"} <= value.keys():
            raise invalid_params("Invalid params: dataSlice needs `offset` and `length`.")
        return check_int(value["offset"]), check_int(value["length"])

    def check_min_context_slot(self, slot: int) -> None:
        """Raise RpcError -32016 when ``minContextSlot`` lies ahead of ``slot``."""
        wanted = self.get_int("minContextSlot")
        if wanted is not None and slot < wanted:
            raise RpcError(
                MIN_CONTEXT_SLOT_NOT_REACHED,
                "Minimum context slot has not been reached",
                {"contextSlot": slot},
            )


def check_int(value: Any, *, maximum: int = MAX_U64) -> int:
    """``value`` when it is an integer from 0 to ``maximum``. Raises RpcError -32602."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected u64.")
    if not 0 <= value <= maximum:
        raise invalid_params(f"Invalid params: invalid value: integer `{value}`, expected 0 to {maximum}.")
    return value


class Params:
    """Positional parameters."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def get(self, index: int) -> Any:
        """The raw value; None when absent."""
        return self.values[index] if index < len(self.values) else None

    def require(self, index: int) -> Any:
        """The raw value. Raises RpcError -32602 when there are not so many."""
        if index >= len(self.values):
            raise invalid_params(f"`params` should have at least {index + 1} argument(s)")
        return self.values[index]

    def get_pubkey(self, index: int) -> Pubkey:
        """A base58 address."""
        return parse_pubkey(self.require(index))

    def get_string(self, index: int) -> str:
        """A string."""
        value = self.require(index)
        if not isinstance(value, str):
            raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected a string.")
        return value

    def get_int(self, index: int, *, maximum: int = MAX_U64) -> int:
        """An unsigned integer."""
        return check_int(self.require(index), maximum=maximum)

    def get_list(self, index: int, *, limit: int) -> list[Any]:
        """A list of at most ``limit`` values."""
        value = self.require(index)
        if not isinstance(value, list):
            raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected a sequence.")
        if len(value) > limit:
            raise invalid_params(f"Too many inputs provided; max {limit}")
        return value

    def get_config(self, index: int) -> Config:
        """The configuration object, empty when absent."""
        value = self.get(index)
        if value is None:
            return Config({})
        if isinstance(value, dict):
            return Config(value)
        raise invalid_params(f"Invalid params: invalid type: {_describe(value)}, expected a map.")
