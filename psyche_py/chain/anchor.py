"""anchorpy, driven by our IDLs: encode instructions, decode accounts, name error codes; events without it.

anchorpy takes half a second to import, so it is imported on the first encoding or decoding. It reads only
the legacy Anchor IDL, which is what ``programs/build/idl.py`` writes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id, read_idl_text
from psyche_py.errors import ChainError

_FORMATS = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q",
    "f32": "f", "f64": "d", "bool": "?",
}  # fmt: skip


def compute_event_discriminator(name: str) -> bytes:
    """First 8 bytes of sha256("event:<Name>"), as Anchor does."""
    return hashlib.sha256(f"event:{name}".encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One error of a program, as its IDL tells it."""

    code: int
    name: str
    message: str


class AnchorProgram:
    """One program as its IDL describes it. Names are accepted in snake_case, whatever the IDL uses."""

    def __init__(self, name: str, idl_text: str) -> None:
        self.name = name
        self._text = idl_text
        self._idl: dict[str, Any] = json.loads(idl_text)
        self.program_id = Pubkey.from_string(self._idl["metadata"]["address"])
        self._instructions = {to_snake(entry["name"]): entry for entry in self._idl["instructions"]}
        self._types = {entry["name"]: entry["type"] for entry in self._idl.get("types", [])}
        self._events = {
            compute_event_discriminator(entry["name"]): entry for entry in self._idl.get("events", [])
        }
        self.errors = {
            entry["code"]: ErrorEntry(entry["code"], _to_camel(entry["name"]), entry.get("msg") or "")
            for entry in self._idl.get("errors", [])
        }

    @property
    def instruction_names(self) -> list[str]:
        """All instructions, in the order of the IDL."""
        return list(self._instructions)

    def get_argument_names(self, name: str) -> list[str]:
        """Arguments of instruction ``name``, in snake_case."""
        return [to_snake(arg["name"]) for arg in self._instructions[name]["args"]]

    @cached_property
    def _coder(self) -> Any:
        from anchorpy import Coder, Idl

        return Coder(Idl.from_json(self._text))

    def encode(self, name: str, accounts: Mapping[str, Pubkey], args: Mapping[str, Any]) -> Instruction:
        """Instruction ``name``.

        ``accounts`` and ``args`` must name exactly those of the IDL; optional accounts may be left out. A
        struct is given as its bytes (packed and Borsh are the same for our structs) or as a mapping; an
        array of u8 may be given as bytes; an Option left at None is absent. Raises TypeError or ValueError
        when they do not fit the IDL.
        """
        entry = self._instructions.get(name)
        if entry is None:
            raise ValueError(f"{self.name} has no instruction {name!r}, only {', '.join(self._instructions)}")
        metas = entry["accounts"]
        names = [to_snake(meta["name"]) for meta in metas]
        # Anchor's clients say so with the program's own address
        absent = {to_snake(meta["name"]): self.program_id for meta in metas if meta.get("isOptional")}
        accounts = {**absent, **accounts}
        arg_names = [to_snake(arg["name"]) for arg in entry["args"]]
        _check_names(f"{name} accounts", names, accounts)
        _check_names(f"{name} arguments", arg_names, args)
        values = {
            arg_name: self._convert(args[arg_name], arg["type"])
            for arg_name, arg in zip(arg_names, entry["args"], strict=True)
        }
        data = self._coder.instruction.encode(name, values)
        return Instruction(
            self.program_id,
            data,
            [
                AccountMeta(accounts[account], bool(meta["isSigner"]), bool(meta["isMut"]))
                for account, meta in zip(names, metas, strict=True)
            ],
        )

    def decode_account(self, type_name: str, data: bytes) -> dict[str, Any]:
        """The fields of a Borsh account.

        Raises ChainError when the discriminator is another's or the bytes end early.
        """
        accounts = self._coder.accounts
        if data[:8] != accounts.acc_name_to_discriminator[type_name]:
            raise ChainError(f"These {len(data)} bytes are no {type_name} of the {self.name} program.")
        from construct import ConstructError

        try:
            decoded = accounts.decode(data)
        except (ConstructError, UnicodeDecodeError) as error:
            raise ChainError(f"A {type_name} of the {self.name} program is damaged: {error}.") from None
        return dict(vars(decoded))

    def encode_account(self, type_name: str, fields: Mapping[str, Any]) -> bytes:
        """Bytes of a Borsh account; the inverse of :meth:`decode_account`, for tests and tools."""
        from anchorpy import NamedInstruction

        return bytes(self._coder.accounts.build(NamedInstruction(name=type_name, data=dict(fields))))

    def decode_event(self, data: bytes) -> tuple[str, dict[str, Any]] | None:
        """Name and fields (by Rust's names) of what the program logged; None when the IDL has no such event.

        Raises ChainError when the length is not the event's.
        """
        entry = self._events.get(data[:8])
        if entry is None:
            return None
        fields, offset = {}, 8
        try:
            for field in entry["fields"]:
                fields[to_snake(field["name"])], offset = self._read(field["type"], data, offset)
        except (struct.error, ValueError):
            offset = -1
        if offset != len(data):
            raise ChainError(
                f"{len(data)} bytes are no {entry['name']} event of the {self.name} program.",
                "The program on this cluster may be newer: `pip install --upgrade psyche-py`.",
            )
        return entry["name"], fields

    def _convert(self, value: Any, kind: Any) -> Any:
        """A value as anchorpy's encoder wants it."""
        if isinstance(kind, str):
            return value
        if "option" in kind:
            return None if value is None else self._convert(value, kind["option"])
        if "vec" in kind:
            return [self._convert(item, kind["vec"]) for item in value]
        if "array" in kind:
            item_kind, length = kind["array"]
            if len(value) != length:
                raise ValueError(f"expected {length} of {item_kind}, not {len(value)}")
            return [self._convert(item, item_kind) for item in value]
        fields = self._types[kind["defined"]]["fields"]
        if isinstance(value, bytes):
            read, size = self._read(kind, value, 0)
            if size != len(value):
                raise ValueError(f"{kind['defined']} has {size} bytes, not {len(value)}")
            return read
        given = {_normalize(key): item for key, item in value.items()}
        _check_names(kind["defined"], [_normalize(field["name"]) for field in fields], given)
        return {
            to_snake(field["name"]): self._convert(given[_normalize(field["name"])], field["type"])
            for field in fields
        }

    def _read(self, kind: Any, data: bytes, offset: int) -> tuple[Any, int]:
        """(value, offset behind it) of a type of fixed size.

        Raises struct.error, or ValueError at a pubkey, when bytes are missing.
        """
        if isinstance(kind, str):
            if kind == "publicKey":
                return Pubkey(data[offset : offset + 32]), offset + 32
            form = "<" + _FORMATS[kind]
            return struct.unpack_from(form, data, offset)[0], offset + struct.calcsize(form)
        if "array" in kind:
            items = []
            for _ in range(kind["array"][1]):
                item, offset = self._read(kind["array"][0], data, offset)
                items.append(item)
            return items, offset
        values = {}
        for field in self._types[kind["defined"]]["fields"]:
            values[to_snake(field["name"])], offset = self._read(field["type"], data, offset)
        return values, offset


_Name = TypeVar("_Name", bound=str)


def _check_names(what: str, wanted: list[_Name], given: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        raise TypeError(f"{what}: missing {missing}, unknown {unknown}")


@cache
def to_snake(name: str) -> str:
    """Name in anchorpy's snake_case; it drops leading underscores and keeps digits where they stand."""
    from pyheck import snake

    return str(snake(name))


def _normalize(name: str) -> str:
    return name.replace("_", "").lower()


def _to_camel(name: str) -> str:
    return name[:1].upper() + name[1:]


@cache
def get_program(name: str) -> AnchorProgram:
    """Our program ``name``, one of PROGRAM_NAMES."""
    return AnchorProgram(name, read_idl_text(name))


def find_program(program_id: Pubkey | str) -> AnchorProgram | None:
    """Our program at this address, or None when it is none of ours."""
    for name in PROGRAM_NAMES:
        if str(get_program_id(name)) == str(program_id):
            return get_program(name)
    return None
