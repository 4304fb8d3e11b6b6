"""A LiteSVM that notes what each instruction of our programs has cost, with all that it called."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from functools import cache
from typing import Any

from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import TransactionMetadata

from psyche_py.chain.anchor import to_snake
from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id, read_idl
from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM

_LINE = re.compile(r"Program (\w+) (invoke \[\d+\]|success|failed|consumed (\d+) of)")
TOKENS = (
    (TOKEN_PROGRAM, ()),
    (TOKEN_2022_PROGRAM, ()),
    (TOKEN_2022_PROGRAM, ("MetadataPointer", "GroupPointer", "GroupMemberPointer")),
)
"""Token programs, and the extensions that a mint may have: what the programs are measured with."""


@cache
def get_instruction_names() -> dict[tuple[Pubkey, bytes], tuple[str, str]]:
    """Program and instruction by program id and discriminator."""
    names = {}
    for program in PROGRAM_NAMES:
        for entry in read_idl(program)["instructions"]:
            name = to_snake(entry["name"])
            tag = hashlib.sha256(f"global:{name}".encode()).digest()[:8]
            names[get_program_id(program), tag] = (program, name)
    return names


def read_units(logs: list[str]) -> list[int]:
    """Compute units of each instruction of a transaction, in order; 0 for programs built into the chain."""
    depth, units = 0, []
    for line in logs:
        found = _LINE.match(line)
        if found is None:
            continue
        if found[2].startswith("invoke"):
            depth += 1
            if depth == 1:
                units.append(0)
        elif found[3] is None:
            depth -= 1
        elif depth == 1:
            units[-1] = int(found[3])
    return units


def merge_worst(worst: dict[str, int], more: dict[str, int]) -> None:
    """Keep the dearer of each."""
    for name, units in more.items():
        worst[name] = max(worst.get(name, 0), units)


class RecordingSvm:
    """Passes everything on to ``svm``; ``worst[program][instruction]`` are units."""

    def __init__(self, svm: Any) -> None:
        self._svm = svm
        self.worst: dict[str, dict[str, int]] = defaultdict(dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._svm, name)

    def send_transaction(self, transaction: Transaction) -> Any:
        """Send it, and note what it cost if it was accepted."""
        result = self._svm.send_transaction(transaction)
        if isinstance(result, TransactionMetadata):
            self._note(transaction, result.logs())
        return result

    def _note(self, transaction: Transaction, logs: list[str]) -> None:
        keys, names = transaction.message.account_keys, get_instruction_names()
        for instruction, units in zip(transaction.message.instructions, read_units(logs), strict=True):
            key = (keys[instruction.program_id_index], bytes(instruction.data[:8]))
            if key in names:
                program, name = names[key]
                self.worst[program][name] = max(self.worst[program].get(name, 0), units)
