"""Which samples a trainer trains in a round (psyche.md 1.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.coordinator.committee import compute_committee
from psyche_py.coordinator.layout import Committee

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount, Round

LCG_MULTIPLIER = 6364136223846793005
LCG_INCREMENT = 1442695040888963407
MASK = (1 << 64) - 1


def compute_lcg_shuffle(items: list[int], seed: int) -> list[int]:
    """Fisher-Yates with a 64-bit linear congruential generator, as Psyche shuffles its trainers."""
    shuffled, state = list(items), seed
    for i in range(len(shuffled) - 1, 0, -1):
        state = (state * LCG_MULTIPLIER + LCG_INCREMENT) & MASK
        j = state % (i + 1)
        shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
    return shuffled


def compute_assignment(account: CoordinatorAccount, round_: Round) -> dict[int, tuple[int, int]]:
    """First and last sample id (inclusive) by epoch client index; everybody trains but the verifiers.

    Tie-breakers train as well: a dispute costs no round, and small runs have enough of them.

    The ranges are contiguous from the round's data index, cover its batch exactly, and differ in size by one
    at most; a trainer that gets nothing is left out.
    """
    committees = compute_committee(account, round_)
    trainers = [index for index, committee in committees.items() if committee is not Committee.Verifier]
    if not trainers or round_.batch_size == 0:
        return {}
    base, extra = divmod(round_.batch_size, len(trainers))
    start, assignment = round_.data_index, {}
    for turn, index in enumerate(compute_lcg_shuffle(trainers, round_.random_seed)):
        size = base + (turn < extra)
        if size:
            assignment[index] = (start, start + size - 1)
            start += size
    return assignment
