"""The parameters an optimizer moves: by name, each once, with the rates of their group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch.nn import Parameter

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.digest import DTYPE_CODES
from psyche_py.distro.errors import DistroError
from psyche_py.distro.sharding import get_local
from psyche_py.distro.update import Rates

NamedParameters = Iterable[tuple[str, Parameter]]


class ParamGroup(TypedDict, total=False):
    """Parameters that share rates. All replicas must use the same.

    params:        (name, parameter) pairs; required
    lr_scale:      multiplies the learning rate, default 1
    weight_decay:  default the configuration's
    """

    params: NamedParameters
    lr_scale: float
    weight_decay: float


class Parameters:
    """Named parameters in the order of their names.

    all:      every parameter once
    trained:  those that need a gradient
    rates:    by name
    Raises DistroError for parameters the optimizer cannot handle.
    """

    def __init__(self, params: NamedParameters | Sequence[ParamGroup], config: DistroConfig) -> None:
        self._is_lr_outside = config.lr_outside_momentum
        named: list[tuple[str, Parameter]] = []
        self.rates: dict[str, Rates] = {}
        for group in _make_groups(params):
            members = list(group["params"])
            rates = Rates(group.get("lr_scale", 1.0), group.get("weight_decay", config.weight_decay))
            if not all(math.isfinite(x) and x >= 0.0 for x in rates):
                raise DistroError(f"A parameter group's rates must not be negative: {rates}.")
            named += members
            self.rates |= {name: rates for name, _ in members}
        self.all = _deduplicate(named)
        self.trained = {name: p for name, p in self.all.items() if p.requires_grad and p.numel() > 0}
        if not self.trained:
            raise DistroError("No parameter needs a gradient.", "Give the optimizer a model to train.")
        devices = {p.device for p in self.trained.values()}
        if len(devices) > 1:
            raise DistroError(f"Parameters are on several devices: {sorted(map(str, devices))}.")
        self.device = devices.pop()

    def get_gradient_scale(self, name: str) -> float:
        """What a parameter's gradient is multiplied with, beside what all are, before it enters momentum."""
        return 1.0 if self._is_lr_outside else self.rates[name].lr_scale


def group_parameters(model: torch.nn.Module, config: DistroConfig) -> list[ParamGroup]:
    """A model's parameters, embedding and head apart with ``vocab_lr_scale``.

    Embedding is what the model names as its input embeddings (transformers' ``get_input_embeddings``), else
    the weight of every ``nn.Embedding``; head is the weight of its output embeddings, where it has them.
    """
    vocabulary = {id(p) for module in _find_vocabulary(model) for p in module.parameters(recurse=False)}
    groups: list[ParamGroup] = []
    for is_vocabulary in (True, False):
        members = [(n, p) for n, p in model.named_parameters() if (id(p) in vocabulary) == is_vocabulary]
        if members:
            groups.append({"params": members, "lr_scale": config.vocab_lr_scale if is_vocabulary else 1.0})
    return groups


def _find_vocabulary(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Modules that turn tokens into vectors or vectors into logits."""
    if not hasattr(model, "get_input_embeddings"):
        return [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    language_model: Any = model
    found = (language_model.get_input_embeddings(), language_model.get_output_embeddings())
    return [module for module in found if isinstance(module, torch.nn.Module)]


def _make_groups(params: NamedParameters | Sequence[ParamGroup]) -> Sequence[ParamGroup]:
    items: list[Any] = list(params)
    if any(isinstance(item, Mapping) for item in items):
        return items
    return [{"params": items}]


def _deduplicate(named_parameters: NamedParameters) -> dict[str, Parameter]:
    """Parameters by name in the order of names; a tied one keeps its first name only."""
    result: dict[str, Parameter] = {}
    seen: set[int] = set()
    storages: dict[int, str] = {}
    for name, p in sorted(named_parameters, key=lambda item: item[0]):
        if name in result:
            raise DistroError(f"Two parameters are called {name}.")
        if not name:
            raise DistroError("A parameter has no name.", "Use model.named_parameters().")
        if id(p) in seen:
            continue
        seen.add(id(p))
        result[name] = p
        if p.numel() == 0:
            continue
        if p.dtype not in DTYPE_CODES:
            raise DistroError(f"{name} is {p.dtype}.", "Use float32, bfloat16 or float16.")
        local = get_local(p.data)
        storage = local.untyped_storage().data_ptr()
        if local.numel() == 0:  # a shard that is elsewhere
            continue
        if storage in storages:
            raise DistroError(
                f"{name} and {storages[storage]} are different parameters over the same memory.",
                "Tie them by using one Parameter object.",
            )
        storages[storage] = name
    return result
