"""AdamW steps that one trainer takes by itself between two exchanges; nobody else sees its moments.

    m = beta1 m + (1 - beta1) g         v = beta2 v + (1 - beta2) g^2
    w = w - rate * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w)

``way`` adds up what was subtracted. Until :meth:`commit` nothing has happened: whoever begins anew, or saves,
does so with the moments of the last commit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.parameters import Parameters


class InnerAdamW:
    """Moments and way of all trained parameters: float32 tensors [elements], in the order of their names."""

    def __init__(self, parameters: Parameters, config: DistroConfig) -> None:
        self._parameters, self._config = parameters, config
        size = sum(p.numel() for p in parameters.trained.values())
        device = parameters.device
        self.way = torch.zeros(size, device=device)
        self._moments, self._kept = torch.zeros(2, size, device=device), torch.zeros(2, size, device=device)
        self._num_steps = self._kept_steps = 0
        self._is_open = False
        self.ways = self._cut(self.way)
        self._first, self._second = (list(self._cut(x).values()) for x in self._moments)

    def _cut(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the parameters' shapes, by name."""
        named = self._parameters.trained
        parts = torch.split(flat, [p.numel() for p in named.values()])
        return {name: part.view(p.shape) for (name, p), part in zip(named.items(), parts, strict=True)}

    @property
    def moments(self) -> Tensor:
        """float32 [2, elements] as of the last commit. Not a copy: only to be read."""
        return self._kept if self._is_open else self._moments

    @property
    def num_steps(self) -> int:
        """Steps taken, as of the last commit."""
        return self._kept_steps if self._is_open else self._num_steps

    def begin(self) -> None:
        """Steps that are taken from now on lead from where the parameters are."""
        self.roll_back()
        self._kept.copy_(self._moments)
        self._kept_steps = self._num_steps
        self._is_open = True

    def roll_back(self) -> None:
        """The steps since the last commit have not happened; the caller puts the parameters back."""
        if self._is_open:
            self._moments.copy_(self._kept)
            self._num_steps = self._kept_steps
            self._is_open = False
        self.way.zero_()

    def commit(self) -> None:
        """The way is with the caller; it begins anew."""
        self.way.zero_()
        self._is_open = False

    def load(self, moments: Tensor, num_steps: int) -> None:
        """Take over moments [2, elements] after ``num_steps`` steps."""
        self.commit()
        self._moments.copy_(moments)
        self._num_steps = num_steps

    @torch.no_grad()
    def step(self, lr: float, gradient_factor: float) -> None:
        """One step with the parameters' gradients times ``gradient_factor``; none counts as zero."""
        config, named = self._config, self._parameters.trained
        self._num_steps += 1
        weights = [p.data for p in named.values()]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad * gradient_factor for p in named.values()]
        torch._foreach_lerp_(self._first, grads, 1.0 - config.adam_beta1)
        torch._foreach_mul_(self._second, config.adam_beta2)
        torch._foreach_addcmul_(self._second, grads, grads, 1.0 - config.adam_beta2)
        scales = torch._foreach_sqrt(self._second)
        torch._foreach_div_(scales, math.sqrt(1.0 - config.adam_beta2**self._num_steps))
        torch._foreach_add_(scales, config.adam_eps)
        steps = torch._foreach_div(self._first, scales)
        rates = [self._parameters.rates[name] for name in named]
        correction = 1.0 - config.adam_beta1**self._num_steps
        torch._foreach_mul_(steps, [lr * rate.lr_scale / correction for rate in rates])
        if any(rate.weight_decay for rate in rates):
            decays = [lr * rate.lr_scale * rate.weight_decay for rate in rates]
            torch._foreach_add_(steps, torch._foreach_mul(weights, decays))
        torch._foreach_sub_(weights, steps)
        torch._foreach_add_(list(self.ways.values()), steps)
