"""Reads the subset of Rust in which the programs say what they are: tables, structs, constants, documentation.

It stops with a message at anything else. idl.py, idl_anchor30.py and reference.py build on what comes out.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

SIMPLE = {
    **{name: name for name in ("u8", "u16", "u32", "u64", "u128", "i64", "f32", "f64", "bool")},
    "Key": "pubkey",
    "Text": "string",
    "String": "string",
    "Bytes": "bytes",
    "Vec<u8>": "bytes",
}
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u128": 16, "i64": 8, "f32": 4, "f64": 8, "bool": 1}


class IdlError(SystemExit):
    """The sources hold something that this generator does not understand."""


class Kind(NamedTuple):
    """A type: ``name`` is a simple one, "defined", or "option", "vec", "array" of ``item``."""

    name: str
    item: Kind | None = None
    length: int = 0
    defined: str = ""


class Field(NamedTuple):
    """A field or an argument."""

    name: str
    kind: Kind
    docs: list[str]


class Struct(NamedTuple):
    """A struct: a Borsh account, a zero-copy account (repr C, discriminator first), or a part of either."""

    name: str
    fields: list[Field]
    docs: list[str]
    is_borsh_account: bool
    is_repr_c: bool
    is_zero_copy_account: bool


class AccountUse(NamedTuple):
    """An account of an instruction."""

    name: str
    signer: bool
    writable: bool
    optional: bool = False


class Instruction(NamedTuple):
    """One line of an `instructions!` table."""

    name: str
    docs: list[str]
    accounts: list[AccountUse]
    args: list[Field]


class Event(NamedTuple):
    """One entry of an `events!` table."""

    name: str
    docs: list[str]
    fields: list[Field]


class ErrorCode(NamedTuple):
    """One entry of an `errors!` table."""

    code: int
    name: str
    message: str


def read_docs(text: str) -> list[str]:
    """The lines of `///` comments."""
    lines = [line.strip() for line in text.splitlines()]
    return [line.removeprefix("///").strip() for line in lines if line.startswith("///")]


def split_list(text: str) -> list[str]:
    """Splits at commas outside of brackets and of comments; a trailing comma is fine."""
    items, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if text.startswith("//", at):
            at = text.find("\n", at)
            if at < 0:
                break
        depth += (text[at] in "<[(") - (text[at] in ">])")
        if text[at] == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
        at += 1
    return [item.strip() for item in (*items, text[start:]) if item.strip()]


class Constants:
    """Constants and type aliases of the sources, evaluated when a type needs them."""

    def __init__(self, text: str) -> None:
        self.texts = dict(re.findall(r"^pub const (\w+): usize = ([^;]+);", text, re.M))
        self.aliases = dict(re.findall(r"^pub type (\w+) = (.+);$", text, re.M))

    def compute(self, expression: str) -> int:
        """An array's length: numbers, names and + - * /."""
        try:
            return self._compute(ast.parse(expression.strip(), mode="eval").body)
        except (SyntaxError, KeyError):
            raise IdlError(f"idl.py: cannot compute the length {expression!r}") from None

    def _compute(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return self.compute(self.texts[node.id])
        if isinstance(node, ast.BinOp):
            left, right = self._compute(node.left), self._compute(node.right)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Div):
                return left // right
        raise KeyError(node)

    def parse_kind(self, rust: str) -> Kind:
        """A Rust type."""
        rust = re.sub(r"\s+", " ", rust.strip()).removeprefix("&'static ").strip()
        if rust in SIMPLE:
            return Kind(SIMPLE[rust])
        if match := re.fullmatch(r"Option<(.+)>", rust):
            return Kind("option", self.parse_kind(match[1]))
        if match := re.fullmatch(r"Raw<(\w+)>", rust):
            return Kind("defined", defined=match[1])
        if match := re.fullmatch(r"\[(.+); ([^;\]]+)\]", rust):
            return Kind("array", self.parse_kind(match[1]), self.compute(match[2]))
        if rust in ("Keys", "Vec<Key>"):
            return Kind("vec", Kind("pubkey"))
        if rust in self.aliases:
            return self.parse_kind(self.aliases[rust])
        raise IdlError(f"idl.py: no IDL type for the Rust type {rust!r}")

    def parse_fields(self, text: str, defined: tuple[str, ...] = ()) -> list[Field]:
        """`name: type, name: type`, each with its documentation; ``defined`` are structs that may be fields."""
        fields = []
        for item in split_list(text):
            match = re.fullmatch(r"((?:\s*(?:///|//|#\[)[^\n]*\n)*)\s*(?:pub )?(\w+): (.+)", item, re.S)
            if match is None:
                raise IdlError(f"idl.py: {item!r} is no field")
            docs, name, rust = match.groups()
            fields.append(Field(name, self._parse_field_kind(rust, defined), read_docs(docs)))
        return fields

    def _parse_field_kind(self, rust: str, defined: tuple[str, ...]) -> Kind:
        if rust in defined:
            return Kind("defined", defined=rust)
        match = re.fullmatch(r"\[(\w+); ([^;\]]+)\]", rust)
        if match and match[1] in defined:
            return Kind("array", Kind("defined", defined=match[1]), self.compute(match[2]))
        return self.parse_kind(rust)


DISCRIMINATOR_FIELD = ("discriminator", Kind("array", Kind("u8"), 8))
STRUCT = re.compile(r"((?:^(?:#\[|///)[^\n]*\n)*)^pub struct (\w+) \{\n(.*?)^\}", re.M | re.S)


class Structs:
    """Structs with public fields, by name; a struct is read when it is asked for."""

    def __init__(self, text: str, constants: Constants) -> None:
        self._constants = constants
        self._found: dict[str, tuple[str, str]] = {}
        for attributes, name, body in STRUCT.findall(text):
            # the Borsh layout wins over a view of the same name
            if "#[cfg(any())]" in attributes or name not in self._found:
                self._found[name] = (attributes, body)

    def get(self, name: str) -> Struct:
        """The struct of this name. Raises IdlError when there is none, or it cannot be read."""
        if name not in self._found:
            raise IdlError(f"idl.py: no struct {name}")
        attributes, body = self._found[name]
        is_repr_c = "#[repr(C)]" in attributes
        known = tuple(other for other, (text, _) in self._found.items() if "#[repr(C)]" in text)
        fields = self._constants.parse_fields(body, known)
        return Struct(
            name,
            fields,
            read_docs(attributes),
            "#[cfg(any())]" in attributes,
            is_repr_c,
            is_repr_c and bool(fields) and fields[0][:2] == DISCRIMINATOR_FIELD,
        )

    def get_accounts(self) -> list[Struct]:
        """All accounts, in the order of the sources."""
        marked = [
            name
            for name, (attributes, body) in self._found.items()
            if "#[cfg(any())]" in attributes or "pub discriminator: [u8; 8]," in body
        ]
        return [self.get(name) for name in marked]

    def find_parts(self, kinds: list[Kind]) -> list[Struct]:
        """The structs that these types name, and what those name, in order of appearance."""
        found: dict[str, Struct] = {}
        for kind in kinds:
            while kind.item is not None:
                kind = kind.item
            if kind.name == "defined" and kind.defined not in found:
                struct = found[kind.defined] = self.get(kind.defined)
                for part in self.find_parts([field.kind for field in struct.fields]):
                    found.setdefault(part.name, part)
        return list(found.values())

    def compute_layout(self, kind: Kind) -> tuple[int, int]:
        """(size, alignment) of a type under repr(C). Raises IdlError at padding that is not spelled out."""
        if kind.name == "array" and kind.item is not None:
            size, alignment = self.compute_layout(kind.item)
            return size * kind.length, alignment
        if kind.name == "pubkey":
            return 32, 1
        if kind.name != "defined":
            return SIZES[kind.name], SIZES[kind.name]
        offset, widest = 0, 1
        for field in self.get(kind.defined).fields:
            size, alignment = self.compute_layout(field.kind)
            if offset % alignment:
                raise IdlError(f"idl.py: {kind.defined} has hidden padding before {field.name}")
            offset, widest = offset + size, max(widest, alignment)
        if offset % widest:
            raise IdlError(f"idl.py: {kind.defined} has hidden padding at its end")
        return offset, widest


def parse_errors(text: str) -> list[ErrorCode]:
    """`errors! { Name from 6000 { Variant = "message", } }`"""
    match = re.search(r"^(?:psyche_common::)?errors! \{\n.*? from (\d+) \{\n(.*?)^    \}", text, re.M | re.S)
    if match is None:
        raise IdlError("idl.py: no errors! table")
    entries = re.findall(r'(\w+) = "([^"]*)",', match[2])
    return [ErrorCode(int(match[1]) + i, name, message) for i, (name, message) in enumerate(entries)]


def parse_instructions(text: str, constants: Constants) -> list[Instruction]:
    """The `instructions!` table of a program's lib.rs."""
    table = re.search(r"^psyche_common::instructions! \{\n(.*?)^\}", text, re.M | re.S)
    if table is None:
        raise IdlError("idl.py: no instructions! table")
    pattern = re.compile(r"((?:\s*///[^\n]*\n)*)\s*(\w+)\s*\[(.*?)\]\s*\((.*?)\);", re.S)
    instructions, end = [], 0
    for match in pattern.finditer(table[1]):
        _refuse_rest(table[1][end : match.start()], "instructions!")
        end = match.end()
        docs, name, accounts, arguments = match.groups()
        uses = [[part.strip() for part in item.split(":", 1)] for item in split_list(accounts)]
        instructions.append(
            Instruction(
                name,
                read_docs(docs),
                [AccountUse(account, "s" in flags, "w" in flags, flags == "o") for account, flags in uses],
                constants.parse_fields(arguments),
            )
        )
    _refuse_rest(table[1][end:], "instructions!")
    return instructions


def parse_events(text: str, constants: Constants) -> list[Event]:
    """The `events!` tables of a program: `Name { field: type, }`."""
    events = []
    pattern = re.compile(r"((?:\s*///[^\n]*\n)*)\s*(\w+) \{((?:\s*///[^\n]*\n|[^}/])*)\}", re.S)
    for table in re.findall(r"^(?:psyche_common::)?events! \{\n(.*?)^\}", text, re.M | re.S):
        end = 0
        for match in pattern.finditer(table):
            _refuse_rest(table[end : match.start()], "events!")
            end = match.end()
            events.append(Event(match[2], read_docs(match[1]), constants.parse_fields(match[3])))
        _refuse_rest(table[end:], "events!")
    return events


def _refuse_rest(text: str, table: str) -> None:
    if text.strip():
        raise IdlError(f"idl.py: cannot read {text.strip()!r} in an {table} table")


def parse_ids(text: str) -> dict[str, str]:
    """Base58 ids by lower-case constant name."""
    found = re.findall(r'pub const (\w+): Key = decode\("(\w+)"\);', text)
    return {name.lower(): value for name, value in found}


def read_module_docs(text: str) -> list[str]:
    """The `//!` lines at the top of a file, or behind its first attribute."""
    return [line.removeprefix("//!").strip() for line in text.splitlines() if line.startswith("//!")]
