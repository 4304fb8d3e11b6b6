"""Golden traces: from fixed messages the bytes and the weights that every version so far has made.

A change of any bit splits a run whose clients have both versions. ``PSYCHE_UPDATE_GOLDEN=1`` records an
intended one, which then needs another wire version or another way to keep such clients apart.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from distro_tools import make_message
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, make_optimizer
from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.payload import Message, encode_payload

GOLDEN = Path(__file__).with_name("golden_traces.json")
SHAPES = {"w": (128, 192), "odd": (97, 131), "experts": (3, 58, 66), "thin": (32, 700), "bias": (317,)}
NUM_ROUNDS, NUM_MESSAGES = 4, 3
LR = 0.0371
_STEP = DistroConfig(weight_decay=0.1)
CONFIGS = {
    "default": DistroConfig(),
    "weight decay": _STEP,
    "signs": replace(_STEP, step_levels=1, lr_outside_momentum=False),
    "7 levels": replace(_STEP, step_levels=7),
    "top 1": replace(_STEP, compression_topk=1),
    "top 64": replace(_STEP, compression_topk=64),
    "tiles of 16": replace(_STEP, compression_chunk=16, compression_topk=2),
    "tiles of 48": replace(_STEP, compression_chunk=48),
    "local steps": replace(_STEP, local_steps=4),
}
DTYPES = {"": torch.float32, ", bfloat16": torch.bfloat16}


def make_parameters(dtype: torch.dtype) -> dict[str, Parameter]:
    """Weights of whole numbers over 1,024: no random generator decides them."""
    made = {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        numbers = (torch.arange(torch.Size(shape).numel()) * (7919 + 2 * i) + i) % 509 - 254
        made[name] = Parameter((numbers / 1024).reshape(shape).to(dtype))
    return made


def draw_message(layout: PayloadLayout, rng: np.random.Generator) -> Message:
    """Random coefficients, and magnitudes where the layout has them."""
    parts = []
    for group, part in zip(layout.groups, make_message(layout, rng), strict=True):
        if group.has_magnitudes:
            codes = rng.integers(150, 200, group.num_tiles, dtype=np.uint8)
            codes[~part.signs.any(axis=1)] = 0
            part = replace(part, magnitudes=codes)
        parts.append(part)
    return tuple(parts)


def make_trace(config: DistroConfig, dtype: torch.dtype) -> list[str]:
    """The digest of the first weights; of every round a hash of its payloads, and the digest after it."""
    parameters, rng = make_parameters(dtype), np.random.default_rng(11)
    optimizer = make_optimizer(parameters.items(), config)
    trace = [optimizer.model_digest().hex()[:16]]
    for number in range(NUM_ROUNDS):
        payloads = [
            encode_payload(optimizer.payload_layout, draw_message(optimizer.payload_layout, rng))
            for _ in range(NUM_MESSAGES + 40 * (number == 2))  # many at once are summed in another way
        ]
        lr = LR / (number + 1)
        optimizer.apply(payloads, lr)
        trace += [hashlib.sha256(b"".join(payloads)).hexdigest()[:16], optimizer.model_digest().hex()[:16]]
    return trace


@pytest.fixture(scope="module")
def golden() -> dict[str, list[str]]:
    if os.environ.get("PSYCHE_UPDATE_GOLDEN"):
        made = {f"{name}{add}": make_trace(CONFIGS[name], dtype) for name, add, dtype in iterate()}
        GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
    traces: dict[str, list[str]] = json.loads(GOLDEN.read_text())
    return traces


def iterate() -> list[tuple[str, str, torch.dtype]]:
    """Local steps are of float32 weights only."""
    both = [(name, add, dtype) for name in CONFIGS for add, dtype in DTYPES.items()]
    return [x for x in both if not (x[0] == "local steps" and x[1])]


@pytest.mark.parametrize(("name", "add", "dtype"), iterate())
def test_a_trace_is_as_recorded(
    name: str, add: str, dtype: torch.dtype, golden: dict[str, list[str]]
) -> None:
    assert make_trace(CONFIGS[name], dtype) == golden[f"{name}{add}"]


def test_nothing_is_recorded_that_is_not_played(golden: dict[str, list[str]]) -> None:
    assert golden.keys() == {f"{name}{add}" for name, add, _ in iterate()}
    traces = list(map(tuple, golden.values()))
    assert len(set(traces)) == len(traces)
