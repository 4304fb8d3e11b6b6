#!/usr/bin/env python3
"""Writes the reference of the programs from their sources; `make docs` calls this.

reference.py            write docs/instructions.md, and the states in docs/protocol.md
reference.py --check    fail unless both are what the sources say
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import idl
from instruction_errors import Outcome, OutcomeFinder
from rust_source import SIZES, ErrorCode, Event, Field, IdlError, Instruction, Kind, Struct

REPOSITORY = idl.ROOT.parent
INSTRUCTIONS = REPOSITORY / "docs" / "instructions.md"
PROTOCOL = REPOSITORY / "docs" / "protocol.md"
STATES = re.compile(r"(<!-- states: written by `make docs` -->\n).*?(<!-- end of states -->)", re.S)
FIRST_COMMON_ERROR = 6100
GUARDS = ("InvalidInstructionData", "MissingAccount", "NotSigner", "NotWritable")
"""Every instruction can give these, so they are said once."""

INTRODUCTION = """# Instructions, accounts, errors and events

Written by `make docs` from `programs/`; [the protocol](protocol.md) says what it is for. The same is in the IDLs in
`psyche_py/chain/idl`, in two shapes: `NAME.json` for anchorpy, `NAME.anchor30.json` for Anchor 0.30 and newer.

An instruction's data are its tag, the first 8 bytes of sha256("global:NAME"), and its arguments in Borsh. Its
accounts come in the order given; further ones are ignored. Everything is little-endian. An account begins with the
first 8 bytes of sha256("account:NAME"); offsets count them.

Every instruction can be refused with InvalidInstructionData, MissingAccount, NotSigner and NotWritable, before
anything of it runs; what else it can be refused with stands with it. When it calls another program, that program's
refusals are passed on, and their numbers are that program's: the log tells which program failed.
"""


def show_kind(kind: Kind) -> str:
    """A type as people write it."""
    if kind.item is None:
        return kind.defined or kind.name
    item = show_kind(kind.item)
    return {"option": f"Option<{item}>", "vec": f"Vec<{item}>", "array": f"[{item}; {kind.length}]"}[
        kind.name
    ]


def escape(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")


def show_list(items: list[str]) -> str:
    """Code words with commas, or "none"."""
    return ", ".join(f"`{item}`" for item in items) or "none"


def show_tag(space: str, name: str) -> str:
    """A discriminator in hex."""
    return f"`{hashlib.sha256(f'{space}:{name}'.encode()).digest()[:8].hex()}`"


# ---- instructions -----------------------------------------------------------------------------------------


def show_accounts(instruction: Instruction) -> str:
    """Accounts with what is asked of each."""
    shown = []
    for use in instruction.accounts:
        words = (("signs", use.signer), ("writable", use.writable), ("optional", use.optional))
        asked = [word for word, is_asked in words if is_asked]
        shown.append(f"`{use.name}`" + (f" ({', '.join(asked)})" if asked else ""))
    return ", ".join(shown) or "none"


def render_instruction(instruction: Instruction, outcome: Outcome) -> Iterator[str]:
    """One instruction."""
    yield f"#### {instruction.name}\n"
    yield from (f"{line}" for line in instruction.docs)
    yield f"\n- tag: {show_tag('global', instruction.name)}"
    yield f"- accounts: {show_accounts(instruction)}"
    yield f"- arguments: {show_list([f'{arg.name}: {show_kind(arg.kind)}' for arg in instruction.args])}"
    own = [error.name for error in outcome.errors if error.name not in GUARDS]
    yield f"- errors: {', '.join(own) or 'none of its own'}"
    if outcome.calls:
        passed = [f"`{name}` of the {program}" for program, name in outcome.calls]
        yield f"- passes on the errors of {', '.join(passed)}"
    yield ""


# ---- accounts, structs, events ----------------------------------------------------------------------------


def compute_size(program: idl.Program, kind: Kind) -> int | None:
    """Bytes in Borsh; None when it depends on the value."""
    if kind.name == "pubkey":
        return 32
    if kind.name == "array" and kind.item is not None:
        size = compute_size(program, kind.item)
        return None if size is None else size * kind.length
    if kind.name == "defined":
        return compute_total(program, program.structs.get(kind.defined).fields)
    return SIZES.get(kind.name)


def compute_total(program: idl.Program, fields: list[Field]) -> int | None:
    """Bytes of several fields; None when one of them has no fixed size."""
    total = 0
    for field in fields:
        size = compute_size(program, field.kind)
        if size is None:
            return None
        total += size
    return total


def render_fields(program: idl.Program, fields: list[Field], offset: int | None) -> Iterator[str]:
    """A table of fields with their offsets, as far as those are fixed."""
    yield "| offset | bytes | field | type | |"
    yield "|---|---|---|---|---|"
    for field in fields:
        size = compute_size(program, field.kind)
        at = "" if offset is None else str(offset)
        docs = escape(" ".join(field.docs))
        yield f"| {at} | {size or ''} | {field.name} | `{show_kind(field.kind)}` | {docs} |"
        offset = None if offset is None or size is None else offset + size
    yield ""


def render_account(program: idl.Program, account: Struct) -> Iterator[str]:
    """One account."""
    total = compute_total(program, account.fields)
    size = "" if total is None else f" {total + 8:,} bytes."
    layout = "Read and written in place (`repr(C)`)." if account.is_zero_copy_account else "Borsh."
    yield f"#### {account.name}\n"
    yield from account.docs
    yield f"\n{layout}{size} Tag {show_tag('account', account.name)}.\n"
    yield from render_fields(program, account.fields, 8)


def render_struct(program: idl.Program, struct: Struct) -> Iterator[str]:
    """A part of an account or argument."""
    total = compute_total(program, struct.fields)
    yield f"#### {struct.name}\n"
    yield from struct.docs
    yield "" if total is None else f"\n{total:,} bytes.\n"
    yield from render_fields(program, struct.fields, 0)


def render_event(program: idl.Program, event: Event) -> Iterator[str]:
    """One event."""
    yield f"#### {event.name}\n"
    yield from event.docs
    yield f"\nTag {show_tag('event', event.name)}; offsets count it.\n"
    yield from render_fields(program, event.fields, 8)


def render_errors(errors: list[ErrorCode]) -> Iterator[str]:
    """A table of errors."""
    yield "| number | error | |"
    yield "|---|---|---|"
    yield from (f"| {error.code} | {error.name} | {escape(error.message)} |" for error in errors)
    yield ""


# ---- the files --------------------------------------------------------------------------------------------


def render_program(program: idl.Program, outcomes: dict[str, Outcome]) -> Iterator[str]:
    """The chapter of one program."""
    yield f"## The {program.name.replace('_', ' ')}\n"
    yield from program.docs
    yield f"\nProgram `{program.address}`, version {program.version}.\n"
    yield "### Instructions\n"
    for instruction in program.instructions:
        yield from render_instruction(instruction, outcomes[instruction.name])
    yield f"### Accounts of the {program.name.replace('_', ' ')}\n"
    for account in program.accounts:
        yield from render_account(program, account)
    if program.types:
        yield f"### Structs of the {program.name.replace('_', ' ')}\n"
    for struct in program.types:
        yield from render_struct(program, struct)
    if program.events:
        yield f"### Events of the {program.name.replace('_', ' ')}\n"
        yield 'In the transaction\'s log, as "Program data: " and base64 of the tag and the fields in Borsh.\n'
    for event in program.events:
        yield from render_event(program, event)
    yield f"### Errors of the {program.name.replace('_', ' ')}\n"
    yield from render_errors([error for error in program.errors if error.code < FIRST_COMMON_ERROR])


def render_instructions() -> str:
    """docs/instructions.md."""
    finder = OutcomeFinder()
    lines = [INTRODUCTION]
    for name, program in finder.programs.items():
        lines += render_program(program, finder.find(name))
    lines.append("## Errors that every program can give\n")
    common = finder.programs[idl.PROGRAMS[0]].errors
    lines += render_errors([error for error in common if error.code >= FIRST_COMMON_ERROR])
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def render_protocol() -> str:
    """docs/protocol.md with the states of the rule book's table between the marks."""
    sys.path.insert(0, str(REPOSITORY))
    from psyche_py.coordinator.transitions import render_diagram, render_table

    text = PROTOCOL.read_text()
    block = f"```mermaid\n{render_diagram()}\n```\n\n{render_table()}\n"
    changed, num = STATES.subn(lambda match: match[1] + block + match[2], text)
    if num != 1:
        raise IdlError(f"reference.py: {PROTOCOL} has {num} places for the states, not one")
    return changed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    is_check = parser.parse_args().check
    for path, text in ((INSTRUCTIONS, render_instructions()), (PROTOCOL, render_protocol())):
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path.relative_to(REPOSITORY)} is not what the sources say: run `make docs`.")


if __name__ == "__main__":
    main()
