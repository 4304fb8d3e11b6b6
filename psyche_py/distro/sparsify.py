"""Exact top-k of every tile, with a defined order: larger |value| first, then smaller position.

``torch.topk`` leaves ties open, and ties are common: a tile of an embedding in which one token occurred holds
rows of equal magnitude. Here ties are found by comparing the last value taken with the best value left, and
only tiles that have one are selected again by (value, position) packed in one integer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.layout import TileGroup
from psyche_py.distro.transform import get_block_elements
from psyche_py.distro.workspace import Workspace

# Up to this k the two-level search (best segments, then best elements) beats a flat topk.
MAX_HIERARCHICAL_TOPK = 16
# A tile has fewer elements than this many bits count (see tiling).
POSITION_BITS = 20
MAX_POSITION = (1 << POSITION_BITS) - 1


class Selection(NamedTuple):
    """positions: int64 [tiles, k] row-major in the tile;  values: float32 [tiles, k];  order: unspecified."""

    positions: Tensor
    values: Tensor


def make_segment_table(group: TileGroup, device: torch.device) -> Tensor:
    """int64 [tiles, height]: the segment (run of ``width`` elements) of the buffer that is row i of tile t.

    The buffer holds the matrices one after the other, padded to whole tiles; a tile's rows are not adjacent.
    """
    parts = []
    for slot in group.slots:
        segments = torch.arange(slot.num_tiles * slot.height, device=device)
        segments = segments.view(slot.bands, slot.height, slot.across).transpose(1, 2)
        parts.append(segments.reshape(-1, slot.height) + slot.first_element // slot.width)
    return torch.cat(parts)


def is_hierarchical(group: TileGroup) -> bool:
    """Whether the best segments are looked for first; :func:`select_topk` then wants their maxima."""
    return group.topk <= MAX_HIERARCHICAL_TOPK and group.width > 1 and group.height > 2 * group.topk


def record_highest(momentum: Tensor, highest: Tensor, workspace: Workspace) -> None:
    """highest [segments] = largest |value| of every segment of ``momentum`` [segments, width]."""
    lowest = workspace.take("lowest", tuple(highest.shape))
    torch.amax(momentum, 1, out=highest)
    torch.amin(momentum, 1, out=lowest)
    torch.maximum(highest, lowest.neg_(), out=highest)


def select_topk(segments: Tensor, table: Tensor, topk: int, highest: Tensor | None) -> Selection:
    """The ``topk`` leading coefficients of every tile.

    segments: float32 [segments, width], a group's buffer;  table: from :func:`make_segment_table`;
    highest: [segments], from :func:`record_highest`, when the group :func:`is_hierarchical`.
    """
    block = max(1, 6 * get_block_elements(table.device) // (table.shape[1] * segments.shape[1]))
    found = []
    for rows in torch.split(table, block):
        if highest is not None:
            maxima = highest.index_select(0, rows.view(-1)).view(rows.shape)
            found.append(_select_by_segment(segments, rows, maxima, topk))
        else:
            found.append(_select_flat(segments, rows, topk))
    return Selection(torch.cat([x.positions for x in found]), torch.cat([x.values for x in found]))


def get_element_indices(table: Tensor, positions: Tensor, width: int) -> Tensor:
    """Indices into the group's flat buffer of tile ``positions`` [tiles, k]."""
    return table.gather(1, positions // width) * width + positions % width


def _make_keys(magnitudes: Tensor, positions: Tensor) -> Tensor:
    """int64 that order like the defined order: larger magnitude first, then smaller position.

    The bits of a float that is not negative order like the float.
    """
    keys = magnitudes.view(torch.int32).to(torch.int64)
    return keys.bitwise_left_shift_(POSITION_BITS).add_(MAX_POSITION - positions)


def _get_position(keys: Tensor) -> Tensor:
    return MAX_POSITION - keys.bitwise_and(MAX_POSITION)


def _get_magnitude(keys: Tensor) -> Tensor:
    return (keys >> POSITION_BITS).to(torch.int32).view(torch.float32)


def _take_leading(keys: Tensor, num: int) -> Tensor:
    """The ``num`` largest of every row, the smallest of them first, the others in any order."""
    if keys.device.type == "cpu":  # an eighth of what torch.topk takes
        return torch.from_numpy(np.partition(keys.numpy(), -num, axis=1)[:, -num:])
    return keys.topk(num, dim=1).values.flip(1)


def _select_by_segment(segments: Tensor, table: Tensor, highest: Tensor, topk: int) -> Selection:
    """Top-k of the ``topk`` segments that hold the largest values; of these, of the ``topk`` best columns.

    Exact: for an element outside them there are ``topk`` elements, one per chosen segment (column), that
    precede it. Only a column left out may tie with the last element taken; ``passed_over`` is its value.
    """
    tiles, width = len(table), segments.shape[1]
    device = table.device
    numbers = torch.arange(max(width, table.shape[1]), device=device)
    rows = _get_position(_take_leading(_make_keys(highest, numbers[: table.shape[1]]), topk))
    magnitudes = _take_segments(segments, table.gather(1, rows)).abs_().view(tiles, topk, width)
    cols = numbers[:width].expand(tiles, width)
    passed_over = None
    if 1 < topk < width // 2:
        leading = _take_leading(_make_keys(magnitudes.amax(1), numbers[:width]), topk + 1)
        passed_over, cols = _get_magnitude(leading[:, 0]), _get_position(leading[:, 1:])
        magnitudes = magnitudes.gather(2, cols.unsqueeze(1).expand(tiles, topk, topk))
    positions = rows.unsqueeze(2) * width + cols.unsqueeze(1)
    leading = _take_leading(_make_keys(magnitudes.flatten(1), positions.flatten(1)), topk)
    chosen = _get_position(leading)
    indices = get_element_indices(table, chosen, width)
    selection = Selection(chosen, segments.view(-1).take(indices))
    if passed_over is None:
        return selection
    last = _get_magnitude(leading[:, 0])
    return _resolve_ties(selection, (last > 0) & (last == passed_over), segments, table, topk)


def _take_segments(segments: Tensor, indices: Tensor) -> Tensor:
    """segments[indices] as [tiles, elements]; index_select is several times faster than indexing."""
    return segments.index_select(0, indices.reshape(-1)).view(len(indices), -1)


def _select_flat(segments: Tensor, table: Tensor, topk: int) -> Selection:
    """Top-k over whole tiles."""
    values = _take_segments(segments, table)
    if topk == values.shape[1]:
        return Selection(torch.arange(topk, device=table.device).expand(len(table), topk), values)
    magnitudes, taken = values.abs().topk(topk + 1, dim=1)
    taken = taken[:, :topk]
    last = magnitudes[:, topk - 1]
    tied = (last > 0) & (last == magnitudes[:, topk])
    return _resolve_ties(Selection(taken, values.gather(1, taken)), tied, segments, table, topk)


def _resolve_ties(
    selection: Selection, tied: Tensor, segments: Tensor, table: Tensor, topk: int
) -> Selection:
    """Redo the tiles marked ``tied`` by a key that no two elements of a tile share."""
    tiles = tied.nonzero().squeeze(1)
    if len(tiles) == 0:
        return selection
    values = _take_segments(segments, table[tiles])
    keys = _make_keys(values.abs(), torch.arange(values.shape[1], device=values.device))
    positions = _get_position(_take_leading(keys, topk))
    selection.positions[tiles] = positions
    selection.values[tiles] = values.gather(1, positions)
    return selection
