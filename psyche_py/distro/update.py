"""The update every replica makes from the same messages, defined to the bit.

    weight = weight * (1 - lr * weight_decay)       only with weight decay
    weight = weight - unit * units(IDCT(sum))       units -levels .. levels, see ``steps``

The unit (lr times the parameter's lr_scale over the levels) and the factor are rounded to float32 first and
the arithmetic is float32. Unit times units is exact, so every element sees one rounding for the decay and
one for the subtraction, with or without fused multiply-add; a 16-bit weight is rounded once more, when it
is stored. No torch.compile here: it could merge the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from psyche_py.distro import triton_choice
from psyche_py.distro.layout import Member, PayloadLayout, Slot, TileGroup
from psyche_py.distro.native import Task, Team, can_move, make_move_task, split_bands
from psyche_py.distro.payload import GroupMessage, decode_payload_into, get_position_dtype
from psyche_py.distro.sharding import gather, is_sharded, put_back
from psyche_py.distro.steps import StepRule, compute_unit, count_units, get_step_rule
from psyche_py.distro.transform import Terms, choose_precision, iterate_sums, without_autocast
from psyche_py.distro.workspace import Workspace

PositionArray = npt.NDArray[np.integer[Any]]
SignArray = npt.NDArray[np.int8]
ByteArray = npt.NDArray[np.uint8]


class Rates(NamedTuple):
    """What one parameter does with a learning rate: ``lr_scale`` times it, and decoupled weight decay."""

    lr_scale: float
    weight_decay: float

    def get_unit(self, lr: float, levels: int) -> float:
        """A unit of a move, a float32 number (see ``steps.compute_unit``)."""
        return compute_unit(lr * self.lr_scale, levels)

    def get_factor(self, lr: float) -> float:
        """What weights are multiplied with, a float32 number."""
        return float(np.float32(1.0 - lr * self.lr_scale * self.weight_decay))


class Aggregate:
    """Decoded messages side by side, in arrays that are kept from step to step.

    ``decode`` reads payloads; nothing that is visible changes when one of them is refused.
    """

    def __init__(self, layout: PayloadLayout) -> None:
        self.layout = layout
        self._capacity = 0
        self._positions: list[PositionArray] = []
        self._signs: list[SignArray] = []
        self._magnitudes: list[ByteArray | None] = []
        self._on_device: dict[int, tuple[Tensor, Tensor]] = {}
        self.num_messages = 0

    def decode(self, payloads: Sequence[bytes]) -> None:
        """Read all payloads; raises PayloadError."""
        self.num_messages = 0
        self._on_device.clear()
        self._reserve(len(payloads))
        for i, payload in enumerate(payloads):
            parts = zip(self._positions, self._signs, self._magnitudes, strict=True)
            message = [
                GroupMessage(positions[:, i], signs[:, i], None if sizes is None else sizes[:, i])
                for positions, signs, sizes in parts
            ]
            decode_payload_into(self.layout, payload, message)
        self.num_messages = len(payloads)

    def _reserve(self, num_messages: int) -> None:
        if num_messages == self._capacity:
            return
        groups = self.layout.groups
        shapes = [(group.num_tiles, num_messages, group.topk) for group in groups]
        self._positions = [
            np.empty(shape, dtype=get_position_dtype(group))
            for shape, group in zip(shapes, groups, strict=True)
        ]
        self._signs = [np.empty(shape, dtype=np.int8) for shape in shapes]
        self._magnitudes = [
            np.empty((group.num_tiles, num_messages), dtype=np.uint8) if group.has_magnitudes else None
            for group in groups
        ]
        self._capacity = num_messages

    def get_terms(self, index: int, slot: Slot, device: torch.device) -> Terms:
        """The terms of a slot's tiles, which are in group ``index``."""
        return make_table_rows(self.layout.groups[index], *self.get_tiles(index, slot), device)

    def get_tiles(self, index: int, slot: Slot) -> tuple[PositionArray, SignArray]:
        """Positions and signs of a slot's tiles, [tiles, messages, topk]."""
        tiles = slice(slot.first_tile, slot.first_tile + slot.num_tiles)
        return self._positions[index][tiles], self._signs[index][tiles]

    def get_device_tiles(self, index: int, slot: Slot, device: torch.device) -> tuple[Tensor, Tensor]:
        """The same on a device, int16 and int8; a group is sent there once, when its first slot asks."""
        if index not in self._on_device:
            arrays = self._positions[index].view(np.int16), self._signs[index]
            positions, signs = (torch.from_numpy(x).to(device) for x in arrays)
            self._on_device[index] = positions, signs
        tiles = slice(slot.first_tile, slot.first_tile + slot.num_tiles)
        positions, signs = self._on_device[index]
        return positions[tiles], signs[tiles]

    def get_magnitudes(self, index: int, slot: Slot) -> ByteArray:
        """Codes of magnitudes of a slot's tiles, [tiles, messages]; only of a layout that has them."""
        magnitudes = self._magnitudes[index]
        assert magnitudes is not None, "the layout has no magnitudes"
        return magnitudes[slot.first_tile : slot.first_tile + slot.num_tiles]


def make_table_rows(
    group: TileGroup, positions: PositionArray, signs: SignArray, device: torch.device
) -> Terms:
    """Rows of the tables (see Terms) of positions and signs [tiles, messages, topk]."""
    tiles = len(positions)
    rows, cols = np.divmod(positions.reshape(tiles, -1), positions.dtype.type(group.width))
    signs = signs.reshape(tiles, -1)
    rows = rows.astype(np.int32)
    rows += (signs < 0).view(np.int8) * np.int32(group.height)
    if not signs.all():
        rows[signs == 0] = 2 * group.height
    return Terms(torch.from_numpy(rows).to(device), torch.from_numpy(cols.astype(np.int32)).to(device))


@dataclass(frozen=True)
class Move:
    """One update: what was voted, and what it does to a parameter.

    with_decay: whether weights decay, as they do in an update and not in a lookahead
    """

    aggregate: Aggregate
    lr: float
    levels: int
    rates: Mapping[str, Rates]
    with_decay: bool = True

    def get_unit(self, name: str) -> float:
        """A unit of the parameter's steps."""
        return self.rates[name].get_unit(self.lr, self.levels)

    def get_factor(self, name: str) -> float | None:
        """What the parameter is multiplied with; None where it does not decay."""
        rate = self.rates[name]
        return rate.get_factor(self.lr) if self.with_decay and rate.weight_decay != 0.0 else None


@torch.no_grad()
def move_weights(
    move: Move,
    weights: Mapping[str, Tensor],
    workspace: Workspace,
    team: Team,
    targets: Mapping[str, Tensor] | None = None,
) -> None:
    """Update ``weights`` (all tensors of the layout, on one device) by at least one message.

    In place, or into ``targets``, tensors of the same shapes and types; the weights then stay as they are.
    """
    targets = weights if targets is None else targets
    tasks: list[Task] = []
    with without_autocast(workspace.device):
        for i, group in enumerate(move.aggregate.layout.groups):
            for slot in group.slots:
                names = [member.name for member in slot.members]
                sharded = [name for name in names if is_sharded(weights[name])]
                if not sharded:
                    tasks += _plan_slot(i, slot, weights, targets, move, workspace)
                    continue
                whole = {name: gather(weights[name]) for name in names}
                onto = {name: whole[name] if name in sharded else targets[name] for name in names}
                team.run(_plan_slot(i, slot, whole, onto, move, workspace))
                for name in sharded:
                    put_back(whole[name], targets[name])
    team.run(tasks)


def _plan_slot(
    index: int,
    slot: Slot,
    weights: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    move: Move,
    workspace: Workspace,
) -> list[Task]:
    """Update a slot of group ``index`` through torch, or return the tasks that do it through the kernels."""
    aggregate, device = move.aggregate, workspace.device
    group = aggregate.layout.groups[index]
    rule = get_step_rule(group, aggregate.num_messages, move.levels)
    if slot.name and can_move(group, aggregate.num_messages, device):
        source, target = weights[slot.name], targets[slot.name]
        if source.is_contiguous() and target.is_contiguous():
            return _plan_matrix(group, slot, aggregate.get_tiles(index, slot), source, target, move, rule)
    if slot.name and _move_on_gpu(index, slot, weights[slot.name], targets[slot.name], move, rule):
        return []
    terms = aggregate.get_terms(index, slot, device)
    blocks = iterate_sums(slot, terms, choose_precision(group, aggregate.num_messages), workspace)
    units = ((bands, count_units(sums, rule)) for bands, sums in blocks)
    if slot.name:
        unit, factor = move.get_unit(slot.name), move.get_factor(slot.name)
        move_matrix(slot, units, weights[slot.name], targets[slot.name], unit, factor, workspace)
    else:
        _move_pool(slot, units, weights, targets, move, workspace)
    return []


def _plan_matrix(
    group: TileGroup,
    slot: Slot,
    tiles: tuple[PositionArray, SignArray],
    source: Tensor,
    target: Tensor,
    move: Move,
    rule: StepRule,
) -> list[Task]:
    """Tasks that update one contiguous tensor through the kernels."""
    unit, factor = move.get_unit(slot.name), move.get_factor(slot.name)
    if unit == 0.0:
        target.copy_(source)
        return []
    shape = (slot.rows, slot.cols)
    tasks = []
    for bands in split_bands(slot):
        own = slice(bands.start * slot.across, bands.stop * slot.across)
        part = (target.view(shape), source.view(shape), group, tiles[0][own], tiles[1][own])
        tasks.append(make_move_task(slot, bands, *part, rule, unit, 1.0 if factor is None else factor))
    return tasks


def _move_on_gpu(index: int, slot: Slot, source: Tensor, target: Tensor, move: Move, rule: StepRule) -> bool:
    """Update one contiguous tensor through the Triton kernels; False where they are not used."""
    aggregate, device = move.aggregate, source.device
    group, num_messages = aggregate.layout.groups[index], aggregate.num_messages
    if not triton_choice.can_move(group, slot, num_messages, source.dtype, device):
        return False
    if not (source.is_contiguous() and target.is_contiguous()):
        return False
    unit, factor = move.get_unit(slot.name), move.get_factor(slot.name)
    if unit == 0.0:
        target.copy_(source)
        return True
    block = triton_choice.choose_block(slot, num_messages * group.topk)
    terms = aggregate.get_device_tiles(index, slot, device)
    decay = 1.0 if factor is None else factor
    triton_choice.load_launcher().move_slot(target, source, slot, group, *terms, rule, unit, decay, *block)
    return True


def move_matrix(
    slot: Slot,
    blocks: Iterator[tuple[slice, Tensor]],
    source: Tensor,
    target: Tensor,
    unit: float,
    factor: float | None,
    workspace: Workspace,
) -> None:
    """Update one tensor by blocks of units (see :func:`count_units`), whatever its memory layout.

    unit: a unit of its steps;  factor: what weights are multiplied with before, None for nothing
    """
    if unit == 0.0:
        target.copy_(source)
        return
    is_direct = all(x.dtype == torch.float32 and x.is_contiguous() for x in (source, target))
    work = target if is_direct else workspace.take("work", tuple(source.shape)).copy_(source)
    before = (source if is_direct else work).view(slot.rows, slot.cols)
    after = work.view(slot.rows, slot.cols)
    for bands, units in blocks:
        rows = slice(bands.start * slot.height, min(bands.stop * slot.height, slot.rows))
        _move_block(slot, before[rows], after[rows], units, unit, factor)
    if not is_direct:
        target.copy_(work)


def _move_block(
    slot: Slot, before: Tensor, after: Tensor, units: Tensor, unit: float, factor: float | None
) -> None:
    """after = before * factor - unit * units for some bands of tiles; the padding of the units is cut off."""
    if factor is not None:
        before = torch.mul(before, factor, out=after)
    units = units.permute(0, 2, 1, 3).to(torch.float32)
    num_rows, num_cols = slot.height * len(units), slot.padded_shape[1]
    if before.shape == (num_rows, num_cols):
        shape = (len(units), slot.height, slot.across, slot.width)
        torch.sub(before.view(shape), units, alpha=unit, out=after.view(shape))
    else:
        units = units.reshape(num_rows, num_cols)[: before.shape[0], : before.shape[1]]
        torch.sub(before, units, alpha=unit, out=after)


def _move_pool(
    slot: Slot,
    blocks: Iterator[tuple[slice, Tensor]],
    weights: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    move: Move,
    workspace: Workspace,
) -> None:
    """Update the small tensors: their units lie one after the other in the pool's matrix."""
    matrix = workspace.take("pool", slot.padded_shape)
    for bands, units in blocks:
        rows = matrix[bands.start * slot.height : bands.stop * slot.height]
        shape = (len(units), slot.height, slot.across, slot.width)
        rows.view(shape).copy_(units.permute(0, 2, 1, 3))
    flat = matrix[:, : slot.cols].reshape(-1)
    by_rates: dict[Rates, list[Member]] = {}
    for member in slot.members:
        by_rates.setdefault(move.rates[member.name], []).append(member)
    for members in by_rates.values():
        parts = [flat[m.first : m.first + m.num_elements].view(m.shape) for m in members]
        before = [weights[m.name] for m in members]
        unit, factor = move.get_unit(members[0].name), move.get_factor(members[0].name)
        _move_small([targets[m.name] for m in members], before, parts, unit, factor)


def _move_small(
    targets: Sequence[Tensor],
    before: Sequence[Tensor],
    units: Sequence[Tensor],
    unit: float,
    factor: float | None,
) -> None:
    """A few kernels for all tensors of equal rates."""
    moved = [x.to(torch.float32) for x in before]
    if unit != 0.0:
        if factor is not None:
            moved = list(torch._foreach_mul(moved, factor))
        moved = list(torch._foreach_sub(moved, list(units), alpha=unit))
    torch._foreach_copy_(list(targets), moved)
