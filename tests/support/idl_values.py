"""Random values for everything an IDL describes, and their Borsh bytes, encoded here by hand.

A value is plain JSON: whole numbers as text (they may have 128 bits), pubkeys in base58, bytes in hex, a
struct as the list of its fields' values. So the same value can be given to another language's library.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

from solders.pubkey import Pubkey

IDL_FOLDER = Path(__file__).resolve().parents[2] / "psyche_py" / "chain" / "idl"
WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u128": 16, "i64": 8}
FLOATS = {"f32": "<f", "f64": "<d"}


def to_snake(name: str) -> str:
    """camelCase to snake_case; names that are snake_case already stay."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


class IdlValues:
    """Values of the types of one program's legacy IDL."""

    def __init__(self, program: str, seed: int = 0) -> None:
        self.idl: dict[str, Any] = json.loads((IDL_FOLDER / f"{program}.json").read_text())
        self._types = {entry["name"]: entry["type"]["fields"] for entry in self.idl["types"]}
        self._rng = random.Random(f"{program} {seed}")

    def make(self, kind: Any) -> Any:
        """A value of this type: often an extreme one."""
        rng = self._rng
        if isinstance(kind, dict):
            return self._make_nested(kind)
        if kind in WIDTHS:
            bits = 8 * WIDTHS[kind]
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind[0] == "i" else (0, 2**bits - 1)
            return str(rng.choice([low, high, rng.randint(low, high), rng.randint(low, high)]))
        if kind in FLOATS:
            return rng.choice([0.0, -1.5, rng.randrange(10**6) / 64])
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "publicKey":
            return str(Pubkey(rng.randbytes(32)))
        if kind == "string":
            return rng.choice(["", "run", "rün", "é" * 12])
        assert kind == "bytes", kind
        return rng.randbytes(rng.randrange(40)).hex()

    def _make_nested(self, kind: dict[str, Any]) -> Any:
        if "defined" in kind:
            return self.make_fields(self._types[kind["defined"]])
        if "option" in kind:
            return self.make(kind["option"]) if self._rng.random() < 0.6 else None
        if "vec" in kind:
            return [self.make(kind["vec"]) for _ in range(self._rng.randrange(4))]
        item, length = kind["array"]
        return [self.make(item) for _ in range(length)]

    def make_fields(self, fields: list[dict[str, Any]]) -> list[Any]:
        """Values of fields or arguments, in order."""
        return [self.make(field["type"]) for field in fields]

    def encode(self, kind: Any, value: Any) -> bytes:
        """Borsh bytes of a value."""
        if isinstance(kind, dict):
            return self._encode_nested(kind, value)
        if kind in WIDTHS:
            return int(value).to_bytes(WIDTHS[kind], "little", signed=kind[0] == "i")
        if kind in FLOATS:
            return struct.pack(FLOATS[kind], value)
        if kind == "bool":
            return bytes([value])
        if kind == "publicKey":
            return bytes(Pubkey.from_string(value))
        raw = value.encode() if kind == "string" else bytes.fromhex(value)
        return struct.pack("<I", len(raw)) + raw

    def _encode_nested(self, kind: dict[str, Any], value: Any) -> bytes:
        if "defined" in kind:
            return self.encode_fields(self._types[kind["defined"]], value)
        if "option" in kind:
            return b"\0" if value is None else b"\1" + self.encode(kind["option"], value)
        if "vec" in kind:
            return struct.pack("<I", len(value)) + b"".join(self.encode(kind["vec"], item) for item in value)
        return b"".join(self.encode(kind["array"][0], item) for item in value)

    def encode_fields(self, fields: list[dict[str, Any]], values: list[Any]) -> bytes:
        """Borsh bytes of fields or arguments."""
        pairs = zip(fields, values, strict=True)
        return b"".join(self.encode(field["type"], value) for field, value in pairs)

    def to_python(self, kind: Any, value: Any) -> Any:
        """A value as psyche_py.chain.anchor takes it."""
        if isinstance(kind, str):
            if kind in WIDTHS:
                return int(value)
            if kind == "publicKey":
                return Pubkey.from_string(value)
            return bytes.fromhex(value) if kind == "bytes" else value
        if "defined" in kind:
            fields = self._types[kind["defined"]]
            pairs = zip(fields, value, strict=True)
            return {to_snake(field["name"]): self.to_python(field["type"], item) for field, item in pairs}
        if "option" in kind:
            return None if value is None else self.to_python(kind["option"], value)
        item = kind["vec"] if "vec" in kind else kind["array"][0]
        return [self.to_python(item, entry) for entry in value]

    def from_python(self, kind: Any, decoded: Any) -> Any:
        """What anchorpy decoded, as a value."""
        if isinstance(kind, str):
            if kind in WIDTHS or kind == "publicKey":
                return str(decoded)
            return bytes(decoded).hex() if kind == "bytes" else decoded
        if "defined" in kind:
            return self.fields_from_python(self._types[kind["defined"]], vars(decoded))
        if "option" in kind:
            return None if decoded is None else self.from_python(kind["option"], decoded)
        item = kind["vec"] if "vec" in kind else kind["array"][0]
        return [self.from_python(item, entry) for entry in decoded]

    def fields_from_python(self, fields: list[dict[str, Any]], decoded: dict[str, Any]) -> list[Any]:
        """What anchorpy decoded of several fields, as values. It must have those and no others."""
        names = [to_snake(field["name"]) for field in fields]
        # `from` is a word of Python, which anchorpy calls from_
        given = {name.removesuffix("_"): item for name, item in decoded.items() if not name.startswith("_")}
        assert list(given) == names
        pairs = zip(fields, names, strict=True)
        return [self.from_python(field["type"], given[name]) for field, name in pairs]
