"""Looks for the dearest setting of knobs: from many starts, one knob after another turned for the worse."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Setting = dict[str, Any]
Knobs = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Worst:
    """What was found. ``units`` is 0 when no setting was accepted."""

    units: int
    setting: Setting


def search_worst(
    knobs: Knobs,
    measure: Callable[[Setting], int],
    *,
    budget: int,
    starts: Sequence[Setting] = ({},),
    seed: int = 0,
) -> Worst:
    """The setting with the highest ``measure`` among about ``budget`` tried.

    ``measure`` returns compute units, 0 where the instruction is refused. The climbs begin from ``starts``,
    where whoever wrote the knobs expects the worst: each names some choices, the others are the first ones.
    """
    rng, worst, tried = random.Random(seed), Worst(0, {}), 0
    first = {name: choices[0] for name, choices in knobs.items()}
    waiting = [{**first, **start} for start in starts]
    share = max(budget // (2 * len(waiting)), 1)
    while tried < budget:
        limit = share if waiting else budget - tried
        setting = waiting.pop(0) if waiting else _draw_start(knobs, worst, rng)
        found, used = _climb(knobs, measure, setting, limit, rng)
        tried += used
        worst = max(worst, found, key=lambda one: one.units)
    return worst


def _draw_start(knobs: Knobs, worst: Worst, rng: random.Random) -> Setting:
    """Anywhere, or the worst known with a few knobs turned at once."""
    anywhere = {name: rng.choice(choices) for name, choices in knobs.items()}
    if not worst.setting or rng.random() < 0.3:
        return anywhere
    turned = rng.sample(sorted(knobs), min(4, len(knobs)))
    return {**worst.setting, **{name: anywhere[name] for name in turned}}


def _climb(
    knobs: Knobs, measure: Callable[[Setting], int], start: Setting, budget: int, rng: random.Random
) -> tuple[Worst, int]:
    """Turn one knob after another until none makes it worse; also how many settings that took."""
    best, used = Worst(measure(start), start), 1
    is_better = True
    while is_better and used < budget:
        is_better = False
        for name in rng.sample(sorted(knobs), len(knobs)):
            for choice in knobs[name]:
                if choice == best.setting[name] or used >= budget:
                    continue
                setting = {**best.setting, name: choice}
                units, used = measure(setting), used + 1
                if units > best.units:
                    best, is_better = Worst(units, setting), True
    return best, used
