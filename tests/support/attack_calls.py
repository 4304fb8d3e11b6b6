"""Honest calls: what one is, how one is registered, and where an instruction's accounts stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attack_scenes import Scene, get_scene
from solders.instruction import Instruction

from psyche_py.chain.anchor import get_program, to_snake
from psyche_py.chain.artifacts import PROGRAM_NAMES, read_idl


@dataclass(frozen=True)
class Baseline:
    """An honest call: in which scene it is right, and how it is made there."""

    program: str
    name: str
    state: str
    build: Callable[[Scene], Instruction]

    @property
    def slots(self) -> list[str]:
        """Names of the instruction's accounts."""
        return get_slots(self.program, self.name)

    def get(self) -> tuple[Scene, Instruction]:
        """The shared scene and the call."""
        scene = get_scene(self.state)
        return scene, self.build(scene)


BASELINES: dict[tuple[str, str], Baseline] = {}


def baseline(
    program: str, name: str, state: str = "waiting"
) -> Callable[[Callable[[Scene], Any]], Callable[[Scene], Any]]:
    """Register a function of a scene that returns an Instruction, or (accounts, arguments) of one."""

    def register(make: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
        def build(scene: Scene) -> Instruction:
            made = make(scene)
            return made if isinstance(made, Instruction) else get_program(program).encode(name, *made)

        BASELINES[program, name] = Baseline(program, name, state, build)
        return make

    return register


def get_slots(program: str, name: str) -> list[str]:
    """Names of an instruction's accounts, in snake_case."""
    entries = read_idl(program)["instructions"]
    entry = next(entry for entry in entries if to_snake(entry["name"]) == name)
    return [to_snake(account["name"]) for account in entry["accounts"]]


def list_instructions() -> Iterator[tuple[str, str]]:
    """(program, instruction) of everything in the IDLs."""
    for program in PROGRAM_NAMES:
        for name in get_program(program).instruction_names:
            yield program, name
