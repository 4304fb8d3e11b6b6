"""Our own instructions in one transaction, in orders that nobody meant."""

from __future__ import annotations

import random

import pytest
from attack_baselines import BASELINES
from attack_oracle import judge
from attack_scenes import STATES, get_scene
from solders.instruction import Instruction

CALLS = [key for key, base in BASELINES.items() if base.state == "waiting"]


def list_calls(state: str) -> dict[str, Instruction]:
    """Honest calls that belong into a scene of ``state``."""
    scene = get_scene(state)
    keys = [key for key, base in BASELINES.items() if base.state in (state, "waiting")]
    return {".".join(key): BASELINES[key].build(scene) for key in keys}


@pytest.mark.parametrize("key", CALLS, ids=[".".join(key) for key in CALLS])
def test_every_pair_in_both_orders(key: tuple[str, str]) -> None:
    """Each instruction with each that works on the same accounts, itself too."""
    scene, calls = get_scene("waiting"), list_calls("waiting")
    name = ".".join(key)
    mine = {meta.pubkey for meta in calls[name].accounts if meta.is_writable}
    tried = 0
    for other, call in calls.items():
        if other < name or not mine & {meta.pubkey for meta in call.accounts}:
            continue
        for order in ((calls[name], call), (call, calls[name])):
            judge(scene.chain, f"{name} and {other}", *order)
            tried += 1
    assert tried


@pytest.mark.parametrize("state", STATES)
def test_random_orders(state: str) -> None:
    """Three to five instructions at random, some of them twice, from every state."""
    scene, calls = get_scene(state), list_calls(state)
    rng = random.Random(state)
    accepted = 0
    for _ in range(60):
        names = rng.choices(sorted(calls), k=rng.choice([3, 4, 5]))
        outcome = judge(scene.chain, f"in {state}: {', '.join(names)}", *(calls[name] for name in names))
        accepted += outcome.error is None
    assert accepted, "nothing was accepted, so nothing was judged"
