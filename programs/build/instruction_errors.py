"""The errors that each instruction of each program can return, and the instructions of ours that it calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import idl
from rust_calls import CallGraph, Function
from rust_source import ErrorCode, IdlError, Instruction

ERROR = re.compile(r"\b(Error|Common)::(\w+)")
CALLED = re.compile(r'const (\w+): \[u8; 8\] = discriminator\("global", "(\w+)"\);')
COMMON_CRATE = idl.ROOT / "common"


class Outcome(NamedTuple):
    """What an instruction can return: errors by number, and calls whose errors it passes on."""

    errors: list[ErrorCode]
    calls: list[tuple[str, str]]
    """(program, instruction) of our other programs; their numbers are those of the program called."""


def get_guards(instruction: Instruction) -> set[str]:
    """What the `instructions!` table itself refuses, before `process` runs."""
    guards = {"InvalidInstructionData"}
    if any(not use.optional for use in instruction.accounts):
        guards.add("MissingAccount")
    if any(use.signer for use in instruction.accounts):
        guards.add("NotSigner")
    if any(use.writable for use in instruction.accounts):
        guards.add("NotWritable")
    return guards


class OutcomeFinder:
    """Reads all crates once."""

    def __init__(self) -> None:
        self.programs = {name: idl.read_program(name) for name in idl.PROGRAMS}
        self._graph = CallGraph(idl.ROOT)
        self._tables = {idl.ROOT / path.split("/src/")[0]: name for name, path in idl.ERRORS.items()}

    def find(self, program: str) -> dict[str, Outcome]:
        """Outcomes by instruction. Raises IdlError when another program's error would get out."""
        crate = idl.ROOT / idl.SOURCES[program][0].split("/")[0]
        outcomes = {}
        for instruction in self.programs[program].instructions:
            file = crate / "src" / "instructions" / f"{instruction.name}.rs"
            reached = self._graph.find_reachable(self._graph.get_function(crate, file, "process"))
            names = {("Common", name) for name in get_guards(instruction)}
            # a match on `Failure(code)` of its own: the program turns other programs' numbers into its own
            is_translating = any("Failure(" in one.body for one in reached if one.crate == crate)
            for function in reached:
                names |= self.find_names(program, instruction.name, function, is_translating)
            outcomes[instruction.name] = Outcome(
                self._get_codes(program, names), self._find_calls(program, crate, reached)
            )
        return outcomes

    def find_names(
        self, program: str, instruction: str, function: Function, is_translating: bool
    ) -> set[tuple[str, str]]:
        """(table, variant) of the errors in a function's text, but for those of another program."""
        names = set(ERROR.findall(function.body))
        foreign = {name for name in names if name[0] == "Error"}
        if not foreign or self._get_table(function.crate) == program:
            return names
        if is_translating:
            return names - foreign
        raise IdlError(
            f"instruction_errors.py: {program} {instruction} lets an error of another program through, in "
            f"{function.owner or function.file.stem}::{function.name}: its number is another error here"
        )

    def _get_table(self, crate: Path) -> str:
        """Whose `Error` it is that a crate means."""
        for used in self._graph.get_crates(crate):
            if used in self._tables:
                return self._tables[used]
        raise IdlError(f"instruction_errors.py: {crate.name} has no table of errors")

    def _get_codes(self, program: str, names: set[tuple[str, str]]) -> list[ErrorCode]:
        table = {error.name: error for error in self.programs[program].errors}
        variants = {name for _, name in names if name in table}  # the rest are functions: `Error::from`
        return sorted(table[name] for name in variants)

    def _find_calls(self, program: str, crate: Path, reached: frozenset[Function]) -> list[tuple[str, str]]:
        """By the discriminators that are named in what is reached."""
        text = "\n".join(path.read_text() for path in sorted((crate / "src").rglob("*.rs")))
        bodies = "\n".join(function.body for function in reached)
        calls = set()
        for constant, instruction in CALLED.findall(text):
            if re.search(rf"\b{constant}\b", bodies):
                owners = [
                    name
                    for name, other in self.programs.items()
                    if name != program and instruction in {entry.name for entry in other.instructions}
                ]
                if len(owners) != 1:
                    raise IdlError(f"instruction_errors.py: {instruction} is of {owners or 'no program'}")
                calls.add((owners[0], instruction))
        return sorted(calls)
