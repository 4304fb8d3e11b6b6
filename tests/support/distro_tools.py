"""Plain definitions for the optimizer's tests: tiles, frequencies, random messages, its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import scipy.fft
import torch
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer
from psyche_py.distro.layout import PayloadLayout, Slot, TileGroup
from psyche_py.distro.payload import Message, get_position_dtype, make_group_message
from psyche_py.distro.transform import get_frequencies


def get_matrix(slot: Slot, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """The slot's matrix in whole tiles, zeros where it is padded."""
    flat = np.zeros(slot.rows * slot.cols, dtype=np.float64)
    for member in slot.members:
        flat[member.first : member.first + member.num_elements] = tensors[member.name].reshape(-1)
    matrix = np.zeros(slot.padded_shape)
    matrix[: slot.rows, : slot.cols] = flat.reshape(slot.rows, slot.cols)
    return matrix


def put_matrix(slot: Slot, matrix: np.ndarray) -> dict[str, np.ndarray]:
    """Inverse of :func:`get_matrix`: the tensors in it."""
    flat = matrix[: slot.rows, : slot.cols].reshape(-1)
    return {m.name: flat[m.first : m.first + m.num_elements].reshape(m.shape) for m in slot.members}


def cut(slot: Slot, matrix: np.ndarray) -> np.ndarray:
    """A padded matrix as tiles [tiles, height, width]."""
    h, w = slot.height, slot.width
    tiles = matrix.reshape(slot.bands, h, slot.across, w).transpose(0, 2, 1, 3)
    return tiles.reshape(slot.num_tiles, h, w)


def join(slot: Slot, tiles: np.ndarray) -> np.ndarray:
    """Inverse of :func:`cut`."""
    h, w = slot.height, slot.width
    return tiles.reshape(slot.bands, slot.across, h, w).transpose(0, 2, 1, 3).reshape(slot.padded_shape)


def transform(tiles: np.ndarray) -> np.ndarray:
    """Two-dimensional DCT-II of tiles [..., h, w], even frequencies first."""
    full = scipy.fft.dctn(tiles, axes=(-2, -1), norm="ortho")
    return full[..., get_frequencies(tiles.shape[-2]), :][..., get_frequencies(tiles.shape[-1])]


def invert(coefficients: np.ndarray) -> np.ndarray:
    """Inverse of :func:`transform`."""
    full = np.empty_like(coefficients)
    h, w = (get_frequencies(n) for n in coefficients.shape[-2:])
    full[..., np.array(h)[:, None], np.array(w)] = coefficients
    return scipy.fft.idctn(full, axes=(-2, -1), norm="ortho")


def choose_positions(group: TileGroup, rng: np.random.Generator) -> np.ndarray:
    """Distinct positions [tiles, topk] in any order."""
    shape = (group.num_tiles, group.tile_size)
    return np.argpartition(rng.random(shape), group.topk - 1, axis=1)[:, : group.topk]


def make_message(layout: PayloadLayout, rng: np.random.Generator, empty: float = 0.1) -> Message:
    """Random coefficients; some tiles lack some, a share ``empty`` of tiles lacks all."""
    groups = []
    for group in layout.groups:
        positions = choose_positions(group, rng)
        values = rng.standard_normal(positions.shape).astype(np.float32)
        values[rng.random(len(values)) < empty] = 0
        values[rng.random(values.shape) < 0.05] = 0
        dtype = get_position_dtype(group)
        groups.append(make_group_message(positions.astype(np.int64), values, dtype))
    return tuple(groups)


# ---- an optimizer's parameters ----

SHAPES = {
    "w": (128, 192),
    "bias": (64,),
    "experts": (3, 58, 66),
    "norms": (3000,),
    "odd": (37, 7),
    "one": (1,),
    "scalar": (),
}
LR = 0.0371


def make_parameters(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {n: Parameter(torch.randn(s, generator=generator).to(dtype)) for n, s in SHAPES.items()}


def fill_gradients(parameters: dict[str, Parameter], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters.values():
        p.grad = (torch.randn(p.shape, generator=generator) * scale).to(p.device, p.dtype)


def count_launches(monkeypatch: pytest.MonkeyPatch, launcher: Any) -> dict[str, int]:
    """How often each Triton kernel of a launcher (``triton_launch``) is launched from now on."""
    counts = {"fold_slot": 0, "move_slot": 0}
    for name in counts:
        launch = getattr(launcher, name)

        def counted(*args: Any, name: str = name, launch: Any = launch) -> None:
            counts[name] += 1
            launch(*args)

        monkeypatch.setattr(launcher, name, counted)
    return counts


def make_payloads(num: int, config: DistroConfig | None = None) -> list[bytes]:
    payloads = []
    for seed in range(num):
        parameters = make_parameters()
        optimizer = DistroOptimizer(parameters.items(), config or DistroConfig())
        fill_gradients(parameters, seed + 100)
        payloads.append(optimizer.step(LR))
    return payloads


def snapshot(parameters: dict[str, Parameter]) -> dict[str, bytes]:
    return {n: p.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for n, p in parameters.items()}
