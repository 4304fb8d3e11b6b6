"""Trainers over one set of weights, their commitments, and a verifier that recomputes what they did.

Shared by the tests of verification and by benchmarks/bench_verify.py. Everything is the product's own: only
the network is left out, since a verifier of the same process has the weights and the batches anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch

from psyche_py.distro import DistroConfig, DistroOptimizer, group_parameters
from psyche_py.verify import CheckInput, MomentumSnapshot, encode_reveal
from psyche_py.verify.tiles import FloatArray, cut_tiles

NUM_OLD_WEIGHTS = 11
LossFunction = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


class Compute(NamedTuple):
    """How a client computes a gradient: threads, samples per pass, bfloat16 autocast or float32."""

    threads: int = 1
    micro_batch: int = 4
    is_bf16: bool = False


@dataclass(frozen=True)
class Scene:
    """One trainer's step, and what a cheater could use instead.

    momentum:      before the step, the optimizer's arrangement
    pending:       its message of the round before, which the lookahead foresees
    before, after: snapshots
    """

    worker: int
    step: int
    lr: float
    tokens: torch.Tensor
    momentum: torch.Tensor
    pending: bytes
    payload: bytes
    before: MomentumSnapshot
    after: MomentumSnapshot
    compute: Compute

    def answer(self, tiles: Sequence[int]) -> bytes:
        """What an honest trainer reveals."""
        return encode_reveal(self.before, self.after, tiles)


class Fleet:
    """Workers that train by rounds; results are applied two rounds later, as in a run."""

    def __init__(
        self, model: torch.nn.Module, loss: LossFunction, config: DistroConfig, computes: Sequence[Compute]
    ) -> None:
        self.model, self.config, self.computes = model, config, list(computes)
        self._loss = loss
        self.workers = [self.make_optimizer(config) for _ in computes]
        self.layout = self.workers[0].payload_layout
        # computes gradients for whoever is not a worker; its momentum is scratch
        self.bench = self.make_optimizer(config)
        self.snapshots = [MomentumSnapshot(self.layout, worker.momentum) for worker in self.workers]
        self.results: list[list[bytes]] = []
        self.tokens: list[Sequence[torch.Tensor]] = []
        self.old_weights: deque[dict[str, torch.Tensor]] = deque(maxlen=NUM_OLD_WEIGHTS)

    def make_optimizer(self, config: DistroConfig) -> DistroOptimizer:
        """Over the model, with the rates that a trainer gives it."""
        return DistroOptimizer(group_parameters(self.model, config), config)

    def play_round(self, batches: Sequence[torch.Tensor], lr: float) -> list[Scene]:
        """Apply what is due, train, commit. The scenes are good until the next round."""
        step = len(self.results)
        if step >= 2:
            self.workers[0].apply(self.results[step - 2], lr)
        self.old_weights.append({n: p.detach().clone() for n, p in self.model.named_parameters()})
        scenes = []
        for i, (worker, tokens) in enumerate(zip(self.workers, batches, strict=True)):
            pending = self.results[-1][i] if self.results else b""
            before, momentum = self.snapshots[i], worker.momentum.clone()
            with worker.lookahead(lr):
                self.compute_gradient(tokens, self.computes[i])
            payload = worker.step(lr)
            self.snapshots[i] = MomentumSnapshot(self.layout, worker.momentum)
            scenes.append(
                Scene(
                    i,
                    step,
                    lr,
                    tokens,
                    momentum,
                    pending,
                    payload,
                    before,
                    self.snapshots[i],
                    self.computes[i],
                )
            )
        self.results.append([scene.payload for scene in scenes])
        self.tokens.append(list(batches))
        return scenes

    def compute_gradient(self, tokens: torch.Tensor, compute: Compute) -> None:
        """Leave the gradient of the mean loss in ``.grad``, at the weights as they are."""
        torch.set_num_threads(compute.threads)
        self.bench.zero_grad()
        for part in tokens.split(compute.micro_batch):
            autocast = torch.autocast("cpu", dtype=torch.bfloat16) if compute.is_bf16 else nullcontext()
            with autocast:
                loss = self._loss(self.model, part)
            (loss.float() * (len(part) / len(tokens))).backward()

    def compute_public_gradient(self, scene: Scene, tokens: torch.Tensor, compute: Compute) -> None:
        """Leave the gradient at the scene's lookahead point in ``.grad``."""
        with self.bench.lookahead(scene.lr, [scene.pending] if scene.pending else []):
            self.compute_gradient(tokens, compute)

    def recompute(self, scene: Scene, compute: Compute) -> FloatArray:
        """What a verifier computes: the scene's gradient, transformed, tile-major."""
        self.compute_public_gradient(scene, scene.tokens, compute)
        transformed = self.bench.transform_gradient(scene.lr)
        return cut_tiles(self.layout, transformed.numpy())

    def make_check(
        self, scene: Scene, tiles: Sequence[int], gradient: FloatArray, second: FloatArray | None = None
    ) -> CheckInput:
        """The check of what the scene's trainer committed to."""
        roots = scene.before.root, scene.after.root
        decay = self.config.compression_decay
        return CheckInput(self.layout, scene.payload, *roots, tiles, decay, gradient, second)

    @contextmanager
    def use_old_weights(self, age: int) -> Iterator[None]:
        """Inside, the model has the weights of ``age`` rounds ago, or the oldest kept."""
        old = self.old_weights[max(0, len(self.old_weights) - 1 - age)]
        true = {n: p.data for n, p in self.model.named_parameters()}
        try:
            for n, p in self.model.named_parameters():
                p.data = old[n].clone()
            yield
        finally:
            for n, p in self.model.named_parameters():
                p.data = true[n]
