"""Three workers, results applied a round late with the lookahead: loss falls, replicas stay equal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from psyche_py.distro import Cosine, DistroConfig, DistroOptimizer

NUM_WORKERS = 3


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def make_batch(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 16, generator=generator)
    y = torch.tanh(x[:, :8].sum(1) - x[:, 8:].sum(1))
    return x, y.unsqueeze(1)


def compute_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def train(num_rounds: int, *, lookahead: bool = True) -> tuple[float, float, list[bytes]]:
    """Loss before, loss after, digests of the replicas. Round R applies the results of round R - 2."""
    models = [make_model() for _ in range(NUM_WORKERS)]
    config = DistroConfig(compression_topk=8, compression_decay=0.99)
    workers = [DistroOptimizer(model.named_parameters(), config) for model in models]
    schedule = Cosine(base_lr=3e-3, total_steps=num_rounds, final_lr=3e-4, warmup_steps=10)
    generator = torch.Generator().manual_seed(1)
    test = make_batch(torch.Generator().manual_seed(2), 1024)
    with torch.no_grad():
        before = float(compute_loss(models[0], test))
    results: list[list[bytes]] = []
    for step in range(num_rounds):
        lr = schedule.get_lr(step)
        payloads = []
        for model, worker in zip(models, workers, strict=True):
            if step >= 2:
                worker.apply(results[step - 2], lr)
            worker.zero_grad()
            if not lookahead:
                worker.drop_pending()
            with worker.lookahead(lr):
                compute_loss(model, make_batch(generator, 64)).backward()
            payloads.append(worker.step(lr))
        results.append(payloads)
        assert len({worker.model_digest() for worker in workers}) == 1
    with torch.no_grad():
        after = float(compute_loss(models[0], test))
    return before, after, [worker.model_digest() for worker in workers]


def test_loss_falls_with_a_round_of_delay() -> None:
    before, after, digests = train(80)
    assert after < 0.3 * before
    assert len(set(digests)) == 1


def test_training_repeats_bit_for_bit() -> None:
    assert train(20) == train(20)
