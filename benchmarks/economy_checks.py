"""What the real checker finds in the messages of cheats, and what they cost: the cases of bench_economy.

Four trainers of a tiny language model, one of them in bfloat16, play as in bench_verify; then every cheat
of tests/support/verify_cheats.py is committed to, drawn, revealed and checked by clients of two kinds. A case
is the pair of reasons that both kinds find in one message.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import verify_cheats
from verify_fleet import Compute, Fleet, Scene
from verify_model import TinyLanguageModel, compute_loss, make_batches

from psyche_py.distro import DistroConfig
from psyche_py.sim.economy.conduct import Case
from psyche_py.verify import BF16, FP32, Duty, Finding, Reason, compute_sampled_tiles
from psyche_py.verify.check import check_message
from psyche_py.verify.thresholds import Thresholds
from psyche_py.verify.tiles import FloatArray

TRAINERS = [Compute(), Compute(micro_batch=2), Compute(micro_batch=1), Compute(is_bf16=True)]
LR = 3e-3
WARMUP_ROUNDS = 6


class CountingFleet(Fleet):
    """Counts the tokens that gradients are computed from; when idle it computes none."""

    num_tokens = 0
    is_idle = False

    def compute_gradient(self, tokens: torch.Tensor, compute: Compute) -> None:
        """As Fleet's."""
        if self.is_idle:
            self.bench.zero_grad()
            return
        self.num_tokens += tokens.numel()
        super().compute_gradient(tokens, compute)

    @contextmanager
    def without_work(self) -> Iterator[None]:
        """Inside, nobody computes anything."""
        self.is_idle = True
        try:
            yield
        finally:
            self.is_idle = False


@dataclass
class Cases:
    """What was found in messages of a kind, by the limits of the fleet, and the shares of a round's work."""

    fp32: list[Case] = field(default_factory=list)
    mixed: list[Case] = field(default_factory=list)
    works: list[float] = field(default_factory=list)

    @property
    def work(self) -> float:
        """Share of the tokens of an honest round."""
        return float(np.mean(self.works))


def get_share(cases: Sequence[Case]) -> float:
    """How much of a kind's messages a look convicts."""
    return float(np.mean([[reason != 0 for reason in case] for case in cases]))


class Workshop:
    """Plays rounds, and has cheats judged."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._fleet = CountingFleet(TinyLanguageModel(), compute_loss, DistroConfig(), TRAINERS)
        self._rng, self._random = np.random.default_rng(seed), random.Random(seed)
        self._seed = seed

    def measure(self, kinds: dict[str, tuple[str, bool]], num_rounds: int) -> dict[str, Cases]:
        """For each kind (name of the cheat, whether without work), and for ``honest``."""
        found: dict[str, Cases] = {name: Cases() for name in ("honest", *kinds)}
        for step in range(WARMUP_ROUNDS + num_rounds):
            batches = make_batches(len(TRAINERS), self._seed * 1000 + step)
            scenes = self._fleet.play_round(batches, LR)
            if step < WARMUP_ROUNDS:
                continue
            for scene in (scenes[0], scenes[3]):
                gradients = self._recompute(scene)
                honest = verify_cheats.Deed(scene, scene.answer)
                self._judge(honest, scene, gradients, found["honest"], 1.0)
                for name, (cheat, is_idle) in kinds.items():
                    deed, work = self._commit(cheat, is_idle, scene)
                    self._judge(deed, scene, gradients, found[name], work)
        return found

    def _recompute(self, scene: Scene) -> list[FloatArray]:
        """The gradients of three sorts of clients: float32, in other micro batches, bfloat16."""
        computes = (Compute(), Compute(micro_batch=2), Compute(is_bf16=True))
        return [self._fleet.recompute(scene, compute) for compute in computes]

    def _commit(self, cheat: str, is_idle: bool, scene: Scene) -> tuple[verify_cheats.Deed, float]:
        """The deed, and the share of the work that it took."""
        before = self._fleet.num_tokens
        if is_idle:
            with self._fleet.without_work():
                deed = verify_cheats.CHEATS[cheat](self._fleet, scene, self._rng)
        else:
            deed = verify_cheats.CHEATS[cheat](self._fleet, scene, self._rng)
        return deed, (self._fleet.num_tokens - before) / scene.tokens.numel()

    def _judge(
        self,
        deed: verify_cheats.Deed,
        scene: Scene,
        gradients: list[FloatArray],
        found: Cases,
        work: float,
    ) -> None:
        fp32, other, bf16 = gradients
        found.works.append(work)
        if not scene.compute.is_bf16:
            case = self._check(deed, fp32, None, FP32), self._check(deed, other, None, FP32)
            found.fp32.append(case)
        found.mixed.append((self._check(deed, fp32, bf16, BF16), self._check(deed, bf16, fp32, BF16)))

    def _check(
        self,
        deed: verify_cheats.Deed,
        gradient: FloatArray,
        second: FloatArray | None,
        limits: Thresholds,
    ) -> int:
        """The reason to accuse; 0: none."""
        duty = Duty(0, deed.scene.worker + 1)
        tiles = compute_sampled_tiles(self._random.getrandbits(64), duty, self._fleet.layout.num_tiles)
        check = self._fleet.make_check(deed.scene, tiles, gradient, second)
        reason: Reason = check_message(check, deed.answer(tiles), limits).reason
        return 0 if reason.finding is Finding.HONEST else int(reason)
