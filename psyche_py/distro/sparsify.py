"""Exact top-k of every tile, with a defined order: larger |value| first, then smaller position.

``torch.topk`` leaves ties open, and ties are common: a tile of an embedding in which one token occurred holds
rows of equal magnitude. Here ties are found by comparing the last value taken with the best value left, and
only tiles that have one are sorted again by (value, position) packed in one integer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from psyche_py.distro.layout import TileGroup
from psyche_py.distro.transform import get_block_elements

# Up to this k the two-level search (best segments, then best elements) beats a flat topk.
MAX_HIERARCHICAL_TOPK = 16


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


def select_topk(segments: Tensor, table: Tensor, topk: int) -> Selection:
    """The ``topk`` leading coefficients of every tile.

    segments: float32 [segments, width], a group's buffer;  table: from :func:`make_segment_table`.
    """
    height, width = table.shape[1], segments.shape[1]
    hierarchical = topk <= MAX_HIERARCHICAL_TOPK and width > 1 and height > 2 * topk
    highest = torch.maximum(segments.amax(1), -segments.amin(1)) if hierarchical else None
    block = max(1, 2 * get_block_elements(table.device) // (height * width))
    found = []
    for rows in torch.split(table, block):
        if highest is not None:
            found.append(_select_by_segment(segments, rows, highest[rows], topk))
        else:
            found.append(_select_flat(segments, rows, topk))
    return Selection(torch.cat([x.positions for x in found]), torch.cat([x.values for x in found]))


def get_element_indices(table: Tensor, positions: Tensor, width: int) -> Tensor:
    """Indices into the group's flat buffer of tile ``positions`` [tiles, k]."""
    return table.gather(1, positions // width) * width + positions % width


def _select_by_segment(segments: Tensor, table: Tensor, highest: Tensor, topk: int) -> Selection:
    """Top-k of the ``topk`` segments that hold the largest values; of these, of the ``topk`` best columns.

    Exact: for an element outside them there are ``topk`` elements, one per chosen segment (column), that
    precede it, unless it ties with the last one taken; ``passed_over`` is the best value left out.
    """
    tiles, width = len(table), segments.shape[1]
    best, rows = highest.topk(topk + 1, dim=1)
    rows = rows[:, :topk]
    passed_over = best[:, topk]
    values = _take_segments(segments, table.gather(1, rows)).view(tiles, topk, width)
    cols = torch.arange(width, device=table.device).expand(tiles, width)
    if 1 < topk < width // 2:
        best, cols = values.abs().amax(1).topk(topk + 1, dim=1)
        cols = cols[:, :topk]
        passed_over = torch.maximum(passed_over, best[:, topk])
        values = values.gather(2, cols.unsqueeze(1).expand(tiles, topk, topk))
    values = values.view(tiles, -1)
    magnitudes, taken = values.abs().topk(topk + 1, dim=1)
    taken = taken[:, :topk]
    positions = rows.gather(1, taken // cols.shape[1]) * width + cols.gather(1, taken % cols.shape[1])
    last = magnitudes[:, topk - 1]
    tied = (last > 0) & ((last == magnitudes[:, topk]) | (last == passed_over))
    return _resolve_ties(Selection(positions, values.gather(1, taken)), tied, segments, table, topk)


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
    size = values.shape[1]
    # The bits of a float that is not negative order like the float.
    bits = values.abs().view(torch.int32).to(torch.int64)
    keys = bits * size + torch.arange(size - 1, -1, -1, device=values.device)
    positions = size - 1 - keys.topk(topk, dim=1).values % size
    selection.positions[tiles] = positions
    selection.values[tiles] = values.gather(1, positions)
    return selection
