"""A Llama whose weights carry a leading dimension of workers, and the text of the study.

One forward and backward pass gives every worker's own gradient: with equal weights (a broadcast view) at the
price of one ordinary pass over the whole batch, and with weights of their own (lookaheads, inner steps) too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

EVAL_SEQUENCES = 512
EPSILON = 1e-5


@dataclass(frozen=True)
class ModelSize:
    """Shape of a model; parameters without the embeddings: layers * (4 width^2 + 3 width * ffn)."""

    width: int
    layers: int
    heads: int
    ffn: int
    vocab: int


SIZES = {
    "nano": ModelSize(width=64, layers=1, heads=2, ffn=128, vocab=512),  # 0.11M, configs/models/nano
    "tiny": ModelSize(width=64, layers=2, heads=2, ffn=192, vocab=512),  # 0.17M
    "small": ModelSize(width=128, layers=2, heads=4, ffn=384, vocab=1024),  # 0.7M
    "large": ModelSize(width=256, layers=3, heads=4, ffn=704, vocab=2048),  # 3.5M, configs/models/llama-3m
}


def make_weights(size: ModelSize, seed: int) -> dict[str, Tensor]:
    """Random weights by name: normal with deviation .02, gains 1, as transformers' Llama has them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.02

    weights = {"embed": draw(size.vocab, size.width)}
    for i in range(size.layers):
        for name in ("q", "k", "v", "o"):
            weights[f"{i}.{name}"] = draw(size.width, size.width)
        weights[f"{i}.gate"] = draw(size.ffn, size.width)
        weights[f"{i}.up"] = draw(size.ffn, size.width)
        weights[f"{i}.down"] = draw(size.width, size.ffn)
        weights[f"{i}.norm1"] = torch.ones(size.width)
        weights[f"{i}.norm2"] = torch.ones(size.width)
    weights["norm"] = torch.ones(size.width)
    weights["head"] = draw(size.vocab, size.width)
    return weights


def _normalise(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * gain[:, None, :]


def _rotate(x: Tensor) -> Tensor:
    """Rotary positions for x [..., tokens, head width]."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin, a, b = angles.cos(), angles.sin(), x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def compute_losses(weights: dict[str, Tensor], tokens: Tensor, size: ModelSize) -> Tensor:
    """Mean nats per token of every worker, [W]; weights [W, ...], tokens int64 [W, B, T + 1]."""
    workers, batch, length = tokens.shape[0], tokens.shape[1], tokens.shape[2] - 1
    inputs = tokens[:, :, :-1] + (torch.arange(workers) * size.vocab)[:, None, None]
    x = functional.embedding(inputs, weights["embed"].reshape(-1, size.width))
    x = x.view(workers, batch * length, size.width)

    def project(x: Tensor, name: str) -> Tensor:
        return torch.bmm(x, weights[name].transpose(1, 2))

    for i in range(size.layers):
        y = _normalise(x, weights[f"{i}.norm1"])
        q, k, v = (
            project(y, f"{i}.{name}").view(workers * batch, length, size.heads, -1).transpose(1, 2)
            for name in ("q", "k", "v")
        )
        y = functional.scaled_dot_product_attention(_rotate(q), _rotate(k), v, is_causal=True)
        y = y.transpose(1, 2).reshape(workers, batch * length, size.width)
        x = x + project(y, f"{i}.o")
        y = _normalise(x, weights[f"{i}.norm2"])
        x = x + project(functional.silu(project(y, f"{i}.gate")) * project(y, f"{i}.up"), f"{i}.down")
    logits = project(_normalise(x, weights["norm"]), "head").view(-1, size.vocab)
    losses = functional.cross_entropy(logits, tokens[:, :, 1:].reshape(-1), reduction="none")
    return losses.view(workers, -1).mean(1)


def compute_gradients(weights: dict[str, Tensor], tokens: Tensor, size: ModelSize) -> dict[str, Tensor]:
    """Every worker's gradient, by name [W, ...]; weights as compute_losses takes them."""
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    compute_losses(leaves, tokens, size).sum().backward()
    gradients = {}
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        gradients[name] = leaf.grad
    return gradients


class Corpus:
    """Training and held-out windows of a token file: the last twentieth of every text is held out."""

    def __init__(self, path: Path, seed: int, seq_len: int) -> None:
        with np.load(path) as file:
            texts = [torch.from_numpy(file[name].astype(np.int64)) for name in file.files]
        cuts = [int(len(text) * 0.95) for text in texts]
        self._train = torch.cat([text[:cut] for text, cut in zip(texts, cuts, strict=True)])
        self._held_out = torch.cat([text[cut:] for text, cut in zip(texts, cuts, strict=True)])
        self._seq_len = seq_len
        self._generator = torch.Generator().manual_seed(1000 + seed)
        fixed = torch.Generator().manual_seed(0)
        self.held_out = self._cut(self._held_out, EVAL_SEQUENCES, fixed)

    def _cut(self, tokens: Tensor, num: int, generator: torch.Generator) -> Tensor:
        starts = torch.randint(0, len(tokens) - self._seq_len - 1, (num, 1), generator=generator)
        return tokens[starts + torch.arange(self._seq_len + 1)]

    def get_batch(self, num: int) -> Tensor:
        """Token ids [num, seq_len + 1]."""
        return self._cut(self._train, num, self._generator)


def prepare_corpus(target: Path, texts: list[Path], vocab: int) -> None:
    """uint16 tokens of every text, cut with a byte-level BPE vocabulary that is learnt from all of them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = [path.read_text(errors="replace").splitlines(keepends=True) for path in texts]
    everything = (line for text in lines for line in text)
    tokenizer.train_from_iterator(everything, trainers.BpeTrainer(vocab_size=vocab, show_progress=False))
    tokens = {
        f"text{i}": np.concatenate([np.array(x.ids, dtype=np.uint16) for x in tokenizer.encode_batch(text)])
        for i, text in enumerate(lines)
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez(target, **tokens)


def evaluate(weights: dict[str, Tensor], corpus: Corpus, size: ModelSize) -> float:
    """Validation loss of one set of weights, nats per token."""
    single = {name: w[None] for name, w in weights.items()}
    with torch.no_grad():
        parts = corpus.held_out.split(64)
        return float(torch.cat([compute_losses(single, part[None], size) for part in parts]).mean())
