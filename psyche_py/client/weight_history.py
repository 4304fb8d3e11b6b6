"""The weights of past rounds, bit for bit, without a copy of each.

Applying results is exact: from a copy of the weights of an earlier round, the same results in the same
order of rounds lead to the same bits. So a copy is kept every few rounds and the rest is replayed; the
payloads are the ones that the mesh holds anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from psyche_py.coordinator.accusations import ROUNDS_TO_JUDGE

SPACING = 4
REACH = ROUNDS_TO_JUDGE + 1
"""Rounds that are looked back."""

Weights = dict[str, Tensor]


class Update(NamedTuple):
    """The results that were applied at a round, and with which learning rate."""

    payloads: tuple[bytes, ...]
    lr: float


class WeightHistory:
    """Copies are on the CPU. ``height`` is the round at whose start the weights were so."""

    def __init__(self) -> None:
        self._copies: dict[int, Weights] = {}
        self._updates: dict[int, Update] = {}

    def start(self, weights: Mapping[str, Tensor]) -> None:
        """An epoch begins with these weights, on which rounds 0 and 1 are trained."""
        self._copies, self._updates = {1: _copy(weights)}, {}

    def add(self, height: int, weights: Mapping[str, Tensor], payloads: Sequence[bytes], lr: float) -> None:
        """``payloads`` have just been applied at the start of round ``height``."""
        self._updates[height] = Update(tuple(payloads), lr)
        if height % SPACING == 0:
            self._copies[height] = _copy(weights)
        oldest = max((h for h in self._copies if h <= height - REACH), default=0)
        self._copies = {h: copy for h, copy in self._copies.items() if h >= oldest}
        self._updates = {h: update for h, update in self._updates.items() if h > oldest}

    def rebuild(
        self, height: int, apply: Callable[[Weights, Update], None], device: torch.device
    ) -> Weights | None:
        """The weights on which round ``height`` was trained, on ``device``; None when that is too long ago.

        ``apply(weights, update)`` changes the weights in place.
        """
        height = max(height, 1)
        start = max((h for h in self._copies if h <= height), default=None)
        steps = range(start + 1, height + 1) if start is not None else range(0)
        if start is None or any(h not in self._updates for h in steps):
            return None
        weights = {name: p.to(device, copy=True) for name, p in self._copies[start].items()}
        for h in steps:
            apply(weights, self._updates[h])
        return weights


def _copy(weights: Mapping[str, Tensor]) -> Weights:
    return {name: p.detach().to("cpu", copy=True) for name, p in weights.items()}
