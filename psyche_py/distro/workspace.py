"""Scratch memory that is asked for once: after the first step nothing large is allocated."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named scratch buffers on one device. A buffer's content is void after the next request for its name."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """A contiguous tensor of this shape, not initialised."""
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name, dtype] = torch.empty(size, dtype=dtype, device=self.device)
        return buffer[:size].view(shape)

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())
