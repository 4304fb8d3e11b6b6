"""Clipped votes add up to what was sent, cut off at the limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clip_votes import clip_votes
from verify_model import TinyLanguageModel

from psyche_py.distro import DistroConfig, DistroOptimizer
from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.payload import decode_payload, encode_payload, get_position_dtype, make_group_message

Sums = list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]


def make_payload(layout: PayloadLayout, rng: np.random.Generator) -> bytes:
    """Signs at a few of the first places of every tile, so that messages often agree or disagree."""
    parts = []
    for group in layout.groups:
        shape = (group.num_tiles, 2 * group.topk)
        positions = np.argsort(rng.random(shape), axis=1)[:, : group.topk].astype(np.int64)
        values = rng.choice(np.array([-1, 0, 1, 1], dtype=np.float32), positions.shape)
        parts.append(make_group_message(positions, values, get_position_dtype(group)))
    return encode_payload(layout, tuple(parts))


def add_up(layout: PayloadLayout, payloads: list[bytes]) -> Sums:
    """Sums of signs [tiles, tile size] of each group."""
    sums = [np.zeros((group.num_tiles, group.tile_size)) for group in layout.groups]
    for payload in payloads:
        for total, part in zip(sums, decode_payload(layout, payload), strict=True):
            rows = np.arange(len(total))[:, None]
            np.add.at(total, (rows, part.positions.astype(np.int64)), part.signs)
    return sums


@pytest.mark.parametrize("limit", [1, 2, 8])
def test_votes_add_up_to_the_clipped_sums(limit: int) -> None:
    torch.manual_seed(0)
    layout = DistroOptimizer(TinyLanguageModel().named_parameters(), DistroConfig()).payload_layout
    rng = np.random.default_rng(limit)
    payloads = [make_payload(layout, rng) for _ in range(6)]
    clipped = clip_votes(layout, payloads, limit)
    assert len(clipped) == len(payloads)
    before, after = add_up(layout, payloads), add_up(layout, clipped)
    assert max(np.abs(sums).max() for sums in before) > 2
    for sent, counted in zip(before, after, strict=True):
        assert np.array_equal(counted, np.clip(sent, -limit, limit))
