"""A short fuzzing run; benchmarks/bench_attacks.py has the long one. And: does the judge see a breach?"""

from __future__ import annotations

from dataclasses import replace

import pytest
from attack_baselines import EVERY, INSTRUCTIONS, get_honest
from attack_chain import AccountState, Outcome
from attack_fuzz import Fuzzer
from attack_oracle import find_breaches
from attack_scenes import get_scene
from solders.instruction import Instruction

from psyche_py.chain.pda import SYSTEM_PROGRAM


@pytest.mark.fuzz
def test_fuzzed_instructions_do_only_what_the_rules_allow() -> None:
    report = Fuzzer(seed=7).run(6_000)
    assert report.findings == []
    assert report.crashes == 0
    never = {".".join(key) for key in INSTRUCTIONS} - set(report.accepted)
    assert not never, f"never accepted, so never judged: {never}"


@EVERY
def test_the_judge_sees_every_doctored_outcome(key: tuple[str, str]) -> None:
    """One byte, one lamport, another owner, a change too much or too few: each must be a breach."""
    _, scene, call = get_honest(key)
    outcome = scene.chain.honest(call)
    assert find_breaches(scene.chain, call, outcome) == []
    for address, (before, after) in outcome.changes.items():
        doctored = [
            before,
            after._replace(lamports=after.lamports + 1),
            after._replace(owner=scene.run.address),
            *(after._replace(data=flip(after.data, at)) for at in range(0, len(after.data), 501)),
        ]
        for state in doctored:
            changes = {**outcome.changes, address: (before, state)}
            assert find_breaches(scene.chain, call, replace(outcome, changes=changes)), (address, state)
    assert find_breaches(scene.chain, call, with_loot(outcome, call))


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def with_loot(outcome: Outcome, call: Instruction) -> Outcome:
    """The outcome, and lamports for somebody who has nothing to do with it."""
    thief = get_scene("waiting").thief.pubkey()
    state = AccountState(1, SYSTEM_PROGRAM, b"")
    changes = {**outcome.changes, thief: (state, state._replace(lamports=2))}
    return replace(outcome, changes=changes)
