"""Learning rate as a function of the step: Psyche's four schedules (psyche.md 4.8), clamped at their ends.

All warm up linearly from ``warmup_init_lr`` (at step 0) to ``base_lr`` (at step ``warmup_steps``).
The learning rate enters every replica's weights, so cosines come from :func:`psyche_py.distro.trig.cos_pi`
and everything else is +, -, *, / on doubles: two machines never differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from psyche_py.distro.trig import cos_pi
from psyche_py.errors import ConfigError


class Schedule(Protocol):
    """Anything that gives the learning rate of a step."""

    def get_lr(self, step: int) -> float:
        """Learning rate of ``step`` (0, 1, ...); never negative."""
        ...


def _check_plain_numbers(schedule: Constant | Linear | Cosine | WarmupStableDecay) -> None:
    for item in fields(schedule):
        value = getattr(schedule, item.name)
        if not math.isfinite(value) or value < 0:
            raise ConfigError(item.name, f"must be a finite number that is not negative, not {value}")


def _get_warmup_lr(step: int, warmup_steps: int, init: float, base: float) -> float:
    return init + (base - init) * (step / warmup_steps)


def _get_cosine_lr(step: int, num_steps: int, start: float, end: float) -> float:
    """Half a cosine from ``start`` (step 0) to ``end`` (step ``num_steps``)."""
    return end + (start - end) * (0.5 * (1.0 + float(cos_pi(step, num_steps))))


@dataclass(frozen=True)
class Constant:
    """Warm-up, then ``base_lr`` for ever."""

    base_lr: float
    warmup_steps: int = 0
    warmup_init_lr: float = 0.0

    def __post_init__(self) -> None:
        _check_plain_numbers(self)

    def get_lr(self, step: int) -> float:
        """Learning rate of ``step``."""
        if step < self.warmup_steps:
            return _get_warmup_lr(step, self.warmup_steps, self.warmup_init_lr, self.base_lr)
        return self.base_lr


@dataclass(frozen=True)
class Linear:
    """Warm-up, a straight line to ``final_lr`` at ``total_steps``, then ``final_lr``."""

    base_lr: float
    total_steps: int
    final_lr: float = 0.0
    warmup_steps: int = 0
    warmup_init_lr: float = 0.0

    def __post_init__(self) -> None:
        _check_plain_numbers(self)

    def get_lr(self, step: int) -> float:
        """Learning rate of ``step``."""
        if step < self.warmup_steps:
            return _get_warmup_lr(step, self.warmup_steps, self.warmup_init_lr, self.base_lr)
        if step >= self.total_steps:
            return self.final_lr
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.base_lr + (self.final_lr - self.base_lr) * progress


@dataclass(frozen=True)
class Cosine:
    """Warm-up, half a cosine to ``final_lr`` at ``total_steps``, then ``final_lr`` (Psyche goes up again)."""

    base_lr: float
    total_steps: int
    final_lr: float = 0.0
    warmup_steps: int = 0
    warmup_init_lr: float = 0.0

    def __post_init__(self) -> None:
        _check_plain_numbers(self)

    def get_lr(self, step: int) -> float:
        """Learning rate of ``step``."""
        if step < self.warmup_steps:
            return _get_warmup_lr(step, self.warmup_steps, self.warmup_init_lr, self.base_lr)
        if step >= self.total_steps:
            return self.final_lr
        num_steps = self.total_steps - self.warmup_steps
        return _get_cosine_lr(step - self.warmup_steps, num_steps, self.base_lr, self.final_lr)


@dataclass(frozen=True)
class WarmupStableDecay:
    """Warm-up, flat, half a cosine to its final rate, a line to ``linear_decay_final_lr``, flat."""

    base_lr: float
    stable_steps: int
    cosine_decay_steps: int
    cosine_decay_final_lr: float
    linear_decay_steps: int
    linear_decay_final_lr: float
    warmup_steps: int = 0
    warmup_init_lr: float = 0.0

    def __post_init__(self) -> None:
        _check_plain_numbers(self)
        if not self.base_lr >= self.cosine_decay_final_lr >= self.linear_decay_final_lr:
            raise ConfigError(
                "cosine_decay_final_lr",
                "base_lr, cosine_decay_final_lr and linear_decay_final_lr must not increase in this order",
            )

    def get_lr(self, step: int) -> float:
        """Learning rate of ``step``."""
        if step < self.warmup_steps:
            return _get_warmup_lr(step, self.warmup_steps, self.warmup_init_lr, self.base_lr)
        step -= self.warmup_steps
        if step < self.stable_steps:
            return self.base_lr
        step -= self.stable_steps
        if step < self.cosine_decay_steps:
            return _get_cosine_lr(step, self.cosine_decay_steps, self.base_lr, self.cosine_decay_final_lr)
        step -= self.cosine_decay_steps
        if step < self.linear_decay_steps:
            fall = self.cosine_decay_final_lr - self.linear_decay_final_lr
            return self.cosine_decay_final_lr - fall * (step / self.linear_decay_steps)
        return self.linear_decay_final_lr
