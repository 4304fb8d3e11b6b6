"""How far a sum of votes moves a weight: whole units from -levels to levels, decided by integers.

``transform`` gives every weight an exact integer X, 0 where nobody said anything. A weight moves by
``units``:

    units(X) = round_half_even(clamp(float(X * slope), -levels, levels))

With one level the slope is 1, which is the sign of X, and the unit is the learning rate. With more, the
step is linear in X: the learning rate where X is as large as the RMS of N messages that never meet would
be, 2**(sides * bits) * sqrt(N * k / 2**sides) (see :func:`transform.get_precision` for bits and sides), and
at most CLIP times it. Where trainers agree X is larger than that, and where only noise speaks it is
smaller.

X and slope are numbers of one float type, their product is rounded once (IEEE 754), and rounding keeps
order: so this is a comparison of X with integer thresholds that follow from N, k and the tile alone. A unit
has so few bits that ``units * unit`` is exact: weights see one rounding, fused or not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.layout import TileGroup
from psyche_py.distro.transform import get_precision

CLIP = 2
_FLOAT32_BITS = 24


class StepRule(NamedTuple):
    """From an exact sum to units. ``slope`` is a number of ``dtype``, in which the product is made."""

    levels: int
    slope: float
    dtype: torch.dtype


def get_step_rule(group: TileGroup, num_messages: int, levels: int) -> StepRule:
    """The rule for a sum of ``num_messages`` messages: a function of this number, the tile and the levels."""
    bits, dtype = get_precision(group, num_messages)
    if levels == 1:
        return StepRule(1, 1.0, dtype)
    sides = (group.height > 1) + (group.width > 1)
    rms = 2.0 ** (sides * bits) * math.sqrt(num_messages * group.topk / 2**sides)
    slope = levels / (CLIP * rms)
    return StepRule(levels, float(np.float32(slope)) if dtype == torch.float32 else slope, dtype)


def count_units(sums: Tensor, rule: StepRule) -> Tensor:
    """Units of exact sums, in place where their type is the rule's; every zero is +0.0.

    -0.0 would turn a weight of -0.0 into +0.0 on some paths only.
    """
    x = sums if sums.dtype == rule.dtype else sums.to(rule.dtype)
    if rule.slope != 1.0:
        x.mul_(rule.slope)
    x.clamp_(-rule.levels, rule.levels)
    return (x if rule.levels == 1 else x.round_()).add_(0.0)


def compute_unit(rate: float, levels: int) -> float:
    """A unit of a step at a learning rate: a float32 number that times 1 .. levels is one too."""
    if levels == 1:
        return float(np.float32(rate))
    fraction, exponent = math.frexp(CLIP * rate / levels)
    bits = _FLOAT32_BITS - levels.bit_length()
    return math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)
