"""Where a round's time goes: the way from its first moment to its last, along whoever was waited for.

A round ends when its last witness lands. That witness waited for the last client to say Finished, and that
client for its batch. So seven stages follow each other, and their sum is the round.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from psyche_py.sim.timeline import RoundTimes


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds of one round.

    ``update``: from the slot that begins it until the client that will be waited for sees it; ``apply``:
    until it trains; ``train``: until it has its result; ``payloads``: until the others' results of the round
    before are there, too, and it says Finished; ``announcement``: until the witness that attests last has
    heard it; ``transaction``: until what that attests is where it can land, a blockhash included; ``slot``:
    until the slot ends in which it lands.
    """

    update: float
    apply: float
    train: float
    payloads: float
    announcement: float
    transaction: float
    slot: float


STAGES = tuple(field.name for field in fields(Stages))


def compute_stages(times: RoundTimes) -> Stages | None:
    """None for a round that ended otherwise: by its time limit, or without training."""
    if not times.end or not times.submitted or not times.finished:
        return None
    witness = max(times.submitted, key=lambda number: (times.submitted[number], number))
    heard = {number: time for number, time in times.finished.items() if time <= times.witnessed[witness]}
    last = max(heard, key=lambda number: (heard[number], number), default=None)
    if last is None or last not in times.trained or last not in times.training:
        return None
    passed = (
        times.start,
        times.begun[last],
        times.training[last],
        times.trained[last],
        times.finished[last],
        times.witnessed[witness],
        times.submitted[witness],
        times.end,
    )
    return Stages(*(after - before for before, after in pairwise(passed)))


def summarise_stages(stages: Sequence[Stages]) -> dict[str, tuple[float, float]]:
    """Median and 95th percentile of each stage (seconds), by its name. Needs at least one round."""
    summary = {}
    for name in STAGES:
        seconds = sorted(getattr(one, name) for one in stages)
        place = min(round(0.95 * (len(seconds) - 1)), len(seconds) - 1)
        summary[name] = statistics.median(seconds), seconds[place]
    return summary
