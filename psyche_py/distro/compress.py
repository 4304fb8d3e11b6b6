"""From gradients to a message: one step of one trainer's momentum, group by group.

    momentum = decay * momentum + scale * DCT(gradient);  message = the topk largest of every tile

A group goes through compiled kernels where they fit (see ``native`` for CPUs, ``triton_choice`` for GPUs),
which take a tile from its gradient to its message while it is at hand, or through torch: a whole group is
transformed, then searched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.layout import PayloadLayout, Slot, TileGroup
from psyche_py.distro.native import Team, is_native, make_update_task, split_bands
from psyche_py.distro.parameters import Parameters
from psyche_py.distro.payload import GroupMessage, Message, get_position_dtype, make_group_message
from psyche_py.distro.sharding import gather, is_sharded
from psyche_py.distro.sparsify import (
    get_element_indices,
    is_hierarchical,
    make_segment_table,
    record_highest,
    select_topk,
)
from psyche_py.distro.transform import update_momentum, without_autocast
from psyche_py.distro.triton_choice import can_fold, load_launcher
from psyche_py.distro.workspace import Workspace


class Compressor:
    """Folds the gradients of parameters into a momentum buffer [layout.num_stored] and takes messages out."""

    def __init__(
        self, layout: PayloadLayout, parameters: Parameters, workspace: Workspace, team: Team
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        self._workspace, self._team = workspace, team
        self._device = workspace.device
        self._tables: dict[int, Tensor] = {}

    def compress(self, momentum: Tensor, decay: float, scale: float) -> Message:
        """Decay the momentum, add the gradients times ``scale``, and take the message out of it."""
        with without_autocast(self._device):
            return tuple(
                self._compress_group(i, _get_buffer(group, momentum), decay, scale)
                for i, group in enumerate(self._layout.groups)
            )

    def add_gradients(self, momentum: Tensor, scale: float) -> None:
        """Add the gradients times ``scale`` to ``momentum``; nothing is taken out."""
        with without_autocast(self._device):
            for group in self._layout.groups:
                buffer = _get_buffer(group, momentum)
                if is_native(group, self._device):
                    self._fold_native(group, buffer, 1.0, scale, _make_message(group, 0))
                    continue
                for slot in group.slots:
                    self._fold_torch(buffer, None, slot, 1.0, scale)

    def _compress_group(self, index: int, buffer: Tensor, decay: float, scale: float) -> GroupMessage:
        group = self._layout.groups[index]
        if is_native(group, self._device):
            return self._compress_native(group, buffer, decay, scale)
        if can_fold(group, self._get_gradient_types(group), self._device):
            return self._compress_on_gpu(group, buffer, decay, scale)
        return self._compress_torch(index, buffer, decay, scale)

    # -- compiled --

    def _compress_native(self, group: TileGroup, buffer: Tensor, decay: float, scale: float) -> GroupMessage:
        message = _make_message(group, group.topk)
        self._fold_native(group, buffer, decay, scale, message)
        return message

    def _fold_native(
        self, group: TileGroup, buffer: Tensor, decay: float, scale: float, message: GroupMessage
    ) -> None:
        tasks = []
        for slot in group.slots:
            gradient, factor = self._get_gradient(slot)
            momentum = _get_matrix(slot, buffer)
            for bands in split_bands(slot):
                first = slot.first_tile + bands.start * slot.across
                tiles = slice(first, first + (bands.stop - bands.start) * slot.across)
                own = message.positions[tiles], message.signs[tiles]
                tasks.append(make_update_task(slot, bands, momentum, gradient, decay, scale * factor, *own))
            if any(is_sharded(self._parameters.trained[member.name]) for member in slot.members):
                self._team.run(tasks)  # so that one gathered gradient at a time is in memory
                tasks = []
        self._team.run(tasks)

    def _compress_on_gpu(self, group: TileGroup, buffer: Tensor, decay: float, scale: float) -> GroupMessage:
        fold_slot = load_launcher().fold_slot
        shape = (group.num_tiles, group.topk)
        positions = self._workspace.take("positions", shape, torch.int16)
        signs = self._workspace.take("signs", shape, torch.int8)
        for slot in group.slots:
            gradient, factor = self._get_gradient(slot)
            tiles = slice(slot.first_tile, slot.first_tile + slot.num_tiles)
            own = positions[tiles], signs[tiles]
            fold_slot(_get_matrix(slot, buffer), gradient, slot, decay, scale * factor, *own)
        numbers = positions.cpu().numpy().view(get_position_dtype(group))
        # a CPU's memory would be the workspace's, which the next group takes
        return GroupMessage(numbers.copy(), signs.cpu().numpy().copy())

    def _get_gradient_types(self, group: TileGroup) -> frozenset[torch.dtype]:
        """What :meth:`_get_gradient` returns for the slots of a group; the pool's is always float32."""
        trained = self._parameters.trained
        return frozenset(trained[slot.name].dtype if slot.name else torch.float32 for slot in group.slots)

    # -- torch --

    def _compress_torch(self, index: int, buffer: Tensor, decay: float, scale: float) -> GroupMessage:
        group = self._layout.groups[index]
        if index not in self._tables:
            self._tables[index] = make_segment_table(group, self._device)
        highest = None
        if is_hierarchical(group):
            highest = self._workspace.take("highest", (group.num_stored // group.width,))
        for slot in group.slots:
            self._fold_torch(buffer, highest, slot, decay, scale)
        return extract_message(buffer, highest, self._tables[index], group)

    def _fold_torch(
        self, buffer: Tensor, highest: Tensor | None, slot: Slot, decay: float, scale: float
    ) -> None:
        """Decay a slot's momentum and add its gradient.

        highest: None, or [segments of the group] for the new largest |value| of each
        """
        momentum = _get_matrix(slot, buffer)
        rows, cols = momentum.shape

        def record(part: slice, block: Tensor) -> None:
            if highest is not None:
                first = (slot.first_element + part.start * cols) // slot.width
                segments = block.view(-1, slot.width)
                record_highest(segments, highest[first : first + len(segments)], self._workspace)

        gradient, factor = self._get_gradient(slot)
        if gradient is None:
            record(slice(0, rows), momentum.mul_(decay))
        else:
            update_momentum(momentum, gradient, slot, decay, scale * factor, self._workspace, record)

    # -- gradients --

    def _get_gradient(self, slot: Slot) -> tuple[Tensor | None, float]:
        """A slot's gradient [rows, cols], the pool's gathered from its members, and its factor."""
        found = [self._parameters.trained[member.name].grad for member in slot.members]
        grads = [None if grad is None else gather(grad) for grad in found]
        if all(grad is None for grad in grads):
            return None, 1.0
        if not slot.name:
            return self._gather_pool(slot, grads), 1.0
        assert grads[0] is not None
        return grads[0].reshape(slot.rows, slot.cols), self._parameters.get_gradient_scale(slot.name)

    def _gather_pool(self, slot: Slot, grads: Sequence[Tensor | None]) -> Tensor:
        """The gradients of the pool's members, times their scale, in its matrix [rows, cols]."""
        flat = self._workspace.take("gradients", (slot.rows * slot.cols,)).zero_()
        for member, grad in zip(slot.members, grads, strict=True):
            if grad is not None:
                place = flat[member.first : member.first + member.num_elements].view(member.shape)
                torch.mul(grad, self._parameters.get_gradient_scale(member.name), out=place)
        return flat.view(slot.rows, slot.cols)


def _get_buffer(group: TileGroup, momentum: Tensor) -> Tensor:
    return momentum[group.first_element : group.first_element + group.num_stored]


def _get_matrix(slot: Slot, buffer: Tensor) -> Tensor:
    """A slot's part of its group's buffer, [rows, cols] in whole tiles."""
    rows, cols = slot.padded_shape
    return buffer[slot.first_element : slot.first_element + rows * cols].view(rows, cols)


def _make_message(group: TileGroup, topk: int) -> GroupMessage:
    shape = (group.num_tiles, topk)
    return GroupMessage(np.empty(shape, dtype=get_position_dtype(group)), np.empty(shape, dtype=np.int8))


def extract_message(buffer: Tensor, highest: Tensor | None, table: Tensor, group: TileGroup) -> GroupMessage:
    """Select the leading coefficients of a group's momentum, zero them there, and describe them.

    buffer: float32 [group.num_stored];  highest, table: see ``sparsify.select_topk``
    """
    selection = select_topk(buffer.view(-1, group.width), table, group.topk, highest)
    indices = get_element_indices(table, selection.positions, group.width)
    buffer.index_fill_(0, indices.view(-1), 0.0)
    positions, values = selection.positions.cpu().numpy(), selection.values.cpu().numpy()
    return make_group_message(positions, values, get_position_dtype(group))
