"""Holds every refusal that a test meets against docs/instructions.md, which is derived from the sources."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

from solders.instruction import Instruction

BUILD = Path(__file__).resolve().parents[2] / "programs" / "build"


@cache
def read_outcomes() -> dict[str, dict[str, Any]]:
    """Outcomes (programs/build/instruction_errors.py) by program and instruction."""
    sys.path.insert(0, str(BUILD))
    try:
        from instruction_errors import OutcomeFinder

        finder = OutcomeFinder()
        return {name: finder.find(name) for name in finder.programs}
    finally:
        sys.path.remove(str(BUILD))


@cache
def find_documented(address: str, tag: bytes) -> dict[str, set[str]]:
    """Names of the errors that an instruction can end with, by the program that refuses."""
    from psyche_py.chain.anchor import find_program

    program = find_program(address)
    if program is None:
        return {}
    outcomes = read_outcomes()
    for name, outcome in outcomes[program.name].items():
        if hashlib.sha256(f"global:{name}".encode()).digest()[:8] == tag:
            documented = {program.name: {error.name for error in outcome.errors}}
            for called, instruction in outcome.calls:
                errors = {error.name for error in outcomes[called][instruction].errors}
                documented[called] = documented.get(called, set()) | errors
            return documented
    return {program.name: {"InvalidInstructionData"}}


def check_documented(instruction: Instruction, program: str, error: str) -> None:
    """``program`` has refused ``instruction``, or a call that it made, with ``error``."""
    documented = find_documented(str(instruction.program_id), bytes(instruction.data)[:8])
    if documented:
        assert error in documented.get(program, set()), f"{error} of {program} is not in docs/instructions.md"
