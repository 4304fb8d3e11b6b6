"""DistroOptimizer: local momentum, a few signs per tile on the wire, one exact update for all replicas.

One step of one worker, and the update everybody makes (docs/distro.md tells the story in plain words):

    g        = clip(gradient)                                    local, L2 over all tensors
    momentum = decay * momentum + DCT(g)                          local, float32, DCT domain
    payload  = signs of the topk largest of every tile            those become 0 in momentum
    weights  = weights * (1 - lr * weight_decay)                  everywhere, one rounding
    weights  = weights - lr * step(IDCT(sum of all payloads))     everywhere, one rounding; see ``steps``

Without ``lr_outside_momentum`` what enters momentum is lr * DCT(g).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.compress import Compressor
from psyche_py.distro.config import DistroConfig
from psyche_py.distro.errors import DistroError
from psyche_py.distro.parameters import NamedParameters, ParamGroup
from psyche_py.distro.payload import check_payload, encode_payload
from psyche_py.distro.replica import Replica, check_lr
from psyche_py.distro.update import Aggregate, Move, move_weights
from psyche_py.errors import ConfigError


class DistroState(TypedDict):
    """What a worker needs to go on where it was; parameters are saved by their owner.

    layout: hex digest;  momentum: float32 [elements] in the DCT domain;  pending: uint8 payload or empty
    """

    layout: str
    momentum: Tensor
    pending: Tensor


class DistroOptimizer(Replica):
    """DisTrO over named parameters, or over groups of them (see ParamGroup) with rates of their own.

    Parameters given twice (tied) are one; those that need no gradient are left alone. Names matter: they
    order the payload, so every replica must use the same. All parameters are on one device and are float32,
    bfloat16 or float16; momentum is float32.
    Raises DistroError for parameters it cannot handle, ConfigError for a config it cannot.
    """

    def __init__(self, params: NamedParameters | Sequence[ParamGroup], config: DistroConfig) -> None:
        super().__init__(params, config)
        if config.is_local:
            raise ConfigError(
                "local_steps",
                f"DistroOptimizer takes one step a round, not {config.local_steps}",
                "Use LocalOptimizer, or make_optimizer, which chooses.",
            )
        layout = self.payload_layout
        self._momentum = torch.zeros(layout.num_stored, device=self.device)
        self._compressor = Compressor(layout, self._parameters, self._workspace, self._team)

    # -- local side --

    @torch.no_grad()
    def step(self, lr: float) -> bytes:
        """Fold the gradients into momentum, extract this step's message and return its payload.

        Parameters do not change; the payload also becomes the pending message. A parameter without gradient
        counts as one with gradient zero. Raises NonFiniteGradientError, with nothing changed, for NaN and
        infinity.
        """
        scale = self._compute_scale(lr)
        message = self._compressor.compress(self._momentum, self.config.compression_decay, scale)
        self._pending = encode_payload(self.payload_layout, message)
        return self._pending

    def forget_batch(self) -> None:
        """What was computed since the last ``step`` counts as a gradient of zero."""
        self.zero_grad()

    def reset(self) -> None:
        """Zero momentum, no pending message: as on the first day."""
        self._momentum.zero_()
        self._pending = b""

    def _move(
        self, aggregate: Aggregate, lr: float, data: Mapping[str, Tensor], targets: dict[str, Tensor] | None
    ) -> None:
        move = Move(aggregate, lr, self.config.step_levels, self._parameters.rates, targets is None)
        move_weights(move, data, self._workspace, self._team, targets)

    # -- for those who check --

    @property
    def momentum(self) -> Tensor:
        """float32 [num_stored] in the DCT domain, as the layout arranges it. Not a copy: only to be read."""
        return self._momentum

    @torch.no_grad()
    def transform_gradient(self, lr: float, out: Tensor | None = None) -> Tensor:
        """What ``step`` would add to momentum, float32 [num_stored]: DCT(clipped gradient), and lr times it
        without ``lr_outside_momentum``.

        Written to ``out`` (contiguous) when it is given. Nothing else changes.
        Raises NonFiniteGradientError for NaN and infinity.
        """
        scale = self._compute_scale(lr)
        result = torch.zeros_like(self._momentum) if out is None else out.zero_()
        self._compressor.add_gradients(result, scale)
        return result

    # -- state --

    def state_dict(self) -> DistroState:
        """Momentum and pending message, copied."""
        return {
            "layout": self.payload_layout.digest.hex(),
            "momentum": self._momentum.clone(),
            "pending": torch.from_numpy(np.frombuffer(self._pending, dtype=np.uint8).copy()),
        }

    def load_state_dict(self, state: DistroState) -> None:
        """Take over a state saved for the same layout; raises DistroError or PayloadError otherwise."""
        momentum, payload = state["momentum"], state["pending"].cpu().numpy().tobytes()
        if state["layout"] != self.payload_layout.digest.hex() or momentum.shape != self._momentum.shape:
            raise DistroError("The saved optimizer state is of another model or configuration.")
        if payload:
            check_payload(self.payload_layout, payload)
        self._momentum.copy_(momentum)
        self._pending = payload

    # -- inside --

    def _compute_scale(self, lr: float) -> float:
        """What gradients are multiplied with on their way into momentum."""
        check_lr(lr)
        factor = self._compute_clip_factor()
        return factor if self.config.lr_outside_momentum else lr * factor
