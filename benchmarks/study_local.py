"""Local steps between exchanges: DiLoCo and SparseLoCo."""

from __future__ import annotations

import torch
from study_methods import Setting, Tiles, Weights, clip_gradients, get_scale, make_groups
from study_model import ModelSize, compute_gradients
from torch import Tensor


class Local:
    """Workers take ``inner`` AdamW steps, then exchange how far they came.

    bits = 32: everything travels (DiLoCo). Otherwise the topk largest of every tile of the error-fed
    difference travel (SparseLoCo), as signs times one magnitude per tile (1 bit) or as values.
    The outer step is SGD with (Nesterov) momentum on the mean. With ``residual`` a worker goes on from where
    its unsent difference would be, not from the shared weights.
    """

    def __init__(self, setting: Setting, size: ModelSize, weights: Weights) -> None:
        self.weights, self._setting, self._size = weights, setting, size
        self._groups: list[Tiles] = make_groups(setting, weights)
        self._own = {name: w.expand(setting.workers, *w.shape).clone() for name, w in weights.items()}
        self._m = {name: torch.zeros_like(w) for name, w in self._own.items()}
        self._v = {name: torch.zeros_like(w) for name, w in self._own.items()}
        self._errors = [torch.zeros(setting.workers, g.num, g.h * g.w) for g in self._groups]
        self._outer = {name: torch.zeros_like(w) for name, w in weights.items()}

    def train(self, step: int, lr: float, tokens: Tensor) -> None:
        """One inner step of every worker; an outer one when it is due."""
        s = self._setting
        gradients = compute_gradients(self._own, tokens.view(s.workers, -1, tokens.shape[1]), self._size)
        clip_gradients(gradients, s.clip)
        c1, c2 = 1 - s.beta1 ** (step + 1), 1 - s.beta2 ** (step + 1)
        for name, w in self._own.items():
            m, v = self._m[name], self._v[name]
            m.lerp_(gradients[name], 1 - s.beta1)
            v.lerp_(gradients[name].square(), 1 - s.beta2)
            rate = lr * get_scale(s, name)
            w.mul_(1 - rate * s.weight_decay)
            w.addcdiv_(m, (v / c2).sqrt_().add_(1e-8), value=-rate / c1)
        if (step + 1) % s.inner == 0 or step + 1 == s.steps:
            self._exchange()

    def _exchange(self) -> None:
        s = self._setting
        ways = {name: self.weights[name] - w for name, w in self._own.items()}
        for i, group in enumerate(self._groups):
            for name, way in group.scatter(self._compress(i, group, ways)).items():
                outer, w = self._outer[name], self.weights[name]
                outer.mul_(s.outer_momentum).add_(way[0])
                w.sub_(way[0] + s.outer_momentum * outer if s.nesterov else outer, alpha=s.outer_lr)
        for name, w in self.weights.items():
            self._own[name].copy_(w.expand_as(self._own[name]))
        if s.residual:
            for group, error in zip(self._groups, self._errors, strict=True):
                left = group.invert(error.view(*error.shape[:2], group.h, group.w))
                for name, x in group.scatter(left).items():
                    self._own[name].sub_(x, alpha=s.residual * s.decay)
            # the part of the way that is already in the error must not be counted twice
            for error in self._errors:
                error.mul_(1 - s.residual)

    def _compress(self, index: int, group: Tiles, ways: Weights) -> Tensor:
        """The mean of what arrives, [1, tiles, h, w]."""
        s, error = self._setting, self._errors[index]
        x = group.gather(ways)
        if s.bits == 32:
            return x.mean(0, keepdim=True)
        error.mul_(s.decay).add_(group.transform(x).flatten(2))
        positions = error.abs().topk(group.topk, dim=2).indices
        values = error.gather(2, positions)
        if s.bits == 1:
            values = values.sign() * values.abs().mean(2, keepdim=True)
        error.scatter_add_(2, positions, -values)
        sent = torch.zeros_like(error).scatter_(2, positions, values).mean(0)
        return group.invert(sent.view(1, -1, group.h, group.w))
