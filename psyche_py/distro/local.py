"""LocalOptimizer: several private steps a round, the largest parts of their way sent, one exact outer step.

SparseLoCo's method without its transform, on our wire (docs/distro.md, "Local steps"). A round of a worker:

    way      = what local_steps AdamW steps subtracted from the weights     private, see ``inner``
    unsent   = decay * unsent + way                                          private, float32
    payload  = per tile: signs of the topk largest of unsent, and their mean magnitude
    unsent   = unsent - payload
    weights  = weights - mean of all payloads                                everywhere; see ``outer``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.errors import DistroError
from psyche_py.distro.inner import InnerAdamW
from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.magnitudes import MAGNITUDES, UNIT, choose_codes
from psyche_py.distro.outer import OuterStep, compute_limit, move_outer
from psyche_py.distro.parameters import NamedParameters, ParamGroup
from psyche_py.distro.payload import (
    GroupMessage,
    check_payload,
    encode_payload,
    get_position_dtype,
    make_group_message,
)
from psyche_py.distro.replica import Replica, check_lr
from psyche_py.distro.sharding import is_sharded
from psyche_py.distro.sparsify import get_element_indices, make_segment_table, select_topk
from psyche_py.distro.update import Aggregate
from psyche_py.errors import ConfigError


class LocalState(TypedDict):
    """What a worker needs to go on where it was; parameters are saved by their owner.

    layout: hex digest;  unsent: float32 [elements, padded];  moments: float32 [2, elements];
    num_steps: AdamW steps taken;  pending: uint8 payload or empty
    """

    layout: str
    unsent: Tensor
    moments: Tensor
    num_steps: int
    pending: Tensor


class LocalOptimizer(Replica):
    """Local steps over named parameters, or over groups of them (see ParamGroup) with rates of their own.

    A round of a worker is ``with lookahead(...): for each part of the batch: backward, inner_step``, then
    ``step``. Steps count when ``step`` has been called: a round that was left before has not happened.
    Parameters are float32, whole, on one device; names matter as they do to DistroOptimizer.
    Raises DistroError for parameters it cannot handle, ConfigError for a config it cannot.
    """

    def __init__(self, params: NamedParameters | Sequence[ParamGroup], config: DistroConfig) -> None:
        super().__init__(params, config)
        if not config.is_local:
            raise ConfigError(
                "local_steps",
                "LocalOptimizer takes at least 2 steps a round",
                "Use DistroOptimizer, or make_optimizer, which chooses.",
            )
        for name, p in self._trained.items():
            if p.dtype != torch.float32 or is_sharded(p.data):
                raise DistroError(f"{name} is not a whole float32 tensor.", "Local steps take no other.")
        self._inner = InnerAdamW(self._parameters, config)
        self._unsent = torch.zeros(self.payload_layout.num_stored, device=self.device)
        self._tables = [make_segment_table(group, self.device) for group in self.payload_layout.groups]

    # -- local side --

    def inner_step(self, lr: float) -> None:
        """One AdamW step by the gradients at hand, clipped; only inside of a lookahead.

        Raises NonFiniteGradientError for NaN and infinity, with nothing changed.
        """
        check_lr(lr)
        if self._true_data is None:
            raise DistroError("Local steps are taken inside of a lookahead.", "They would move the weights.")
        self._inner.step(lr, self._compute_clip_factor())

    @torch.no_grad()
    def step(self, lr: float) -> bytes:
        """Add the way of the local steps to what is unsent, and return the payload of its largest parts.

        Parameters do not change; the payload also becomes the pending message.
        """
        check_lr(lr)
        self._unsent.mul_(self.config.compression_decay)
        message = tuple(self._compress(i, lr) for i in range(len(self.payload_layout.groups)))
        self._inner.commit()
        self._pending = encode_payload(self.payload_layout, message)
        return self._pending

    def forget_batch(self) -> None:
        """What was computed since the last ``step`` counts as no way at all."""
        self.zero_grad()
        self._inner.roll_back()

    def reset(self) -> None:
        """Nothing unsent, moments of zero, no pending message: as on the first day."""
        self._unsent.zero_()
        self._inner.load(torch.zeros_like(self._inner.moments), 0)
        self._pending = b""

    def _foresee(self, data: dict[str, Tensor], lr: float, is_moved: bool) -> dict[str, Tensor]:
        """Always copies: local steps move what parameters hold."""
        self._inner.begin()
        if is_moved:
            return self._move_aside(data, lr)
        foreseen = self._reserve_foreseen(data)
        for name, x in data.items():
            foreseen[name].copy_(x)
        return foreseen

    def _move(
        self, aggregate: Aggregate, lr: float, data: Mapping[str, Tensor], targets: dict[str, Tensor] | None
    ) -> None:
        step = OuterStep(aggregate, lr, self.config.local_steps, self._parameters.rates)
        move_outer(step, data, self._workspace, targets)

    def _compress(self, index: int, lr: float) -> GroupMessage:
        """Add the way to the unsent part of a group's tiles, and take a message out of it."""
        group = self.payload_layout.groups[index]
        buffer = self._unsent[group.first_element : group.first_element + group.num_stored]
        for slot in group.slots:
            self._add_way(slot, buffer)
        segments = buffer.view(-1, group.width)
        positions, values = select_topk(segments, self._tables[index], group.topk, None)
        codes = torch.cat([self._choose_codes(slot, values, lr) for slot in group.slots])
        sizes = torch.from_numpy(MAGNITUDES)[codes.cpu()].to(self.device).to(torch.float32) * UNIT
        sent = torch.sign(values) * sizes[:, None]
        indices = get_element_indices(self._tables[index], positions, group.width)
        buffer.index_add_(0, indices.view(-1), sent.view(-1), alpha=-1.0)
        return _make_message(group, positions, sent, codes)

    def _add_way(self, slot: Slot, buffer: Tensor) -> None:
        rows, cols = slot.padded_shape
        matrix = buffer[slot.first_element : slot.first_element + rows * cols].view(rows, cols)
        if slot.name:
            matrix[: slot.rows, : slot.cols] += self._inner.ways[slot.name].reshape(slot.rows, slot.cols)
            return
        flat = self._workspace.take("ways", (slot.rows * slot.cols,)).zero_()
        for member in slot.members:
            flat[member.first : member.first + member.num_elements] = self._inner.ways[member.name].reshape(
                -1
            )
        matrix[: slot.rows, : slot.cols] += flat.view(slot.rows, slot.cols)

    def _choose_codes(self, slot: Slot, values: Tensor, lr: float) -> Tensor:
        """Codes of the mean magnitudes of a slot's tiles: int64 [tiles], 0 for tiles of zeros."""
        own = values[slot.first_tile : slot.first_tile + slot.num_tiles].abs()
        means = own.sum(1) / (own > 0).sum(1).clamp_(min=1)
        return choose_codes(means, compute_limit(slot, lr, self.config.local_steps, self._parameters.rates))

    # -- state --

    def state_dict(self) -> LocalState:
        """What is unsent, moments and pending message as of the last ``step``, copied."""
        return {
            "layout": self.payload_layout.digest.hex(),
            "unsent": self._unsent.clone(),
            "moments": self._inner.moments.clone(),
            "num_steps": self._inner.num_steps,
            "pending": torch.from_numpy(np.frombuffer(self._pending, dtype=np.uint8).copy()),
        }

    def load_state_dict(self, state: LocalState) -> None:
        """Take over a state saved for the same layout; raises DistroError or PayloadError otherwise."""
        payload = state["pending"].cpu().numpy().tobytes()
        is_same = state["layout"] == self.payload_layout.digest.hex()
        is_same = is_same and state["unsent"].shape == self._unsent.shape
        if not is_same or state["moments"].shape != self._inner.moments.shape:
            raise DistroError("The saved optimizer state is of another model or configuration.")
        if payload:
            check_payload(self.payload_layout, payload)
        self._unsent.copy_(state["unsent"])
        self._inner.load(state["moments"], state["num_steps"])
        self._pending = payload


def _make_message(group: TileGroup, positions: Tensor, sent: Tensor, codes: Tensor) -> GroupMessage:
    """The canonical form of what was sent: [tiles, topk], and codes [tiles]."""
    signs = make_group_message(positions.cpu().numpy(), sent.cpu().numpy(), get_position_dtype(group))
    return GroupMessage(signs.positions, signs.signs, codes.cpu().numpy().astype(np.uint8))
