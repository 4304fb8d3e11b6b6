"""Robust aggregation, as an experiment: no coefficient counts more than so many votes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.payload import (
    GroupMessage,
    decode_payload,
    encode_payload,
    get_position_dtype,
    make_group_message,
)


def clip_votes(layout: PayloadLayout, payloads: Sequence[bytes], limit: int) -> list[bytes]:
    """As many messages in which no coefficient has more than ``limit`` votes for its sign.

    The votes of a tile are laid out by position and dealt to the messages in turn, so that equal ones go to
    different messages, and none gets more than it can hold.
    """
    messages, num = [decode_payload(layout, payload) for payload in payloads], len(payloads)
    dealt: list[list[GroupMessage]] = [[] for _ in payloads]
    for i, group in enumerate(layout.groups):
        places = np.concatenate([m[i].positions for m in messages], axis=1).astype(np.int64)
        places += np.arange(group.num_tiles)[:, None] * group.tile_size
        signs = np.concatenate([m[i].signs for m in messages], axis=1)
        total = group.num_tiles * group.tile_size
        sums = np.bincount(places.ravel(), weights=signs.ravel(), minlength=total)
        votes = np.repeat(np.arange(total), np.minimum(np.abs(sums), limit).astype(np.int64))
        tiles, positions = np.divmod(votes, group.tile_size)
        rank = np.arange(len(votes)) - np.searchsorted(tiles, np.arange(group.num_tiles))[tiles]
        where = rank % num, tiles, rank // num
        out_positions = np.zeros((num, group.num_tiles, group.topk), dtype=np.int64)
        out_values = np.zeros(out_positions.shape, dtype=np.float32)
        out_positions[where], out_values[where] = positions, np.sign(sums[votes])
        for j in range(num):
            dealt[j].append(make_group_message(out_positions[j], out_values[j], get_position_dtype(group)))
    return [encode_payload(layout, tuple(message)) for message in dealt]
