"""Hyperparameters of DisTrO, checked once when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from psyche_py.errors import ConfigError

MAX_TOPK = 64
MAX_CHUNK = 256
MAX_STEP_LEVELS = 64
MAX_LOCAL_STEPS = 64


@dataclass(frozen=True)
class DistroConfig:
    """What every replica of a run must agree on, learning rate apart.

    compression_decay:  momentum kept per step, in [0, 1); .999 for short runs, .995 at scale
    compression_topk:   coefficients sent per tile, 1..64
    compression_chunk:  largest tile side, 1..256; the side used is the largest divisor that fits
    quantize_1bit:      must be True: only signs travel (unquantised values are not implemented)
    clip_grad_norm:     bound on the L2 norm of the local gradient, or None
    weight_decay:       decoupled weight decay, multiplied by the learning rate
    step_levels:        sizes a step may have, 1..64: 1 moves by the sign of the sum of votes, more move
                        linearly in it, up to twice the learning rate (see ``steps``)
    lr_outside_momentum:  gradients enter momentum as they are, not times the learning rate of their step
    vocab_lr_scale:     multiplies the learning rate of embedding and head, for who takes its parameter groups
                        from ``group_parameters``
    local_steps:        1: a gradient a round, sent as signs of DCT coefficients. 2..64: so many private AdamW
                        steps a round, and what is sent is how far they went (see ``local``);
                        compression_decay is then of what was not sent yet, and step_levels and
                        lr_outside_momentum mean nothing
    adam_beta1, adam_beta2, adam_eps:  of these AdamW steps

    Raises ConfigError naming the first rule that is broken.
    """

    compression_decay: float = 0.999
    compression_topk: int = 8
    compression_chunk: int = 64
    quantize_1bit: bool = True
    clip_grad_norm: float | None = 1.0
    weight_decay: float = 0.0
    step_levels: int = 16
    lr_outside_momentum: bool = True
    vocab_lr_scale: float = 4.0
    local_steps: int = 1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8

    @property
    def is_local(self) -> bool:
        """Whether trainers take steps of their own before they send."""
        return self.local_steps > 1

    def __post_init__(self) -> None:
        if not self.quantize_1bit:
            raise ConfigError(
                "quantize_1bit",
                "unquantised payloads are not implemented: replicas stay bit-identical only with signs",
                "Set quantize_1bit = true.",
            )
        if not 0.0 <= self.compression_decay < 1.0:
            raise ConfigError("compression_decay", f"must be in [0, 1), not {self.compression_decay}")
        if not 1 <= self.compression_topk <= MAX_TOPK:
            raise ConfigError("compression_topk", f"must be in 1..{MAX_TOPK}, not {self.compression_topk}")
        if not 1 <= self.compression_chunk <= MAX_CHUNK:
            raise ConfigError("compression_chunk", f"must be in 1..{MAX_CHUNK}, not {self.compression_chunk}")
        clip = self.clip_grad_norm
        if clip is not None and not (math.isfinite(clip) and clip > 0.0):
            raise ConfigError(
                "clip_grad_norm", f"must be positive, not {clip}", "Leave it out for no clipping."
            )
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0.0):
            raise ConfigError("weight_decay", f"must not be negative, not {self.weight_decay}")
        if not 1 <= self.step_levels <= MAX_STEP_LEVELS:
            raise ConfigError("step_levels", f"must be in 1..{MAX_STEP_LEVELS}, not {self.step_levels}")
        if not (math.isfinite(self.vocab_lr_scale) and self.vocab_lr_scale > 0.0):
            raise ConfigError("vocab_lr_scale", f"must be above 0, not {self.vocab_lr_scale}")
        self._check_local_steps()

    def _check_local_steps(self) -> None:
        if not 1 <= self.local_steps <= MAX_LOCAL_STEPS:
            raise ConfigError("local_steps", f"must be in 1..{MAX_LOCAL_STEPS}, not {self.local_steps}")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(name, f"must be in [0, 1), not {getattr(self, name)}")
        if not (math.isfinite(self.adam_eps) and self.adam_eps > 0.0):
            raise ConfigError("adam_eps", f"must be positive, not {self.adam_eps}")
