"""The IDL as Anchor 0.30 and newer read it (specification 0.1.0).

It carries discriminators, keeps Rust's names, and says of each struct how its bytes lie: `bytemuck` and
`repr(C)` for what the program reads in place. Borsh bytes are the same there, since no struct has hidden
padding; so a client that knows only Borsh decodes the zero-copy account too.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from rust_source import Event, Field, Instruction, Kind, Struct

if TYPE_CHECKING:
    from idl import Program

SPECIFICATION = "0.1.0"


def compute_discriminator(space: str, name: str) -> list[int]:
    """The first 8 bytes of sha256("space:name")."""
    return list(hashlib.sha256(f"{space}:{name}".encode()).digest()[:8])


def add_docs(entry: dict[str, Any], docs: list[str]) -> dict[str, Any]:
    """``docs`` behind the name, where there are any."""
    if not docs:
        return entry
    name = entry.pop("name")
    return {"name": name, "docs": docs, **entry}


def convert_kind(kind: Kind) -> Any:
    """A type."""
    if kind.name == "defined":
        return {"defined": {"name": kind.defined}}
    if kind.item is None:
        return kind.name
    item = convert_kind(kind.item)
    return {kind.name: [item, kind.length] if kind.name == "array" else item}


def convert_fields(fields: list[Field]) -> list[dict[str, Any]]:
    """Named fields or arguments."""
    return [add_docs({"name": field.name, "type": convert_kind(field.kind)}, field.docs) for field in fields]


def convert_instruction(instruction: Instruction) -> dict[str, Any]:
    """One instruction; flags that are false are left out."""
    accounts: list[dict[str, Any]] = []
    for use in instruction.accounts:
        flags = {"writable": use.writable, "signer": use.signer, "optional": use.optional}
        accounts.append({"name": use.name, **{flag: True for flag, is_set in flags.items() if is_set}})
    entry = {
        "name": instruction.name,
        "discriminator": compute_discriminator("global", instruction.name),
        "accounts": accounts,
        "args": convert_fields(instruction.args),
    }
    return add_docs(entry, instruction.docs)


def convert_struct(struct: Struct) -> dict[str, Any]:
    """The definition of a struct or account."""
    entry: dict[str, Any] = {"name": struct.name}
    if struct.is_repr_c:
        entry |= {"serialization": "bytemuck", "repr": {"kind": "c"}}
    entry["type"] = {"kind": "struct", "fields": convert_fields(struct.fields)}
    return add_docs(entry, struct.docs)


def convert_event(event: Event) -> dict[str, Any]:
    """The definition of an event's fields."""
    fields = convert_fields(event.fields)
    return add_docs({"name": event.name, "type": {"kind": "struct", "fields": fields}}, event.docs)


def make_entry(space: str, name: str) -> dict[str, Any]:
    """An account or event where the IDL lists them."""
    return {"name": name, "discriminator": compute_discriminator(space, name)}


def generate(program: Program) -> dict[str, Any]:
    """The IDL of one program."""
    return {
        "address": program.address,
        "metadata": {
            "name": program.name,
            "version": program.version,
            "spec": SPECIFICATION,
            "description": " ".join(program.docs),
        },
        "instructions": [convert_instruction(instruction) for instruction in program.instructions],
        "accounts": [make_entry("account", account.name) for account in program.accounts],
        "events": [make_entry("event", event.name) for event in program.events],
        "errors": [
            {"code": error.code, "name": error.name, "msg": error.message} for error in program.errors
        ],
        "types": [
            *(convert_struct(struct) for struct in program.types),
            *(convert_struct(account) for account in program.accounts),
            *(convert_event(event) for event in program.events),
        ],
    }
