"""Reads an instruction's bytes by the IDL, strictly: what a program must make of them, or refuse."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from psyche_py.chain.anchor import get_program, to_snake
from psyche_py.chain.artifacts import read_idl

NUMBERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "f32": "f", "f64": "d"}


class Malformed(Exception):
    """The bytes are no instruction of the program."""


def read_call(program: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """(instruction, arguments). Structs come as their bytes, keys as 32 bytes. Raises Malformed."""
    entry = _get_entries(program).get(data[:8])
    if entry is None:
        raise Malformed("no such instruction")
    reader = _Reader(program, data[8:])
    values = {to_snake(arg["name"]): reader.read(arg["type"]) for arg in entry["args"]}
    if reader.rest:
        raise Malformed(f"{len(reader.rest)} bytes too many")
    return to_snake(entry["name"]), values


@cache
def _get_entries(program: str) -> dict[bytes, dict[str, Any]]:
    import hashlib

    entries = {}
    for entry in read_idl(program)["instructions"]:
        name = to_snake(entry["name"])
        entries[hashlib.sha256(f"global:{name}".encode()).digest()[:8]] = entry
    assert set(map(to_snake, (e["name"] for e in entries.values()))) == set(
        get_program(program).instruction_names
    )
    return entries


@cache
def get_size(program: str, kind: Any) -> int:
    """Bytes of a type of fixed size; ``kind`` must be hashable (a name)."""
    types = {entry["name"]: entry["type"] for entry in read_idl(program)["types"]}
    return sum(_get_field_size(program, field["type"]) for field in types[kind]["fields"])


def _get_field_size(program: str, kind: Any) -> int:
    if isinstance(kind, str):
        return {"publicKey": 32, "bool": 1}.get(kind) or struct.calcsize("<" + NUMBERS[kind])
    if "array" in kind:
        return _get_field_size(program, kind["array"][0]) * int(kind["array"][1])
    return get_size(program, kind["defined"])


class _Reader:
    def __init__(self, program: str, data: bytes) -> None:
        self.program = program
        self.rest = data

    def take(self, size: int) -> bytes:
        if size > len(self.rest):
            raise Malformed("bytes are missing")
        head, self.rest = self.rest[:size], self.rest[size:]
        return head

    def read(self, kind: Any) -> Any:
        if isinstance(kind, str):
            return self.read_plain(kind)
        if "option" in kind:
            return self.read(kind["option"]) if self.read("bool") else None
        if "vec" in kind:
            size = _get_field_size(self.program, kind["vec"])
            num = self.read("u32")
            if num * size > len(self.rest):
                raise Malformed("a vector beyond the data")
            return [self.read(kind["vec"]) for _ in range(num)]
        if "array" in kind:
            item, num = kind["array"]
            return self.take(num) if item == "u8" else [self.read(item) for _ in range(num)]
        return self.take(get_size(self.program, kind["defined"]))

    def read_plain(self, kind: str) -> Any:
        if kind == "publicKey":
            return self.take(32)
        if kind in ("string", "bytes"):
            return self.take(self.read("u32"))
        if kind == "bool":
            value = self.take(1)[0]
            if value > 1:
                raise Malformed("a bool that is none")
            return bool(value)
        form = "<" + NUMBERS[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]
