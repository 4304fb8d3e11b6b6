"""Parameter groups of a language model: its embedding and its head move faster than the rest."""

from __future__ import annotations

from typing import Any

from torch.nn import Module

from psyche_py.distro.parameters import ParamGroup

EMBEDDING_LR_SCALE = 4.0
"""What the learning rate of embedding and head is multiplied with; measured in docs/distro.md."""


def group_parameters(model: Module, embedding_lr_scale: float = EMBEDDING_LR_SCALE) -> list[ParamGroup]:
    """Groups of all parameters of a model, for DistroOptimizer.

    Embedding and head are what transformers' ``get_input_embeddings`` and ``get_output_embeddings`` return;
    tied, they are one. A model without these methods has one group.
    """
    modules: list[Any] = [
        getattr(model, name)()
        for name in ("get_input_embeddings", "get_output_embeddings")
        if hasattr(model, name)
    ]
    embeddings = {id(p) for module in modules if module is not None for p in module.parameters()}
    named = list(model.named_parameters())
    return [
        {"params": [(n, p) for n, p in named if id(p) in embeddings], "lr_scale": embedding_lr_scale},
        {"params": [(n, p) for n, p in named if id(p) not in embeddings]},
    ]
