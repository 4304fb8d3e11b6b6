"""When the compiled kernels do the work, and how they share it among threads.

Tiles whose sides are 16, 32 or 64 go through the kernels on a CPU with numba (``jit``); all others, and all
without numba, through torch. Updates are the same bits either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from psyche_py.distro import jit
from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.steps import StepRule
from psyche_py.distro.tilebits import PositionArray, SignArray
from psyche_py.distro.transform import get_block_bands, get_inverse_table, get_precision
from psyche_py.distro.workspace import Workspace

_MAX_TOPK = 64

FloatArray = npt.NDArray[np.float32]


class Worker:
    """What one thread needs of its own. scratch: float32, for the kernels; workspace: for conversions."""

    def __init__(self) -> None:
        self.scratch: FloatArray = np.zeros(jit.SCRATCH_FLOATS, dtype=np.float32)
        self.workspace = Workspace(torch.device("cpu"))


Task = Callable[[Worker], None]


def is_native(group: TileGroup, device: torch.device) -> bool:
    """Whether the kernels take the tiles of this group."""
    fits = group.height in jit.SIDES and group.width in jit.SIDES and group.topk <= _MAX_TOPK
    return fits and device.type == "cpu" and jit.load_kernels("move_kernels") is not None


class Team:
    """Workers, kept from call to call, that share tasks: as many as torch uses threads."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks; they must not depend on each other."""
        num = max(1, min(torch.get_num_threads(), len(tasks)))
        while len(self._workers) < num:
            self._workers.append(Worker())
        if num == 1:
            _run_all(tasks, self._workers[0])
            return
        with ThreadPoolExecutor(num) as pool:
            shares = [tasks[i::num] for i in range(num)]
            list(pool.map(_run_all, shares, self._workers[:num]))


@torch.no_grad()
def _run_all(tasks: Sequence[Task], worker: Worker) -> None:
    for task in tasks:
        task(worker)


def split_bands(slot: Slot) -> list[slice]:
    """Bands of tile rows for one task each."""
    step = get_block_bands(slot, torch.device("cpu"))
    return [slice(start, min(start + step, slot.bands)) for start in range(0, slot.bands, step)]


def make_update_task(
    slot: Slot,
    bands: slice,
    momentum: Tensor,
    gradient: Tensor | None,
    decay: float,
    scale: float,
    positions: PositionArray,
    signs: SignArray,
) -> Task:
    """Fold a gradient into some bands of a slot and take their message out (see ``fold_kernels``).

    momentum: the slot's, padded;  gradient: [rows, cols] in any float type;  positions, signs: of these bands
    """

    def update(worker: Worker) -> None:
        kernels = jit.load_kernels("fold_kernels")
        assert kernels is not None
        rows = slice(bands.start * slot.height, bands.stop * slot.height)
        part = worker.scratch[:0].reshape(0, 0)
        if gradient is not None:
            part = _as_float32(gradient[rows], "gradient", worker).numpy()
        kernels.update_tiles(
            momentum[rows].numpy(),
            part,
            slot.height,
            slot.width,
            np.float32(decay),
            np.float32(scale),
            positions,
            signs,
            worker.scratch,
        )

    return update


def _as_float32(x: Tensor, name: str, worker: Worker) -> Tensor:
    if x.dtype == torch.float32 and x.is_contiguous():
        return x
    return worker.workspace.take(name, tuple(x.shape)).copy_(x)


def can_move(group: TileGroup, num_messages: int, device: torch.device) -> bool:
    """Whether the kernels can add up so many messages exactly."""
    if not is_native(group, device):
        return False
    return get_precision(group, num_messages).dtype == torch.float32


def make_move_task(
    slot: Slot,
    bands: slice,
    target: Tensor,
    source: Tensor,
    group: TileGroup,
    positions: PositionArray,
    signs: SignArray,
    rule: StepRule,
    unit: float,
    factor: float,
) -> Task:
    """Move some bands of a slot's weights (see ``move_kernels.move_tiles``).

    target, source: [rows, cols], contiguous, of one type;  positions, signs: of these bands,
    [tiles, messages, topk]
    """
    precision = get_precision(group, positions.shape[1])
    sides = (slot.height, slot.width)
    tables = tuple(get_inverse_table(n, precision, torch.device("cpu")).numpy() for n in sides)

    def move(worker: Worker) -> None:
        kernels = jit.load_kernels("move_kernels")
        assert kernels is not None
        rows = slice(bands.start * slot.height, min(bands.stop * slot.height, slot.rows))
        is_direct = target.dtype == torch.float32
        before = _as_float32(source[rows], "weights", worker)
        after = target[rows] if is_direct else before
        kernels.move_tiles(
            after.numpy(),
            before.numpy(),
            tables,
            slot.height,
            slot.width,
            positions,
            signs,
            np.float32(rule.slope),
            np.float32(rule.levels),
            np.float32(unit),
            np.float32(factor),
            worker.scratch,
        )
        if not is_direct:
            target[rows].copy_(after)

    return move
