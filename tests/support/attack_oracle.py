"""Judges what a transaction did: nothing but what attack_laws.py and the rules of each program allow."""

from __future__ import annotations

from collections.abc import Sequence

import attack_airdrop
import attack_bonds
import attack_coordinator
import attack_pool
import attack_treasurer
from attack_chain import ABSENT, CRASHES, AttackChain, Outcome
from attack_laws import find_lawless
from attack_model import HANDLERS, Model, Refusal
from solders.instruction import Instruction

from psyche_py.coordinator.layout import COORDINATOR_ACCOUNT

RULES = (attack_airdrop, attack_bonds, attack_coordinator, attack_pool, attack_treasurer)
"""Imported for their handlers."""


def find_breaches(chain: AttackChain, instruction: Instruction, outcome: Outcome) -> list[str]:
    """What is wrong with the outcome of one instruction, tried alone; empty when all is as it must be."""
    return find_breaches_of_all(chain, [instruction], outcome)


def find_breaches_of_all(
    chain: AttackChain, instructions: Sequence[Instruction], outcome: Outcome
) -> list[str]:
    """The same for a transaction of several of our instructions."""
    if outcome.error is not None:
        is_crash = outcome.error in CRASHES
        return [f"the program crashed: {outcome.error} {list(outcome.logs)}"] if is_crash else []
    breaches = find_lawless(chain, outcome)
    model = Model(chain, outcome.signers)
    try:
        for instruction in instructions:
            model.apply(instruction)
    except Refusal as refusal:
        return [*breaches, f"accepted, but the rules say: {refusal}"]
    for address in {*model.accounts, *outcome.changes}:
        before = chain.get_state(address)
        expected = model.accounts.get(address, before)
        found = outcome.changes.get(address, (before, before))[1]
        # an account emptied of lamports is gone, whatever its bytes were
        if (expected if expected.lamports else ABSENT) != found:
            breaches.append(f"{address} differs from the rules in {describe(expected, found)}")
    return breaches


def judge(chain: AttackChain, what: str, *instructions: Instruction) -> Outcome:
    """An attack that may be refused by any name, or do nothing but what the rules say. Nothing is kept."""
    outcome = chain.attempt(*instructions)
    breaches = find_breaches_of_all(chain, instructions, outcome)
    chain.judge(what, not breaches, outcome, breaches)
    return outcome


def judge_and_keep(chain: AttackChain, what: str, *instructions: Instruction) -> Outcome:
    """The same; what is accepted is kept."""
    outcome = judge(chain, what, *instructions)
    if outcome.error is None:
        chain.commit(*instructions)
    return outcome


def describe(expected: object, found: object) -> str:
    """Which fields of two account states differ."""
    names = [name for name in ("lamports", "owner") if getattr(expected, name) != getattr(found, name)]
    left, right = expected.data, found.data  # type: ignore[attr-defined]
    if left != right:
        fields = COORDINATOR_ACCOUNT.fields
        assert fields is not None
        spans = {name: (offset, offset + kind.itemsize) for name, (kind, offset, *_) in fields.items()}
        is_run = len(left) == len(right) == COORDINATOR_ACCOUNT.itemsize
        inside = [name for name, (start, end) in spans.items() if left[start:end] != right[start:end]]
        names.append(f"data ({', '.join(inside) if is_run else f'{left.hex()} {right.hex()}'})")
    return ", ".join(names)


__all__ = ["HANDLERS", "find_breaches", "find_breaches_of_all", "judge", "judge_and_keep"]
