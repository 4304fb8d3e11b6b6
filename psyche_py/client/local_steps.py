"""A round of local steps: the batch in parts, and a private AdamW step on each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from psyche_py.distro import NonFiniteGradientError

if TYPE_CHECKING:
    from psyche_py.data.provider import TokenArray
    from psyche_py.distro import LocalOptimizer

Losses = list[tuple[float, float]]
"""(share of the batch, mean loss in nats per token)."""


def take_local_steps(
    optimizer: LocalOptimizer,
    tokens: TokenArray,
    first_sample: int,
    lr: float,
    compute: Callable[[TokenArray, int], Losses | None],
) -> Losses | None:
    """Cut ``tokens`` int64 [B, T + 1] into as many parts as the optimizer takes steps, and take them.

    A batch of fewer samples than that is as many steps as it has samples. ``compute(part, first sample)``
    leaves the gradient of a part's mean loss; None of it (stopped) is None of ours. Losses are those that
    each part had before its step. The first that is not finite, or whose gradient is not (an infinite loss
    is then reported for it), ends the round: the caller has the optimizer forget it.
    """
    losses: Losses = []
    for part in np.array_split(tokens, min(optimizer.config.local_steps, len(tokens))):
        optimizer.zero_grad()
        found = compute(part, first_sample)
        if found is None:
            return None
        share = len(part) / len(tokens)
        losses += [(share * own, loss) for own, loss in found]
        if not all(math.isfinite(loss) for _, loss in found):
            break
        try:
            optimizer.inner_step(lr)
        except NonFiniteGradientError:
            losses.append((0.0, math.inf))
            break
        first_sample += len(part)
    optimizer.zero_grad()
    return losses
