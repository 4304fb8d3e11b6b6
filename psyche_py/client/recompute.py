"""Another trainer's gradient, computed again: its weights, its batch, its lookahead point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from psyche_py.client.trainer import summarize
from psyche_py.client.weight_history import Update, WeightHistory, Weights
from psyche_py.coordinator.rules import NOT_VERIFIABLE
from psyche_py.distro import DistroOptimizer, LocalOptimizer, NonFiniteGradientError
from psyche_py.errors import ConfigError, ReplicaError
from psyche_py.verify.tiles import FloatArray, cut_tiles

if TYPE_CHECKING:
    from torch import Tensor

    from psyche_py.client.targets import SampleRange
    from psyche_py.client.trainer import Trainer


@dataclass(frozen=True)
class GradientPoint:
    """What a gradient was computed of: round, step, samples, and the payloads that the lookahead took in."""

    height: int
    step: int
    ranges: tuple[SampleRange, ...]
    foreseen: tuple[bytes, ...]


def get_verifiable(optimizer: DistroOptimizer | LocalOptimizer) -> DistroOptimizer:
    """The optimizer, if others can recompute what it sends. Raises ConfigError for local steps."""
    if not isinstance(optimizer, DistroOptimizer):
        raise ConfigError("optimizer.Distro.local_steps", *NOT_VERIFIABLE)
    return optimizer


class Recomputer:
    """Uses the trainer's model while the trainer is idle; its state is as before afterwards."""

    def __init__(self, trainer: Trainer, history: WeightHistory) -> None:
        self._trainer, self._history = trainer, history
        # with momentum of its own, never written to; the trainer's pending message must not be foreseen
        self._bench = get_verifiable(trainer.make_optimizer())

    def compute(
        self, point: GradientPoint, should_stop: Callable[[], bool], *, with_second: bool
    ) -> tuple[FloatArray, FloatArray | None] | None:
        """What the gradient adds to momentum (see ``DistroOptimizer.transform_gradient``).

        float32 [num_stored], tile-major; the second in the other precision.

        None when stopped, or when the weights of that round are no longer here.
        """
        weights = self._history.rebuild(point.height, self._apply, self._trainer.device)
        if weights is None:
            return None
        lr = self._trainer.get_lr(point.step)
        with self._use(weights), self._bench.lookahead(lr, point.foreseen):
            first = self._transform(point, lr, should_stop, in_other_precision=False)
            if first is None or not with_second:
                return None if first is None else (first, None)
            second = self._transform(point, lr, should_stop, in_other_precision=True)
            return None if second is None else (first, second)

    def _transform(
        self, point: GradientPoint, lr: float, should_stop: Callable[[], bool], *, in_other_precision: bool
    ) -> FloatArray | None:
        tokens = self._trainer.get_tokens(point.ranges)
        first_sample = point.ranges[0][0]
        self._bench.zero_grad()
        try:
            losses = self._trainer.accumulate(
                tokens, point.step, first_sample, should_stop, in_other_precision=in_other_precision
            )
            if losses is None:
                return None
            if not _is_finite(losses, point.step):
                self._bench.zero_grad()  # a trainer counts such a batch as one of gradient zero
            transformed = self._bench.transform_gradient(lr)
        except NonFiniteGradientError:
            return np.zeros(self._bench.payload_layout.num_stored, np.float32)
        finally:
            self._bench.zero_grad()
        return cut_tiles(self._bench.payload_layout, transformed.cpu().numpy())

    def _apply(self, weights: Weights, update: Update) -> None:
        with self._use(weights):
            self._bench.apply(update.payloads, update.lr)

    @contextmanager
    def _use(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, the model has these weights."""
        parameters = self._trainer.parameters
        true = {name: p.data for name, p in parameters.items()}
        try:
            for name, p in parameters.items():
                p.data = weights[name]
            yield
        finally:
            for name, p in parameters.items():
                p.data = true[name]


def _is_finite(losses: Sequence[tuple[float, float]], step: int) -> bool:
    try:
        return summarize(list(losses), step)[1]
    except ReplicaError:  # not one loss is a number
        return False
