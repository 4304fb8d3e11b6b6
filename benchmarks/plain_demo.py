"""DeMo as its paper describes it, tensor by tensor, with DisTrO's one-bit messages: what the optimizer is
measured against. Nothing here is tuned, and nothing is left out.

Per step and tensor: decay the weights, add the clipped gradient to the momentum, transform the momentum in
tiles (DCT-II on both sides), take the top-k of each tile, transform these back and subtract them, pack
indices (two bytes each) and signs (one bit each). Then unpack every peer's message, average the signs that
name the same coefficient, transform back, and move the weights by the sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from psyche_py.distro import DistroConfig
from psyche_py.distro.trig import dct_matrix

PlainMessage = dict[str, tuple[bytes, bytes]]


def get_divisor_side(n: int, chunk: int) -> int:
    """Tile side of the published algorithm: the largest divisor of ``n`` up to ``chunk``."""
    return next(side for side in range(min(n, chunk), 0, -1) if n % side == 0)


class PlainDemo:
    """The published optimizer over named parameters of one or two dimensions."""

    def __init__(self, parameters: Mapping[str, Parameter], config: DistroConfig) -> None:
        self.parameters, self.config = parameters, config
        self.momentum = {name: torch.zeros_like(p) for name, p in parameters.items()}
        sizes = {n for p in parameters.values() for n in self._get_sides(p)}
        self.tables = {n: torch.from_numpy(dct_matrix(n).copy()).float() for n in sizes}

    def _get_sides(self, p: Tensor) -> tuple[int, int]:
        chunk = self.config.compression_chunk
        height = get_divisor_side(p.shape[0], chunk) if p.dim() == 2 else 1
        return height, get_divisor_side(p.shape[-1], chunk)

    def _transform(self, p: Tensor, x: Tensor) -> Tensor:
        h, w = self._get_sides(p)
        tiles = x.view(-1, h, p.shape[-1] // w, w)
        return torch.einsum("yhxw,uh,vw->yxuv", tiles, self.tables[h], self.tables[w]).reshape(-1, h * w)

    def _invert(self, p: Tensor, coefficients: Tensor) -> Tensor:
        h, w = self._get_sides(p)
        tiles = coefficients.view(-1, p.shape[-1] // w, h, w)
        return torch.einsum("yxuv,uh,vw->yhxw", tiles, self.tables[h], self.tables[w]).reshape(p.shape)

    @torch.no_grad()
    def step(self, lr: float) -> PlainMessage:
        """This worker's message; its momentum loses what was sent."""
        if self.config.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.clip_grad_norm)
        message = {}
        for name, p in self.parameters.items():
            assert p.grad is not None
            momentum = self.momentum[name].mul_(self.config.compression_decay).add_(p.grad, alpha=lr)
            coefficients = self._transform(p, momentum)
            topk = min(self.config.compression_topk, coefficients.shape[1])
            indices = coefficients.abs().topk(topk, dim=1, sorted=False).indices
            values = coefficients.gather(1, indices)
            sent = torch.zeros_like(coefficients).scatter_(1, indices, values)
            momentum.sub_(self._invert(p, sent))
            packed = np.packbits((values < 0).numpy().ravel(), bitorder="little")
            message[name] = (indices.numpy().astype(np.uint16).tobytes(), packed.tobytes())
        return message

    @torch.no_grad()
    def apply(self, messages: Sequence[PlainMessage], lr: float) -> None:
        """Everybody's update."""
        for name, p in self.parameters.items():
            h, w = self._get_sides(p)
            total = torch.zeros(p.numel() // (h * w), h * w)
            parts = [self._unpack(message[name], len(total)) for message in messages]
            indices = torch.cat([part[0] for part in parts], dim=1)
            values = torch.cat([part[1] for part in parts], dim=1)
            total.scatter_reduce_(1, indices, values, reduce="mean", include_self=False)
            if self.config.weight_decay:
                p.mul_(1.0 - lr * self.config.weight_decay)
            p.sub_(self._invert(p, total).sign(), alpha=lr)

    @staticmethod
    def _unpack(message: tuple[bytes, bytes], num_tiles: int) -> tuple[Tensor, Tensor]:
        indices = np.frombuffer(message[0], dtype=np.uint16).astype(np.int64)
        packed = np.frombuffer(message[1], dtype=np.uint8)
        negative = np.unpackbits(packed, count=len(indices), bitorder="little")
        signs = 1.0 - 2.0 * negative.astype(np.float32)
        return (
            torch.from_numpy(indices).view(num_tiles, -1),
            torch.from_numpy(signs.astype(np.float32)).view(num_tiles, -1),
        )
