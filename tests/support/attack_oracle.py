"""Judges what a transaction did: nothing but what the rules of attack_model and attack_money allow."""

from __future__ import annotations

import attack_money
from attack_chain import ABSENT, CRASHES, AttackChain, Outcome
from attack_model import HANDLERS, Model, Refusal
from solders.instruction import Instruction

from psyche_py.coordinator.layout import COORDINATOR_ACCOUNT

assert attack_money.__doc__, "imported for its handlers"


def find_breaches(chain: AttackChain, instruction: Instruction, outcome: Outcome) -> list[str]:
    """What is wrong with the outcome of one instruction, tried alone; empty when all is as it must be."""
    if outcome.error is not None:
        is_crash = outcome.error in CRASHES
        return [f"the program crashed: {outcome.error} {list(outcome.logs)}"] if is_crash else []
    breaches = attack_money.find_lawless(outcome)
    model = Model(chain, outcome.signers)
    try:
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


__all__ = ["HANDLERS", "find_breaches"]
