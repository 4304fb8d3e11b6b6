"""Embedding and head are a parameter group of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from psyche_py.distro import EMBEDDING_LR_SCALE, DistroConfig, DistroOptimizer, group_parameters


def make_llama(*, tied: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=tied))
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head_move_faster_than_the_rest(tied: bool) -> None:
    model = make_llama(tied=tied)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = DistroOptimizer(group_parameters(model), DistroConfig(compression_chunk=16))
    tokens = torch.arange(32).view(1, 32)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.apply([optimizer.step(0.5)], 0.5)
    farthest = {name: float((p.detach() - before[name]).abs().max()) for name, p in model.named_parameters()}
    expected = {"model.embed_tokens.weight"} if tied else {"model.embed_tokens.weight", "lm_head.weight"}
    fast = {name for name, distance in farthest.items() if distance > 0.5 + 1e-5}
    assert fast == expected
    assert all(farthest[name] == pytest.approx(0.5 * EMBEDDING_LR_SCALE, abs=1e-5) for name in fast)
    assert farthest["model.layers.0.mlp.down_proj.weight"] == pytest.approx(0.5, abs=1e-5)


def test_a_model_without_embeddings_is_one_group() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    first, second = group_parameters(model)
    assert not list(first["params"])
    assert [name for name, _ in second["params"]] == [name for name, _ in model.named_parameters()]
