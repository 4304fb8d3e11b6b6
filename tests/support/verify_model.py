"""A language model of one hidden layer that trains in milliseconds, and text for it: twenty-one tiles."""

from __future__ import annotations

import torch
from verify_fleet import Compute, Fleet

from psyche_py.distro import DistroConfig

VOCAB, DIM, HIDDEN = 192, 128, 128


class TinyLanguageModel(torch.nn.Module):
    """Embedding, a hidden layer over the last two tokens, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, DIM)
        self.hidden = torch.nn.Linear(2 * DIM, HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [B, T - 1, VOCAB] for tokens [B, T]."""
        x = self.embed(tokens)
        return self.head(self.norm(torch.tanh(self.hidden(torch.cat([x[:, :-1], x[:, 1:]], dim=-1)))))


def compute_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean nats per token."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 2:].flatten())


def make_fleet(computes: list[Compute]) -> Fleet:
    """A fleet of the tiny model."""
    torch.manual_seed(0)
    return Fleet(TinyLanguageModel(), compute_loss, DistroConfig(), computes)


def make_batches(num: int, seed: int) -> list[torch.Tensor]:
    """[8, 33] tokens per worker: steps of one to four through the vocabulary, which can be learnt."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 5, (num * 8, 33), generator=generator)
    starts = torch.randint(0, VOCAB, (num * 8, 1), generator=generator)
    return list(((starts + steps.cumsum(1)) % VOCAB).chunk(num))
