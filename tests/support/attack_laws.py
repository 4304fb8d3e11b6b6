"""What no transaction of ours may do to money, whatever its instruction."""

from __future__ import annotations

from collections import Counter

from attack_chain import Outcome
from attack_tokens import TOKEN_PROGRAMS, TOKEN_SIZE, read_u64

from psyche_py.chain.pda import SYSTEM_PROGRAM


def find_lawless(outcome: Outcome) -> list[str]:
    """Each breach in words.

    Tokens are neither made nor lost; lamports neither; only those who sign, or accounts of our own programs
    (which have their own rules), get poorer; nothing is left without rent.
    """
    breaches = []
    tokens: Counter[bytes] = Counter()
    for address, (before, after) in outcome.changes.items():
        for state, sign in ((before, -1), (after, 1)):
            if state.owner in TOKEN_PROGRAMS and len(state.data) == TOKEN_SIZE:
                tokens[state.data[:32]] += sign * read_u64(state.data, 64)
        is_poorer = after.lamports < before.lamports
        if is_poorer and before.owner == SYSTEM_PROGRAM and address not in outcome.signers:
            breaches.append(f"{address} pays without signing")
    total = sum(after.lamports - before.lamports for before, after in outcome.changes.values())
    if total:
        breaches.append(f"{total} lamports out of nowhere")
    if any(tokens.values()):
        breaches.append(f"tokens out of nowhere: {tokens}")
    return breaches
