"""How much do t of n clients that send poison change what is learnt, and what helps?

    python benchmarks/bench_poison.py [--workers 8,16] [--eighths 1,2,3] [--steps 120] [--seed 1]
                                      [--clips clip-1,clip-2]
                                      [--json PATH]

A language model of one hidden layer (tests/support/verify_model.py) learns by rounds from made-up text whose
entropy is log 4 = 1.386 nats a token; updates are signs of summed signs. Poisoners act as one:

    negated    each sends what its negated gradient leads to
    random     each sends random places and signs
    targeted   all send the same: the places that their pooled momentum holds largest, with the wrong signs,
               so that their votes fall on the same coefficients

Defences:

    none       everybody's message counts
    clip-1     no coefficient counts more than one vote, however many send it (an experiment of this
               benchmark: the product has no such rule). The clipped votes are coded as messages again and
               applied by the product's own update.
    clip-2     no more than two
    verified   the rule book's committees look at messages at 5 %; what the real checker finds in them is
               measured in the run without defence. Who is ejected sends nothing until the next epoch (of 50
               rounds), and comes back with a new wallet.

The last line is one JSON object: ``honest`` (final loss by workers and defence without poisoners), ``runs``
[{workers, poisoners, attack, defence, loss, change}]; ``change`` is the loss minus the honest one of the same
defence. 20 is written for a loss above 20, or one that is no number.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from clip_votes import clip_votes  # noqa: E402
from verify_model import TinyLanguageModel, compute_loss, make_batches  # noqa: E402

from psyche_py.distro import Cosine, DistroConfig, DistroOptimizer  # noqa: E402
from psyche_py.distro.payload import (  # noqa: E402
    encode_payload,
    get_position_dtype,
    make_group_message,
)
from psyche_py.sim.economy.conduct import Case, Cheat, Person  # noqa: E402
from psyche_py.sim.economy.run import EconomyRun  # noqa: E402
from psyche_py.sim.economy.settings import EconomySettings  # noqa: E402
from psyche_py.sim.economy.side import RuleBookSide  # noqa: E402
from psyche_py.verify import FP32, CheckInput, Finding, MomentumSnapshot, check_message, encode_reveal  # noqa: E402
from psyche_py.verify.tiles import cut_tiles  # noqa: E402

PEAK_LR, WORST = 3e-3, 20.0
ATTACKS = ("negated", "random", "targeted")
LIMITS = {"clip-1": 1, "clip-2": 2}
CHECK_EVERY = 25


@dataclass(frozen=True)
class Setting:
    """One run. ``presence``: numbers of the workers whose message counts, by round; None: all."""

    workers: int
    poisoners: int
    attack: str
    defence: str
    steps: int
    seed: int
    presence: tuple[frozenset[int], ...] | None = None


class PoisonRun:
    """Workers over one set of weights; the first ``poisoners`` of them are none."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(setting.seed)
        torch.set_num_threads(1)
        self._setting, self._model = setting, TinyLanguageModel()
        named = list(self._model.named_parameters())
        self._workers = [DistroOptimizer(named, DistroConfig()) for _ in range(setting.workers)]
        # the poisoners' pooled momentum
        self._leader = DistroOptimizer(named, DistroConfig())
        self._layout = self._leader.payload_layout
        self._rng = np.random.default_rng(setting.seed)
        self.cases: list[Case] = []

    def play(self) -> float:
        """The loss on held-out text after all rounds."""
        setting = self._setting
        schedule = Cosine(PEAK_LR, setting.steps, PEAK_LR / 10, warmup_steps=min(20, setting.steps // 4))
        for step in range(setting.steps):
            lr = schedule.get_lr(step)
            batches = [part[:4] for part in make_batches(setting.workers, setting.seed * 10_000 + step)]
            payloads = self._make_payloads(step, lr, batches)
            if setting.presence is not None:
                here = setting.presence[step]
                payloads = [payload for i, payload in enumerate(payloads) if i in here]
            if setting.defence in LIMITS and payloads:
                payloads = clip_votes(self._layout, payloads, LIMITS[setting.defence])
            if payloads:
                self._workers[-1].apply(payloads, lr)
        return self._evaluate()

    def _make_payloads(self, step: int, lr: float, batches: Sequence[torch.Tensor]) -> list[bytes]:
        setting, payloads = self._setting, []
        joint = self._lead(lr, batches) if setting.attack == "targeted" and setting.poisoners else b""
        for i, (worker, batch) in enumerate(zip(self._workers, batches, strict=True)):
            is_poisoner, is_checked = i < setting.poisoners, i == 0 and step % CHECK_EVERY == CHECK_EVERY - 1
            if is_poisoner and joint and not is_checked:
                payloads.append(joint)
                continue
            self._compute_gradient(worker, [batch])
            if is_checked:
                gradient = cut_tiles(self._layout, worker.transform_gradient(lr).numpy())
                before = MomentumSnapshot(self._layout, worker.momentum)
            if is_poisoner and setting.attack == "negated":
                self._negate()
            payload = worker.step(lr)
            if is_poisoner and setting.attack == "random":
                payload = self._make_random()
            payloads.append(joint if is_poisoner and joint else payload)
            if is_checked:
                after = MomentumSnapshot(self._layout, worker.momentum)
                self._check(payloads[-1], before, after, gradient)
        return payloads

    def _compute_gradient(self, worker: DistroOptimizer, batches: Sequence[torch.Tensor]) -> None:
        worker.drop_pending()
        worker.zero_grad()
        for batch in batches:
            (compute_loss(self._model, batch) / len(batches)).backward()

    def _negate(self) -> None:
        for p in self._model.parameters():
            if p.grad is not None:
                p.grad.neg_()

    def _lead(self, lr: float, batches: Sequence[torch.Tensor]) -> bytes:
        """The message that all poisoners send."""
        self._compute_gradient(self._leader, batches[: self._setting.poisoners])
        self._negate()
        return self._leader.step(lr)

    def _make_random(self) -> bytes:
        message = []
        for group in self._layout.groups:
            keys = self._rng.random((group.num_tiles, group.tile_size))
            positions = np.argpartition(keys, group.topk - 1, axis=1)[:, : group.topk].astype(np.int64)
            values = self._rng.standard_normal(positions.shape).astype(np.float32)
            message.append(make_group_message(positions, values, get_position_dtype(group)))
        return encode_payload(self._layout, tuple(message))

    def _check(
        self, payload: bytes, before: MomentumSnapshot, after: MomentumSnapshot, gradient: Any
    ) -> None:
        """What a verifier finds in the first worker's message, from the momentum of its own message."""
        tiles = list(range(self._layout.num_tiles))
        decay = DistroConfig().compression_decay
        check = CheckInput(self._layout, payload, before.root, after.root, tiles, decay, gradient)
        reason = check_message(check, encode_reveal(before, after, tiles), FP32).reason
        found = 0 if reason.finding is Finding.HONEST else int(reason)
        self.cases.append((found, found))

    def _evaluate(self) -> float:
        with torch.no_grad():
            loss = float(compute_loss(self._model, torch.cat(make_batches(16, 999_999_937))))
        return min(loss, WORST) if math.isfinite(loss) else WORST


def draw_presence(setting: Setting, cases: Sequence[Case]) -> tuple[tuple[frozenset[int], ...], float]:
    """Whose message counts in every round when verifiers look, and convictions per poisoner."""
    settings = EconomySettings(num_epochs=-(-setting.steps // 50))
    poison = Cheat(setting.attack, cases=tuple(cases))
    people = [Person(number, -1, moves_on=True) for number in range(setting.workers)]
    for person in people[: setting.poisoners]:
        person.cheat, person.gang = poison, 1
    name = f"poison {setting.workers} {setting.poisoners} {setting.attack} {setting.seed}"
    run = EconomyRun(RuleBookSide(name), settings, people, random.Random(setting.seed))
    run.play()
    convictions = sum(p.convictions for p in people[: setting.poisoners]) / max(1, setting.poisoners)
    return tuple(run.tally.presence[: setting.steps]), convictions


def play_all(args: argparse.Namespace) -> dict[str, Any]:
    """Every combination, and the honest runs beside them."""
    honest: dict[str, dict[str, float]] = {}
    runs: list[dict[str, Any]] = []

    def play(setting: Setting, **more: object) -> PoisonRun:
        run = PoisonRun(setting)
        loss = run.play()
        if setting.poisoners == 0:
            honest.setdefault(str(setting.workers), {})[setting.defence] = round(loss, 4)
        else:
            change = round(loss - honest[str(setting.workers)][setting.defence], 4)
            names = ("workers", "poisoners", "attack", "defence")
            entry = {name: getattr(setting, name) for name in names}
            runs.append({**entry, "loss": round(loss, 4), "change": change, **more})
        print(
            f"{time.monotonic() - started:.0f} s: {setting.workers} {setting.poisoners} "
            f"{setting.attack} {setting.defence} {loss:.4f} {more}",
            flush=True,
        )
        return run

    started, limits = time.monotonic(), [name for name in args.clips.split(",") if name]
    for workers in map(int, args.workers.split(",")):
        base = Setting(workers, 0, "", "none", args.steps, args.seed)
        for defence in ("none", *limits):
            play(Setting(workers, 0, "", defence, args.steps, args.seed))
        play(Setting(workers, 0, "", "verified", args.steps, args.seed, draw_presence(base, [(0, 0)])[0]))
        for poisoners in (workers * int(x) // 8 for x in args.eighths.split(",")):
            for attack in ATTACKS:
                make = (workers, poisoners, attack)
                cases = play(Setting(*make, "none", args.steps, args.seed)).cases
                caught = sum(case[0] != 0 for case in cases) / len(cases)
                for defence in limits:
                    play(Setting(*make, defence, args.steps, args.seed))
                setting = Setting(*make, "verified", args.steps, args.seed)
                presence, convictions = draw_presence(setting, cases)
                here = sum(i in now for now in presence for i in range(poisoners))
                share = round(here / len(presence) / poisoners, 3)
                play(
                    Setting(*make, "verified", args.steps, args.seed, presence),
                    caught=caught,
                    convictions=round(convictions, 2),
                    present=share,
                )
    return {
        "steps": args.steps,
        "seed": args.seed,
        "entropy": round(math.log(4), 4),
        "honest": honest,
        "runs": runs,
    }


def main() -> None:
    """Play, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", default="8,16")
    parser.add_argument("--eighths", default="1,2,3")
    parser.add_argument("--clips", default=",".join(LIMITS))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    line = json.dumps(play_all(args))
    if args.json:
        args.json.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
