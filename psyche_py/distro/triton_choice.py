"""When the Triton kernels do the work: on a CUDA GPU, for tiles they fit, after they proved themselves there.

No kernel is trusted unseen. Before a process uses one on a device, in one tile size, type and top-k, it runs
it and torch on small random problems (``triton_check``): updates must be the same bits, messages the same
positions and signs. Whatever goes wrong, the reason is logged once, and torch does the work.

``PSYCHE_TRITON=0`` in the environment switches the kernels off; it is read at every call.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from functools import lru_cache
from typing import Any

import torch

from psyche_py.distro.layout import Slot, TileGroup
from psyche_py.distro.transform import get_precision, is_low_rank

SWITCH = "PSYCHE_TRITON"
SIDES = (16, 32, 64)
MAX_TOPK = 64
_SMALL_BLOCK, _BLOCK, _DENSE_BLOCK = 16, 32, 256

_logger = logging.getLogger(__name__)


def is_candidate(group: TileGroup, device: torch.device) -> bool:
    """Whether kernels exist for the tiles of this group on such a device; cheap, nothing is imported."""
    if not is_supported(device) or os.environ.get(SWITCH) == "0":
        return False
    return group.height in SIDES and group.width in SIDES and group.topk <= MAX_TOPK


def is_supported(device: torch.device) -> bool:
    """Whether Triton could compile for the device."""
    return device.type == "cuda" and torch.version.cuda is not None and _is_installed()


@lru_cache(maxsize=1)
def _is_installed() -> bool:
    if importlib.util.find_spec("triton") is not None:
        return True
    _logger.warning("triton is not installed: DisTrO runs on torch alone.")
    return False


def can_fold(group: TileGroup, dtypes: frozenset[torch.dtype], device: torch.device) -> bool:
    """Whether the kernels take gradients of these types to the messages of the group's tiles."""
    if not is_candidate(group, device):
        return False
    sides = (group.height, group.width)
    return all(_passes("check_fold", device, *sides, group.topk, dtype) for dtype in sorted(dtypes, key=str))


def can_move(
    group: TileGroup, slot: Slot, num_messages: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether the kernels move weights of this type by so many messages, exactly."""
    if not is_candidate(group, device) or get_precision(group, num_messages).dtype != torch.float32:
        return False
    block = choose_block(slot, num_messages * group.topk)
    return _passes("check_move", device, group.height, group.width, *block, dtype)


def choose_block(slot: Slot, num_terms: int) -> tuple[int, bool]:
    """Terms that a program takes at a time, and whether it counts them into a dense tile first."""
    if not is_low_rank(slot, num_terms):
        return _DENSE_BLOCK, True
    return (_SMALL_BLOCK if num_terms <= _SMALL_BLOCK else _BLOCK), False


def load_launcher() -> Any:
    """The module ``triton_launch``; imports triton, so only where a check passed (an import can fail)."""
    return importlib.import_module("psyche_py.distro.triton_launch")


def find_problem(check: str, device: torch.device, *variant: Any) -> str | None:
    """Run a check of ``triton_check``: None, or why a kernel is not to be used."""
    try:
        problem = getattr(importlib.import_module("psyche_py.distro.triton_check"), check)(device, *variant)
    except Exception as error:  # compilers fail in many ways; all of them are a reason not to use the kernel
        return f"{type(error).__name__}: {error}"
    return None if problem is None else str(problem)


@lru_cache(maxsize=256)
def _passes(check: str, device: torch.device, *variant: Any) -> bool:
    """:func:`find_problem`, once per process, device and variant; what it found is logged."""
    problem = find_problem(check, device, *variant)
    if problem is not None:
        shown = ", ".join(map(str, variant))
        _logger.warning("A Triton kernel is not used on %s (%s, %s): %s", device, check, shown, problem)
    return problem is None
