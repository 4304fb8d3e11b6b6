"""DistroOptimizer: local momentum, a few signs per tile on the wire, one exact update for all replicas.

One step of one worker, and the update everybody makes (docs/distro.md tells the story in plain words):

    g        = clip(gradient)                                    local, L2 over all tensors
    momentum = decay * momentum + lr * DCT(g)                     local, float32, DCT domain
    payload  = signs of the topk largest of every tile            those become 0 in momentum
    weights  = weights * (1 - lr * weight_decay)                  everywhere, one rounding
    weights  = weights - lr * sign(IDCT(sum of all payloads))     everywhere, one rounding
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.errors import DistroError, NonFiniteGradientError
from psyche_py.distro.layout import PayloadLayout, Slot, TileGroup
from psyche_py.distro.payload import (
    GroupMessage,
    Message,
    check_payload,
    decode_payload,
    encode_payload,
    make_group_message,
)
from psyche_py.distro.sparsify import get_element_indices, make_segment_table, select_topk
from psyche_py.distro.transform import update_momentum, without_autocast
from psyche_py.distro.update import move_weights

_DIGEST_DOMAIN = b"psyche-py/model-digest/1"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class DistroState(TypedDict):
    """What a worker needs to go on where it was; parameters are saved by their owner.

    layout: hex digest;  momentum: float32 [elements] in the DCT domain;  pending: uint8 payload or empty
    """

    layout: str
    momentum: Tensor
    pending: Tensor


class DistroOptimizer:
    """DisTrO over named parameters.

    Parameters given twice (tied) are one; those that need no gradient are left alone. Names matter: they
    order the payload, so every replica must use the same. All parameters are on one device and are float32,
    bfloat16 or float16.
    Raises DistroError for parameters it cannot handle, ConfigError for a config it cannot.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, Parameter]], config: DistroConfig) -> None:
        self.config = config
        self._all = _deduplicate(named_parameters)
        self._trained = {name: p for name, p in self._all.items() if p.requires_grad and p.numel() > 0}
        if not self._trained:
            raise DistroError("No parameter needs a gradient.", "Give the optimizer a model to train.")
        devices = {p.device for p in self._trained.values()}
        if len(devices) > 1:
            raise DistroError(f"Parameters are on several devices: {sorted(map(str, devices))}.")
        self.device = devices.pop()
        shapes = {name: tuple(p.shape) for name, p in self._trained.items()}
        self.payload_layout = PayloadLayout.from_shapes(shapes, config)
        self._momentum = torch.zeros(self.payload_layout.num_elements, device=self.device)
        self._tables = [make_segment_table(group, self.device) for group in self.payload_layout.groups]
        self._pending: tuple[bytes, Message] | None = None
        self._true_data: dict[str, Tensor] | None = None

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
        scale = _check_lr(lr) * self._compute_clip_factor()
        message: list[GroupMessage] = []
        with without_autocast(self.device):
            for group, table in zip(self.payload_layout.groups, self._tables, strict=True):
                buffer = self._get_group_momentum(group)
                for slot in group.slots:
                    self._update_slot(buffer, slot, scale)
                message.append(_extract_message(buffer, table, group))
        payload = encode_payload(self.payload_layout, tuple(message))
        self._pending = payload, tuple(message)
        return payload

    def drop_pending(self) -> None:
        """Forget the pending message: it will not be applied, so the next lookahead must not foresee it."""
        self._pending = None

    def reset(self) -> None:
        """Zero momentum, no pending message: as on the first day."""
        self._momentum.zero_()
        self._pending = None

    @contextmanager
    def lookahead(self, lr: float) -> Iterator[None]:
        """Inside, parameters hold ``p - lr * sign(IDCT(pending message))``: where training will be.

        The foreseen weights live in tensors of their own; on exit the true ones are put back untouched,
        whatever happened inside (exceptions, in-place changes). Without a pending message nothing moves.
        """
        _check_lr(lr)
        if self._true_data is not None:
            raise DistroError("A lookahead is already open.")
        self._true_data = {name: p.data for name, p in self._trained.items()}
        try:
            if self._pending is not None:
                foreseen = {name: data.clone() for name, data in self._true_data.items()}
                move_weights(self.payload_layout, foreseen, [self._pending[1]], lr, weight_decay=0.0)
                for name, p in self._trained.items():
                    p.data = foreseen[name]
            yield
        finally:
            for name, p in self._trained.items():
                p.data = self._true_data[name]
            self._true_data = None

    # -- shared side --

    def check_payload(self, payload: bytes) -> None:
        """Raise PayloadError unless the bytes are a payload for this model; cheap, nothing is applied."""
        check_payload(self.payload_layout, payload)

    def apply(self, payloads: Sequence[bytes], lr: float) -> None:
        """Move the weights by the sum of the payloads; the result depends on neither order nor hardware.

        All payloads are checked before any weight changes (PayloadError). No payloads: nothing happens.
        """
        _check_lr(lr)
        if self._true_data is not None:
            raise DistroError("Weights cannot be updated inside a lookahead.")
        messages = [decode_payload(self.payload_layout, payload) for payload in payloads]
        if messages:
            data = {name: p.data for name, p in self._trained.items()}
            move_weights(self.payload_layout, data, messages, lr, self.config.weight_decay)

    def model_digest(self) -> bytes:
        """SHA-256 over names, types, shapes and bytes of all parameters, in the order of their names.

        Inside a lookahead it is the digest of the true weights.
        """
        hasher = hashlib.sha256(_DIGEST_DOMAIN)
        for name, p in self._all.items():
            data = p.data if self._true_data is None else self._true_data.get(name, p.data)
            encoded, dtype = name.encode(), str(data.dtype).encode()
            hasher.update(struct.pack("<III", len(encoded), len(dtype), data.dim()) + encoded + dtype)
            hasher.update(struct.pack(f"<{data.dim()}Q", *data.shape))
            raw = data.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
            hasher.update(raw.numpy().data)
        return hasher.digest()

    # -- state --

    def state_dict(self) -> DistroState:
        """Momentum and pending message, copied."""
        payload = b"" if self._pending is None else self._pending[0]
        return {
            "layout": self.payload_layout.digest.hex(),
            "momentum": self._momentum.clone(),
            "pending": torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy()),
        }

    def load_state_dict(self, state: DistroState) -> None:
        """Take over a state saved for the same layout; raises DistroError or PayloadError otherwise."""
        momentum, payload = state["momentum"], state["pending"].cpu().numpy().tobytes()
        if state["layout"] != self.payload_layout.digest.hex() or momentum.shape != self._momentum.shape:
            raise DistroError("The saved optimizer state is of another model or configuration.")
        pending = (payload, decode_payload(self.payload_layout, payload)) if payload else None
        self._momentum.copy_(momentum)
        self._pending = pending

    # -- inside --

    def _compute_clip_factor(self) -> float:
        """Factor that brings the global L2 norm down to ``clip_grad_norm``; 1 when it is below."""
        grads = [p.grad for p in self._trained.values() if p.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise DistroError("Sparse gradients are not supported.", "Use dense embeddings.")
        norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in grads]
        total = float(torch.linalg.vector_norm(torch.stack(norms).double())) if norms else 0.0
        if not math.isfinite(total):
            raise NonFiniteGradientError(
                "The gradient is not finite.", "Skip this batch; check learning rate and data."
            )
        limit = self.config.clip_grad_norm
        return 1.0 if limit is None or total <= limit else limit / total

    def _get_group_momentum(self, group: TileGroup) -> Tensor:
        """float32 [elements]: the group's part of the momentum buffer."""
        return self._momentum[group.first_element : group.first_element + group.num_elements]

    def _update_slot(self, buffer: Tensor, slot: Slot, scale: float) -> None:
        momentum = buffer[slot.first_element : slot.first_element + slot.num_elements]
        momentum = momentum.view(slot.rows, slot.cols)
        grad = self._trained[slot.name].grad
        if grad is None:
            momentum.mul_(self.config.compression_decay)
            return
        update_momentum(
            momentum, grad.reshape(slot.rows, slot.cols), slot, self.config.compression_decay, scale
        )


def _deduplicate(named_parameters: Iterable[tuple[str, Parameter]]) -> dict[str, Parameter]:
    """Parameters by name in the order of names; a tied one keeps its first name only."""
    result: dict[str, Parameter] = {}
    seen: dict[int, str] = {}
    storages: dict[int, str] = {}
    for name, p in sorted(named_parameters, key=lambda item: item[0]):
        if name in result:
            raise DistroError(f"Two parameters are called {name}.")
        if id(p) in seen:
            continue
        seen[id(p)] = name
        result[name] = p
        if p.numel() == 0:
            continue
        if p.dtype not in _DTYPES:
            raise DistroError(f"{name} is {p.dtype}.", "Use float32, bfloat16 or float16.")
        storage = p.data.untyped_storage().data_ptr()
        if storage in storages:
            raise DistroError(
                f"{name} and {storages[storage]} are different parameters over the same memory.",
                "Tie them by using one Parameter object.",
            )
        storages[storage] = name
    return result


def _check_lr(lr: float) -> float:
    if not (math.isfinite(lr) and lr >= 0.0):
        raise DistroError(f"The learning rate must not be negative, not {lr}.")
    return lr


def _extract_message(buffer: Tensor, table: Tensor, group: TileGroup) -> GroupMessage:
    """Select the leading coefficients of a group's momentum, zero them there, and describe them."""
    selection = select_topk(buffer.view(-1, group.width), table, group.topk)
    indices = get_element_indices(table, selection.positions, group.width)
    buffer.index_fill_(0, indices.view(-1), 0.0)
    return make_group_message(selection.positions.cpu().numpy(), selection.values.cpu().numpy())
