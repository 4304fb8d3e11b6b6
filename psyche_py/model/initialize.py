"""The first weights of a run: the same bits from the same seed on every machine.

torch's own generators give other bits on CPUs with other vector instructions, and the order in which
transformers initialises modules changes between versions. Here torch's random fills are only recorded while
a model is built (kind and spread, per parameter), and done afterwards from integers: each parameter has a
stream of its own, keyed by seed and parameter name, out of numpy's Philox, whose raw output numpy guarantees.

    normal    mean + std * z,  z = (sum of 12 draws of 16 bits - 393,210) / 65,536  (Irwin-Hall: variance 1)
    uniform   low + (high - low) * u,  u = 24 bits / 2**24

Both are sums and products of exact doubles, rounded once to float32 at the end.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from psyche_py.errors import DataError

_DOMAIN = b"psyche-py/model-init/1"
_BLOCK = 1 << 18
_NORMAL_MEAN = 6 * 65_535
_aten = torch.ops.aten


@dataclass
class RandomFill:
    """A random fill that torch asked for. ``patches`` are parts set to a constant afterwards.

    kind:  "normal" (first, second: mean and standard deviation) or "uniform" (low, high)
    """

    kind: str
    first: float
    second: float
    num_elements: int
    patches: list[tuple[tuple[int, ...], tuple[int, ...], int, float]]
    storage: torch.UntypedStorage


class RandomFillRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, random fills are recorded by storage and the tensors are filled with NaN instead.

    Whatever is not recorded or overwritten later stays NaN, so that nothing random can slip through.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fills: dict[int, RandomFill] = {}

    def get_fill(self, tensor: torch.Tensor) -> RandomFill | None:
        """The fill that decides the content of ``tensor``, if it is one that is known."""
        fill = self._fills.get(_get_key(tensor))
        return fill if fill is not None and fill.num_elements == tensor.numel() else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (_aten.normal_.default, _aten.uniform_.default):
            kind = "normal" if func is _aten.normal_.default else "uniform"
            values = [*args[1:3], *((0.0, 1.0)[len(args) - 1 :])]
            names = ("mean", "std") if kind == "normal" else ("from", "to")
            first, second = (kwargs.get(name, v) for name, v in zip(names, values, strict=True))
            return self._record(args[0], kind, float(first), float(second))
        if torch.Tag.nondeterministic_seeded in func.tags:
            return _poison(func(*args, **kwargs), func)
        read = list(args)
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            self._note_change(func, args)
            read = read[1:]
        elif any(result.alias_info for result in func._schema.returns):
            read = []  # a view
        for tensor in (arg for arg in read if isinstance(arg, torch.Tensor)):
            # values that are not there yet are computed with: rejection sampling, scaling to a norm
            self._fills.pop(_get_key(tensor), None)
        return func(*args, **kwargs)

    def _record(self, tensor: torch.Tensor, kind: str, first: float, second: float) -> torch.Tensor:
        storage = tensor.untyped_storage()  # kept alive, so that its identity stays its own
        self._fills[_get_key(tensor)] = RandomFill(kind, first, second, tensor.numel(), [], storage)
        return tensor.fill_(float("nan"))

    def _note_change(self, func: Any, args: tuple[Any, ...]) -> None:
        """A recorded tensor is written to: a constant in a part of it is kept in mind, all else ends it."""
        tensor = args[0]
        key = _get_key(tensor)
        fill = self._fills.get(key)
        if fill is None:
            return
        is_constant = func in (_aten.zero_.default, _aten.fill_.Scalar)
        if is_constant and tensor.numel() < fill.num_elements:
            value = float(args[1]) if len(args) > 1 else 0.0
            geometry = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
            fill.patches.append((*geometry, value))
        else:
            del self._fills[key]


def _get_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _poison(out: Any, func: Any) -> Any:
    """NaN in the results of a random operation that has no counterpart here."""
    if not isinstance(out, torch.Tensor) or not out.is_floating_point():
        raise DataError(f"The model's initialisation uses {func}, which is not reproducible.", _REMEDY)
    return out.fill_(float("nan"))


_REMEDY = "Start the run from a checkpoint directory instead of a configuration and a seed."


def build_seeded(make: Callable[[], torch.nn.Module], seed: int) -> torch.nn.Module:
    """The model that ``make`` builds, with weights that follow from ``seed`` (0 .. 2**64-1) alone.

    Raises DataError when the model initialises a parameter in a way that is not reproducible.
    """
    recorder = RandomFillRecorder()
    with recorder:
        model = make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fill = recorder.get_fill(parameter)
            if fill is not None:
                _fill(parameter, fill, seed, name)
            if not bool(torch.isfinite(parameter).all()):
                raise DataError(f"The initialisation of {name} is not reproducible.", _REMEDY)
    return model


def build_unfilled(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """The model that ``make`` builds, without the cost of random numbers: such weights are NaN."""
    with RandomFillRecorder():
        return make()


def _fill(parameter: torch.Tensor, fill: RandomFill, seed: int, name: str) -> None:
    key = hashlib.sha256(_DOMAIN + struct.pack("<Q", seed) + name.encode()).digest()[:16]
    stream = np.random.Philox(key=int.from_bytes(key, "little"))
    draw = draw_normal if fill.kind == "normal" else draw_uniform
    flat = parameter.view(-1)
    for start in range(0, len(flat), _BLOCK):
        values = draw(stream, min(_BLOCK, len(flat) - start), fill.first, fill.second)
        flat[start : start + len(values)] = torch.from_numpy(values)
    for shape, stride, offset, value in fill.patches:
        parameter.as_strided(shape, stride, offset).fill_(value)


def draw_normal(stream: np.random.Philox, num: int, mean: float, std: float) -> npt.NDArray[np.float32]:
    """``num`` normal values: 24 bytes of the stream each."""
    raw = stream.random_raw(num * 3).astype("<u8").view("<u2").reshape(num, 12)
    z = (raw.sum(axis=1, dtype=np.int64) - _NORMAL_MEAN) / 65_536.0
    values: npt.NDArray[np.float32] = (z * std + mean).astype(np.float32)
    return values


def draw_uniform(stream: np.random.Philox, num: int, low: float, high: float) -> npt.NDArray[np.float32]:
    """``num`` values in [low, high): 8 bytes of the stream each."""
    u = (stream.random_raw(num) >> np.uint64(40)).astype(np.float64) / float(1 << 24)
    values: npt.NDArray[np.float32] = (u * (high - low) + low).astype(np.float32)
    return values
