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

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.compress import Compressor
from psyche_py.distro.config import DistroConfig
from psyche_py.distro.digest import compute_model_digest
from psyche_py.distro.errors import DistroError, NonFiniteGradientError
from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.native import Team
from psyche_py.distro.parameters import NamedParameters, Parameters, ParamGroup
from psyche_py.distro.payload import check_payload, encode_payload
from psyche_py.distro.sharding import gather, get_local, is_sharded
from psyche_py.distro.update import Aggregate, Move, move_weights
from psyche_py.distro.workspace import Workspace


class DistroState(TypedDict):
    """What a worker needs to go on where it was; parameters are saved by their owner.

    layout: hex digest;  momentum: float32 [elements] in the DCT domain;  pending: uint8 payload or empty
    """

    layout: str
    momentum: Tensor
    pending: Tensor


class DistroOptimizer:
    """DisTrO over named parameters, or over groups of them (see ParamGroup) with rates of their own.

    Parameters given twice (tied) are one; those that need no gradient are left alone. Names matter: they
    order the payload, so every replica must use the same. All parameters are on one device and are float32,
    bfloat16 or float16; momentum is float32.
    Raises DistroError for parameters it cannot handle, ConfigError for a config it cannot.
    """

    def __init__(self, params: NamedParameters | Sequence[ParamGroup], config: DistroConfig) -> None:
        self.config = config
        self._parameters = Parameters(params, config)
        self._trained = self._parameters.trained
        self.device = self._parameters.device
        shapes = {name: tuple(p.shape) for name, p in self._trained.items()}
        self.payload_layout = layout = PayloadLayout.from_shapes(shapes, config)
        self._momentum = torch.zeros(layout.num_stored, device=self.device)
        self._workspace, self._team = Workspace(self.device), Team()
        self._compressor = Compressor(layout, self._parameters, self._workspace, self._team)
        self._aggregate, self._foreseen_messages = Aggregate(layout), Aggregate(layout)
        self._decoded: list[bytes] = []  # what the aggregate holds
        self._pending = b""
        self._foreseen: dict[str, Tensor] = {}
        self._true_data: dict[str, Tensor] | None = None

    @property
    def param_groups(self) -> list[dict[str, object]]:
        """Names and rates of the parameters, grouped by rates."""
        groups: dict[tuple[float, float], list[str]] = {}
        for name in self._parameters.all:
            groups.setdefault(self._parameters.rates[name], []).append(name)
        return [
            {"names": names, "lr_scale": lr_scale, "weight_decay": weight_decay}
            for (lr_scale, weight_decay), names in groups.items()
        ]

    # -- local side --

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for p in self._trained.values():
            p.grad = None

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

    def drop_pending(self) -> None:
        """Forget the pending message: it will not be applied, so the next lookahead must not foresee it."""
        self._pending = b""

    def reset(self) -> None:
        """Zero momentum, no pending message: as on the first day."""
        self._momentum.zero_()
        self._pending = b""

    @contextmanager
    def lookahead(self, lr: float, received: Sequence[bytes] = ()) -> Iterator[None]:
        """Inside, parameters hold ``p - lr * step(IDCT(pending messages))``: where training will be.

        Pending are the own message and those in ``received``: payloads of the others that will be applied
        with it and are here already. With all of them the point is the one that synchronous training would
        be at. All are public, so others can recompute it, if they are told which were taken.

        The foreseen weights live in tensors of their own; on exit the true ones are put back untouched,
        whatever happened inside (exceptions, in-place changes). Without a pending message nothing moves.
        Raises PayloadError, with nothing changed, when one of ``received`` is no payload.
        """
        _check_lr(lr)
        if self._true_data is not None:
            raise DistroError("A lookahead is already open.")
        pending = [payload for payload in (self._pending, *received) if payload]
        self._foreseen_messages.decode(pending)
        # Who shards a model keeps hold of the shards: their contents change, and a copy is put back.
        self._true_data = {
            name: p.data.clone() if is_sharded(p.data) else p.data for name, p in self._trained.items()
        }
        try:
            if pending:
                self._show(self._foresee(self._true_data, lr))
            yield
        finally:
            self._show(self._true_data)
            self._true_data = None

    def _show(self, data: dict[str, Tensor]) -> None:
        """Let the parameters have other contents."""
        for name, p in self._trained.items():
            if is_sharded(p.data):
                get_local(p.data).copy_(get_local(data[name]))
            else:
                p.data = data[name]

    def _foresee(self, data: dict[str, Tensor], lr: float) -> dict[str, Tensor]:
        """The weights moved by the pending messages, without weight decay, in tensors kept for it."""
        if {name: (x.shape, x.dtype) for name, x in self._foreseen.items()} != {
            name: (x.shape, x.dtype) for name, x in data.items()
        }:
            self._foreseen = {name: torch.empty_like(x) for name, x in data.items()}
        move = self._make_move(self._foreseen_messages, lr, with_decay=False)
        move_weights(move, data, self._workspace, self._team, self._foreseen)
        return self._foreseen

    def _make_move(self, aggregate: Aggregate, lr: float, *, with_decay: bool = True) -> Move:
        return Move(aggregate, lr, self.config.step_levels, self._parameters.rates, with_decay)

    # -- shared side --

    def check_payload(self, payload: bytes) -> None:
        """Raise PayloadError unless the bytes are a payload for this model; cheap, nothing is applied."""
        check_payload(self.payload_layout, payload)

    def prepare(self, payloads: Sequence[bytes]) -> None:
        """Do ahead what ``apply`` of the same payloads in the same order begins with: decode them.

        Nothing visible changes, and ``apply`` of others is as right as ever. Raises PayloadError. It is the
        larger part of an update by many payloads.
        """
        if self._decoded == list(payloads):
            return
        self._decoded = []
        self._aggregate.decode(payloads)
        self._decoded = list(payloads)

    def apply(self, payloads: Sequence[bytes], lr: float) -> None:
        """Move the weights by the sum of the payloads; the result depends on neither order nor hardware.

        All payloads are checked before any weight changes (PayloadError). No payloads: nothing happens.
        """
        _check_lr(lr)
        if self._true_data is not None:
            raise DistroError("Weights cannot be updated inside a lookahead.")
        if not payloads:
            return
        self.prepare(payloads)
        data = {name: p.data for name, p in self._trained.items()}
        move_weights(self._make_move(self._aggregate, lr), data, self._workspace, self._team)
        self._decoded = []  # nobody applies it twice, and it keeps the payloads in memory

    def model_digest(self, about: bytes = b"") -> bytes:
        """SHA-256 tree over names, types, shapes and bytes of all parameters, and ``about`` (see digest.py).

        Inside a lookahead it is the digest of the true weights.
        """
        true_data = self._true_data or {}
        return compute_model_digest(
            {name: true_data.get(name, p.data) for name, p in self._parameters.all.items()}, about
        )

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
        _check_lr(lr)
        factor = self._compute_clip_factor()
        return factor if self.config.lr_outside_momentum else lr * factor

    def _compute_clip_factor(self) -> float:
        """Factor that brings the global L2 norm down to ``clip_grad_norm``; 1 when it is below."""
        grads = [p.grad for p in self._trained.values() if p.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise DistroError("Sparse gradients are not supported.", "Use dense embeddings.")
        norms = [torch.linalg.vector_norm(gather(grad), dtype=torch.float32) for grad in grads]
        total = float(torch.linalg.vector_norm(torch.stack(norms).double())) if norms else 0.0
        if not math.isfinite(total):
            raise NonFiniteGradientError(
                "The gradient is not finite.", "Skip this batch; check learning rate and data."
            )
        limit = self.config.clip_grad_norm
        return 1.0 if limit is None or total <= limit else limit / total


def _check_lr(lr: float) -> float:
    if not (math.isfinite(lr) and lr >= 0.0):
        raise DistroError(f"The learning rate must not be negative, not {lr}.")
    return lr
