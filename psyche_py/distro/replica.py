"""What every optimizer here does alike: weights that are foreseen for a while, and moved by all payloads.

An optimizer adds how a payload is made, and what a sum of payloads does to weights (``_move``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.digest import compute_model_digest
from psyche_py.distro.errors import DistroError, NonFiniteGradientError
from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.native import Team
from psyche_py.distro.parameters import NamedParameters, Parameters, ParamGroup
from psyche_py.distro.payload import check_payload
from psyche_py.distro.sharding import gather, get_local, is_sharded
from psyche_py.distro.update import Aggregate
from psyche_py.distro.workspace import Workspace


class Replica(ABC):
    """Named parameters, or groups of them (see ParamGroup), moved by payloads to the same bits everywhere."""

    def __init__(self, params: NamedParameters | Sequence[ParamGroup], config: DistroConfig) -> None:
        self.config = config
        self._parameters = Parameters(params, config)
        self._trained = self._parameters.trained
        self.device = self._parameters.device
        shapes = {name: tuple(p.shape) for name, p in self._trained.items()}
        self.payload_layout = layout = PayloadLayout.from_shapes(shapes, config)
        self._workspace, self._team = Workspace(self.device), Team()
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

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for p in self._trained.values():
            p.grad = None

    def drop_pending(self) -> None:
        """Forget the pending message: it will not be applied, so the next lookahead must not foresee it."""
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
        check_lr(lr)
        if self._true_data is not None:
            raise DistroError("A lookahead is already open.")
        pending = [payload for payload in (self._pending, *received) if payload]
        self._foreseen_messages.decode(pending)
        # Who shards a model keeps hold of the shards: their contents change, and a copy is put back.
        self._true_data = {
            name: p.data.clone() if is_sharded(p.data) else p.data for name, p in self._trained.items()
        }
        try:
            self._show(self._foresee(self._true_data, lr, bool(pending)))
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

    def _foresee(self, data: dict[str, Tensor], lr: float, is_moved: bool) -> dict[str, Tensor]:
        """What parameters hold in a lookahead; the weights themselves when no message is pending."""
        return self._move_aside(data, lr) if is_moved else data

    def _move_aside(self, data: Mapping[str, Tensor], lr: float) -> dict[str, Tensor]:
        """The weights moved by the pending messages, in tensors kept for it."""
        foreseen = self._reserve_foreseen(data)
        self._move(self._foreseen_messages, lr, data, foreseen)
        return foreseen

    def _reserve_foreseen(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the shapes and types of ``data``, kept from lookahead to lookahead."""
        if {name: (x.shape, x.dtype) for name, x in self._foreseen.items()} != {
            name: (x.shape, x.dtype) for name, x in data.items()
        }:
            self._foreseen = {name: torch.empty_like(x) for name, x in data.items()}
        return self._foreseen

    @abstractmethod
    def _move(
        self, aggregate: Aggregate, lr: float, data: Mapping[str, Tensor], targets: dict[str, Tensor] | None
    ) -> None:
        """Move weights by decoded payloads, at least one: ``data`` in place, or into ``targets`` as a
        lookahead does, without weight decay."""

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
        check_lr(lr)
        if self._true_data is not None:
            raise DistroError("Weights cannot be updated inside a lookahead.")
        if not payloads:
            return
        self.prepare(payloads)
        data = {name: p.data for name, p in self._trained.items()}
        self._move(self._aggregate, lr, data, None)
        self._decoded = []  # nobody applies it twice, and it keeps the payloads in memory

    def model_digest(self, about: bytes = b"") -> bytes:
        """SHA-256 tree over names, types, shapes and bytes of all parameters, and ``about`` (see digest.py).

        Inside a lookahead it is the digest of the true weights.
        """
        true_data = self._true_data or {}
        return compute_model_digest(
            {name: true_data.get(name, p.data) for name, p in self._parameters.all.items()}, about
        )

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


def check_lr(lr: float) -> float:
    """The learning rate; raises DistroError when it is negative or not finite."""
    if not (math.isfinite(lr) and lr >= 0.0):
        raise DistroError(f"The learning rate must not be negative, not {lr}.")
    return lr
