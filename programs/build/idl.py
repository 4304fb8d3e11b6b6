#!/usr/bin/env python3
"""Generates the programs' IDLs from their Rust sources, each in two shapes.

    idl.py OUT_DIRECTORY        NAME.json (legacy Anchor) and NAME.anchor30.json (Anchor 0.30 and newer)

The sources say everything once: `instructions!` tables (names, accounts, arguments), `errors!` and
`events!` tables, structs used as arguments (`Raw<T>`), Borsh accounts (structs under `#[cfg(any())]`) and
zero-copy accounts (`repr(C)` structs that begin with their discriminator). rust_source.py reads exactly that
subset of Rust and stops with a message at anything else; it needs no compiler.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import idl_anchor30
import rust_source as rust
from rust_source import Constants, Field, IdlError, Kind, Struct, Structs

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("coordinator", "authorizer", "treasurer", "mining_pool", "distributor")
SOURCES = {
    "coordinator": ("coordinator/src", "coordinator/state/src"),
    "authorizer": ("authorizer/src",),
    "treasurer": ("treasurer/src", "coordinator/state/src"),
    "mining_pool": ("mining_pool/src",),
    "distributor": ("distributor/src",),
}
"""Folders whose structs a program's table may name; the first is its own."""
ERRORS = {
    "coordinator": "coordinator/state/src/error.rs",
    "authorizer": "authorizer/src/error.rs",
    "treasurer": "treasurer/src/error.rs",
    "mining_pool": "mining_pool/src/error.rs",
    "distributor": "distributor/src/error.rs",
}
COMMON_ERRORS = "common/src/error.rs"


class Program(NamedTuple):
    """What the sources of one program say, in no shape yet."""

    name: str
    version: str
    address: str
    docs: list[str]
    instructions: list[rust.Instruction]
    accounts: list[Struct]
    """The accounts that it writes."""
    types: list[Struct]
    """The structs that arguments, accounts and events are made of."""
    events: list[rust.Event]
    errors: list[rust.ErrorCode]
    structs: Structs


def read_sources(folder: str) -> str:
    """All Rust files below a folder of programs/, in one text."""
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.rs")))


def read_program(name: str) -> Program:
    """Everything about one program. Raises IdlError at what cannot be read."""
    lib = (ROOT / SOURCES[name][0] / "lib.rs").read_text()
    text = "\n".join(read_sources(folder) for folder in SOURCES[name])
    # an account belongs to the program whose sources (own folder and its state crate) define it
    home_text = "\n".join(read_sources(folder) for folder in SOURCES[name] if folder.startswith(name))
    constants = Constants(text)
    structs = Structs(text, constants)
    instructions = rust.parse_instructions(lib, constants)
    accounts = [trim_discriminator(struct) for struct in Structs(home_text, constants).get_accounts()]
    events = rust.parse_events(home_text, constants)
    users: Sequence[list[Field]] = (
        *(instruction.args for instruction in instructions),
        *(account.fields for account in accounts),
        *(event.fields for event in events),
    )
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)
    address = rust.parse_ids((ROOT / "common/src/ids.rs").read_text()).get(name)
    if version is None or address is None:
        raise IdlError(f"idl.py: no version, or no id for {name}")
    for account in accounts:
        if account.is_zero_copy_account:
            structs.compute_layout(Kind("defined", defined=account.name))
    return Program(
        name,
        version[1],
        address,
        rust.read_module_docs(lib),
        instructions,
        accounts,
        structs.find_parts([field.kind for fields in users for field in fields]),
        events,
        [
            *rust.parse_errors((ROOT / ERRORS[name]).read_text()),
            *rust.parse_errors((ROOT / COMMON_ERRORS).read_text()),
        ],
        structs,
    )


def trim_discriminator(struct: Struct) -> Struct:
    """An account without the 8 bytes that IDLs know to be in front of every account."""
    return struct._replace(fields=struct.fields[1:]) if struct.is_zero_copy_account else struct


# ---- the legacy shape -------------------------------------------------------------------------------------


def to_camel(name: str) -> str:
    """snake_case to camelCase; names that would not come back the same (quantize_1bit) stay as they are."""
    head, *tail = name.split("_")
    camel = head + "".join(part.capitalize() for part in tail)
    back = re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), camel)
    return camel if back == name else name


def convert_kind(kind: Kind) -> Any:
    """A type as the legacy IDL writes it."""
    if kind.name == "defined":
        return {"defined": kind.defined}
    if kind.item is None:
        return "publicKey" if kind.name == "pubkey" else kind.name
    item = convert_kind(kind.item)
    return {kind.name: [item, kind.length] if kind.name == "array" else item}


def convert_fields(fields: list[Field]) -> list[dict[str, Any]]:
    """Named fields or arguments."""
    return [{"name": to_camel(field.name), "type": convert_kind(field.kind)} for field in fields]


def convert_struct(struct: Struct) -> dict[str, Any]:
    """A struct or account. Zero-copy ones have no hidden padding, so their memory is their Borsh bytes."""
    return {"name": struct.name, "type": {"kind": "struct", "fields": convert_fields(struct.fields)}}


def convert_instruction(instruction: rust.Instruction) -> dict[str, Any]:
    """One instruction."""
    return {
        "name": to_camel(instruction.name),
        "docs": instruction.docs,
        "accounts": [
            {
                "name": to_camel(use.name),
                "isMut": use.writable,
                "isSigner": use.signer,
                **({"isOptional": True} if use.optional else {}),
            }
            for use in instruction.accounts
        ],
        "args": convert_fields(instruction.args),
    }


def convert_event(event: rust.Event) -> dict[str, Any]:
    """One event."""
    fields = [{**field, "index": False} for field in convert_fields(event.fields)]
    return {"name": event.name, "fields": fields}


def generate(program: Program) -> dict[str, Any]:
    """The legacy IDL of one program."""
    return {
        "version": program.version,
        "name": program.name,
        "instructions": [convert_instruction(instruction) for instruction in program.instructions],
        "accounts": [convert_struct(account) for account in program.accounts],
        "types": [convert_struct(struct) for struct in program.types],
        "events": [convert_event(event) for event in program.events],
        "errors": [
            {"code": error.code, "name": error.name, "msg": error.message} for error in program.errors
        ],
        "metadata": {"address": program.address},
    }


# ---- files ------------------------------------------------------------------------------------------------


def render_all() -> dict[str, str]:
    """Every IDL by the name of its file."""
    files = {}
    for name in PROGRAMS:
        program = read_program(name)
        for suffix, shape in ((".json", generate), (".anchor30.json", idl_anchor30.generate)):
            files[name + suffix] = json.dumps(shape(program), indent=2) + "\n"
    return files


def main() -> None:
    """Write the files."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, text in render_all().items():
        (out / name).write_text(text)


if __name__ == "__main__":
    main()
