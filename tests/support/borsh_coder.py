"""anchorpy's coder for tests in an environment that anchorpy does not install into (`make test-newest`).

It reads the same IDLs and knows only what they use, so that a program's instruction is the same bytes by two
encoders that share nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import struct
from collections.abc import Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from solders.pubkey import Pubkey

from psyche_py.chain import anchor

_FORMATS = {
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "f32": "f", "f64": "d", "bool": "?",
}  # fmt: skip
_U128_BYTES = 16


class BorshCoder:
    """``instruction.encode`` and ``accounts`` of an IDL, as psyche_py.chain.anchor calls them."""

    def __init__(self, idl: dict[str, Any]) -> None:
        self._types = {entry["name"]: entry["type"]["fields"] for entry in idl.get("types", [])}
        self._accounts = {entry["name"]: entry["type"]["fields"] for entry in idl.get("accounts", [])}
        self._instructions = {anchor.to_snake(entry["name"]): entry["args"] for entry in idl["instructions"]}
        self.instruction = SimpleNamespace(encode=self._encode_instruction)
        self.accounts = SimpleNamespace(
            acc_name_to_discriminator={name: _hash(f"account:{name}") for name in self._accounts},
            decode=self._decode_account,
        )

    def _encode_instruction(self, name: str, values: Mapping[str, Any]) -> bytes:
        return _hash(f"global:{name}") + self._encode_fields(self._instructions[name], values)

    def _encode_fields(self, fields: list[dict[str, Any]], values: Mapping[str, Any]) -> bytes:
        return b"".join(
            self._encode(field["type"], values[anchor.to_snake(field["name"])]) for field in fields
        )

    def _encode(self, kind: Any, value: Any) -> bytes:
        if kind == "publicKey":
            return bytes(value)
        if kind in ("string", "bytes"):
            raw = value.encode() if kind == "string" else bytes(value)
            return struct.pack("<I", len(raw)) + raw
        if kind == "u128":
            return int(value).to_bytes(_U128_BYTES, "little")
        if isinstance(kind, str):
            return struct.pack("<" + _FORMATS[kind], value)
        if "option" in kind:
            return b"\0" if value is None else b"\1" + self._encode(kind["option"], value)
        if "vec" in kind:
            return struct.pack("<I", len(value)) + b"".join(self._encode(kind["vec"], item) for item in value)
        if "array" in kind:
            return b"".join(self._encode(kind["array"][0], item) for item in value)
        return self._encode_fields(self._types[kind["defined"]], value)

    def _decode_account(self, data: bytes) -> SimpleNamespace:
        (name,) = [name for name in self._accounts if _hash(f"account:{name}") == data[:8]]
        values, _ = self._decode_fields(self._accounts[name], data, 8)
        return SimpleNamespace(**values)

    def _decode_fields(
        self, fields: list[dict[str, Any]], data: bytes, offset: int
    ) -> tuple[dict[str, Any], int]:
        values = {}
        for field in fields:
            values[anchor.to_snake(field["name"])], offset = self._decode(field["type"], data, offset)
        return values, offset

    def _decode(self, kind: Any, data: bytes, offset: int) -> tuple[Any, int]:
        if kind == "publicKey":
            return Pubkey(data[offset : offset + 32]), offset + 32
        if kind in ("string", "bytes"):
            end = offset + 4 + struct.unpack_from("<I", data, offset)[0]
            raw = data[offset + 4 : end]
            return raw.decode() if kind == "string" else raw, end
        if kind == "u128":
            return int.from_bytes(data[offset : offset + _U128_BYTES], "little"), offset + _U128_BYTES
        if isinstance(kind, str):
            form = "<" + _FORMATS[kind]
            return struct.unpack_from(form, data, offset)[0], offset + struct.calcsize(form)
        if "option" in kind:
            return self._decode(kind["option"], data, offset + 1) if data[offset] else (None, offset + 1)
        if "vec" in kind:
            count, offset = struct.unpack_from("<I", data, offset)[0], offset + 4
            return self._decode_items(kind["vec"], count, data, offset)
        if "array" in kind:
            return self._decode_items(*kind["array"], data, offset)
        return self._decode_fields(self._types[kind["defined"]], data, offset)

    def _decode_items(self, kind: Any, count: int, data: bytes, offset: int) -> tuple[list[Any], int]:
        items = []
        for _ in range(count):
            item, offset = self._decode(kind, data, offset)
            items.append(item)
        return items, offset


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:8]


def stand_in_for_anchorpy() -> None:
    """Where anchorpy is not installed, psyche_py.chain.anchor encodes with this coder."""
    if importlib.util.find_spec("anchorpy") is not None:
        return
    coder = cached_property(lambda program: BorshCoder(program._idl))
    coder.__set_name__(anchor.AnchorProgram, "_coder")
    anchor.AnchorProgram._coder = coder  # type: ignore[assignment]
