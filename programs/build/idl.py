#!/usr/bin/env python3
"""Generates the programs' IDLs (legacy Anchor JSON) from their Rust sources.

    idl.py OUT_DIRECTORY

The sources say everything once: `instructions!` tables (names, accounts, arguments), `errors!` and
`events!` tables, structs used as arguments (`Raw<T>`), and Borsh accounts (structs under `#[cfg(any())]`).
This file reads exactly that subset of Rust and stops with a message at anything else; it needs no compiler.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("coordinator", "authorizer", "treasurer", "mining_pool")
SOURCES = {
    "coordinator": ("coordinator/src", "coordinator/state/src"),
    "authorizer": ("authorizer/src",),
    "treasurer": ("treasurer/src", "coordinator/state/src"),
    "mining_pool": ("mining_pool/src",),
}
"""Folders whose structs a program's table may name; the first is its own."""
ERRORS = {
    "coordinator": "coordinator/state/src/error.rs",
    "authorizer": "authorizer/src/error.rs",
    "treasurer": "treasurer/src/error.rs",
    "mining_pool": "mining_pool/src/error.rs",
}
COMMON_ERRORS = "common/src/error.rs"

SIMPLE = {
    **{name: name for name in ("u8", "u16", "u32", "u64", "u128", "i64", "f32", "f64", "bool")},
    "Key": "publicKey",
    "Text": "string",
    "String": "string",
    "Bytes": "bytes",
    "Vec<u8>": "bytes",
}


class IdlError(SystemExit):
    """The sources hold something that this generator does not understand."""


class Struct(NamedTuple):
    """A Rust struct: fields in order, and whether it is there for the IDL only (a Borsh account)."""

    fields: dict[str, str]
    is_account: bool


def to_camel(name: str) -> str:
    """snake_case to camelCase; names that would not come back the same (quantize_1bit) stay as they are."""
    head, *tail = name.split("_")
    camel = head + "".join(part.capitalize() for part in tail)
    back = re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), camel)
    return camel if back == name else name


def convert_type(rust: str) -> Any:
    """A Rust type as the IDL writes it."""
    rust = re.sub(r"\s+", " ", rust.strip()).removeprefix("&'static ").strip()
    if rust in SIMPLE:
        return SIMPLE[rust]
    if match := re.fullmatch(r"Option<(.+)>", rust):
        return {"option": convert_type(match[1])}
    if match := re.fullmatch(r"Raw<(\w+)>", rust):
        return {"defined": match[1]}
    if match := re.fullmatch(r"\[(\w+); (\d+)\]", rust):
        return {"array": [convert_type(match[1]), int(match[2])]}
    if rust in ("Keys", "Vec<Key>"):
        return {"vec": "publicKey"}
    raise IdlError(f"idl.py: no IDL type for the Rust type {rust!r}")


def split_list(text: str) -> list[str]:
    """Splits at commas outside of brackets; a trailing comma is fine."""
    items, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "<[(") - (character in ">])")
        if character == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
    return [item.strip() for item in (*items, text[start:]) if item.strip()]


def convert_fields(fields: dict[str, str]) -> list[dict[str, Any]]:
    """Named fields or arguments."""
    return [{"name": to_camel(name), "type": convert_type(rust)} for name, rust in fields.items()]


def parse_pairs(text: str) -> dict[str, str]:
    """`name: type, name: type`"""
    return {name.strip(): rust.strip() for name, rust in (item.split(":", 1) for item in split_list(text))}


def parse_structs(text: str) -> dict[str, Struct]:
    """Structs with public fields. The Borsh one wins over a view of the same name."""
    structs: dict[str, Struct] = {}
    pattern = re.compile(r"((?:^#\[[^\n]*\]\n)*)^pub struct (\w+) \{\n(.*?)^\}", re.M | re.S)
    for attributes, name, body in pattern.findall(text):
        is_account = "#[cfg(any())]" in attributes
        if is_account or name not in structs:
            body = re.sub(r"^\s*(///|#\[).*\n", "", body, flags=re.M)
            structs[name] = Struct(parse_pairs(body.replace("pub ", "")), is_account)
    return structs


def parse_errors(text: str) -> list[dict[str, Any]]:
    """`errors! { Name from 6000 { Variant = "message", } }`"""
    match = re.search(r"^(?:psyche_common::)?errors! \{\n.*? from (\d+) \{\n(.*?)^    \}", text, re.M | re.S)
    if match is None:
        raise IdlError("idl.py: no errors! table")
    entries = re.findall(r'(\w+) = "([^"]*)",', match[2])
    return [{"code": int(match[1]) + i, "name": name, "msg": msg} for i, (name, msg) in enumerate(entries)]


def parse_instructions(text: str) -> list[dict[str, Any]]:
    """The `instructions!` table of a program's lib.rs."""
    table = re.search(r"^psyche_common::instructions! \{\n(.*?)^\}", text, re.M | re.S)
    if table is None:
        raise IdlError("idl.py: no instructions! table")
    pattern = re.compile(r"((?:\s*///[^\n]*\n)*)\s*(\w+)\s*\[(.*?)\]\s*\((.*?)\);", re.S)
    instructions, end = [], 0
    for match in pattern.finditer(table[1]):
        if table[1][end : match.start()].strip():
            raise IdlError(f"idl.py: cannot read {table[1][end : match.start()]!r}")
        end = match.end()
        docs, name, accounts, arguments = match.groups()
        instructions.append(
            {
                "name": to_camel(name),
                "docs": [line.strip().removeprefix("///").strip() for line in docs.strip().splitlines()],
                "accounts": [
                    {"name": to_camel(key), "isMut": "w" in flags, "isSigner": "s" in flags}
                    for key, flags in parse_pairs(accounts).items()
                ],
                "args": convert_fields(parse_pairs(arguments)),
            }
        )
    if table[1][end:].strip():
        raise IdlError(f"idl.py: cannot read {table[1][end:]!r}")
    return instructions


def parse_events(text: str) -> list[dict[str, Any]]:
    """The `events!` tables of a program: `Name { field: type, }`."""
    events = []
    for table in re.findall(r"^(?:psyche_common::)?events! \{\n(.*?)^\}", text, re.M | re.S):
        body = re.sub(r"^\s*///.*\n", "", table, flags=re.M)
        for name, fields in re.findall(r"(\w+) \{(.*?)\}", body, re.S):
            converted = convert_fields(parse_pairs(fields))
            events.append({"name": name, "fields": [{**field, "index": False} for field in converted]})
        rest = re.sub(r"\w+ \{.*?\}", "", body, flags=re.S).strip()
        if rest:
            raise IdlError(f"idl.py: cannot read {rest!r} in an events! table")
    return events


def parse_ids(text: str) -> dict[str, str]:
    """Base58 ids by lower-case constant name."""
    found = re.findall(r'pub const (\w+): Key = decode\("(\w+)"\);', text)
    return {name.lower(): value for name, value in found}


def find_defined(types: list[Any]) -> list[str]:
    """Names of the structs that a list of fields refers to, in order of appearance."""
    names = re.findall(r'"defined": "(\w+)"', json.dumps(types))
    return list(dict.fromkeys(names))


def read_sources(folder: str) -> str:
    """All Rust files below a folder of programs/, in one text."""
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.rs")))


def make_struct(name: str, struct: Struct) -> dict[str, Any]:
    """A struct definition of the IDL."""
    return {"name": name, "type": {"kind": "struct", "fields": convert_fields(struct.fields)}}


def generate(program: str) -> dict[str, Any]:
    """The IDL of one program."""
    own, *others = SOURCES[program]
    instructions = parse_instructions((ROOT / own / "lib.rs").read_text())
    structs = parse_structs("\n".join(read_sources(folder) for folder in (own, *others)))
    # a Borsh account belongs to the program whose sources (own folder and its state crate) define it
    home_text = "\n".join(read_sources(folder) for folder in SOURCES[program] if folder.startswith(program))
    home = parse_structs(home_text)
    accounts = [make_struct(name, struct) for name, struct in home.items() if struct.is_account]
    types = [make_struct(name, structs[name]) for name in find_defined(instructions)]
    errors = [
        *parse_errors((ROOT / ERRORS[program]).read_text()),
        *parse_errors((ROOT / COMMON_ERRORS).read_text()),
    ]
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)
    address = parse_ids((ROOT / "common/src/ids.rs").read_text()).get(program)
    if version is None or address is None:
        raise IdlError(f"idl.py: no version, or no id for {program}")
    return {
        "version": version[1],
        "name": program,
        "instructions": instructions,
        "accounts": accounts,
        "types": types,
        "events": parse_events(home_text),
        "errors": errors,
        "metadata": {"address": address},
    }


def render(program: str) -> str:
    """The IDL as the text of its file."""
    return json.dumps(generate(program), indent=2) + "\n"


def main() -> None:
    """Write one file for each program."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        (out / f"{program}.json").write_text(render(program))


if __name__ == "__main__":
    main()
