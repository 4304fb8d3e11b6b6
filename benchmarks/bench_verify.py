"""Does verification find cheats, spare honest clients, and cost next to nothing?

    python benchmarks/bench_verify.py [--model small|3m] [--steps 170] [--seed 1] [--cheat-every 20]
                                      [--calibrate] [--rejudge SEED,...] [--sizes 10,125] [--text PATH]
                                      [--out runs/convergence]

Four trainers of a Llama (0.9M parameters, or the 3.5M of configs/models/llama-3m) on Shakespeare's plays, 16
sequences of 64 tokens per round, results applied two rounds later, lookahead at the own pending message. They
compute with one thread, two threads, sample by sample, and in bfloat16. Three verifiers (float32, float32
with two threads and other micro batches, bfloat16) check every message on 64 tiles that the real draw
samples: FP32 thresholds between float32 clients, BF16 where either side computes in bfloat16. Every
--cheat-every rounds each cheat of tests/support/verify_cheats.py is played and judged. The last line is one
JSON object:

    checked_messages, checked_tiles, false_verdicts   of honest trainers
    ill_conditioned  of these, messages that bfloat16 pairs let be: their own two gradients differ too much
    honest           worst statistics seen, for float32 pairs and for pairs with bfloat16
    cheats           for each: ``caught_fp32`` and ``caught_bf16`` (shares of its messages), the reasons, the
                     statistic nearest to honest, and ``rounds`` until it is caught at 1, 5 and 20 %: median
                     and 95th percentile of the draw played over 100 clients, beside those of 1-(1-v*c)^m
    trainer_share    the commitment's CPU time over a training step's, the worst of the sizes
    sizes            bytes and CPU milliseconds that verification adds for a trainer and for a verifier
    client           the same a round on the client's own code: see benchmarks/verify_client_costs.py

--calibrate prints the distribution of every statistic instead; it uses other seeds than the default run. All
measurements are kept in --out; --rejudge 1,2 applies the thresholds of psyche_py/verify to those of the runs
with these seeds, without playing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

# Before torch loads: two threads that spin for each other on a busy machine take ten times the CPU time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from bench_convergence import VOCAB, Data, compute_loss, make_model, prepare_tokens
from bench_distro import make_parameters, measure_training_ms

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from verify_cheats import CHEATS  # noqa: E402
from verify_client_costs import measure_client  # noqa: E402
from verify_fleet import Compute, Fleet, Scene  # noqa: E402

from psyche_py.coordinator.committee import (  # noqa: E402
    COMMITTEE_SALT,
    compute_num_verifiers,
    compute_ranks_at,
    compute_role_seed,
)
from psyche_py.coordinator.duties import draw_duties  # noqa: E402
from psyche_py.distro import Cosine, DistroConfig, DistroOptimizer  # noqa: E402
from psyche_py.verify import (  # noqa: E402
    BF16,
    FP32,
    CheckInput,
    Duty,
    Finding,
    Measurement,
    MomentumSnapshot,
    Reason,
    Verdict,
    compute_sampled_tiles,
    encode_reveal,
)
from psyche_py.verify.check import check_message  # noqa: E402
from psyche_py.verify.thresholds import Thresholds  # noqa: E402
from psyche_py.verify.tiles import FloatArray, cut_tiles  # noqa: E402

TRAINERS = [Compute(), Compute(threads=2), Compute(micro_batch=1), Compute(is_bf16=True)]
VERIFIERS = [Compute(), Compute(threads=2, micro_batch=2), Compute(is_bf16=True)]
PEAK_LR = 3e-3
NUM_CLIENTS, NUM_DRAWN_ROUNDS, LAZY_PERIOD = 100, 3000, 10
# Alignments below -2 are possible in theory (a tile with one large element) and would be caught here as well.
MEASURE_ALL = Thresholds(min_alignment=-2.0, max_residual=1.0, max_violation=1.0, min_jaccard=0.0)
LIMITS = {"fp32": FP32, "bf16": BF16}
NUMBERS = ("alignment", "residual", "violation", "jaccard", "noise")


@dataclass
class Tally:
    """Results of checks of one sort: what was measured, or the reason why nothing could be."""

    thresholds: Thresholds
    numbers: list[Measurement] = field(default_factory=list)
    unmeasured: list[Reason] = field(default_factory=list)
    num_tiles: int = 0

    def add(self, verdict: Verdict, num_tiles: int) -> None:
        """A verdict of MEASURE_ALL."""
        self.num_tiles += num_tiles
        if verdict.reason is Reason.NONE:
            self.numbers.append(verdict.measurement)
        else:
            self.unmeasured.append(verdict.reason)

    @property
    def reasons(self) -> Counter[Reason]:
        """How the thresholds judge what was measured."""
        return Counter([*self.unmeasured, *map(self.thresholds.judge, self.numbers)])

    @property
    def num_messages(self) -> int:
        """Messages checked."""
        return len(self.numbers) + len(self.unmeasured)

    @property
    def caught(self) -> float:
        """Share that was not found honest."""
        found = sum(num for reason, num in self.reasons.items() if reason.finding is not Finding.HONEST)
        return found / max(1, self.num_messages)

    def get_quantiles(self, shares: tuple[float, ...]) -> dict[str, list[float]]:
        """Quantiles of every statistic of messages that could be judged."""
        judged = [x for x in self.numbers if not self.thresholds.is_too_noisy(x)]
        table = np.array([astuple(x) for x in judged], dtype=np.float64).reshape(-1, 5) / 1e6
        if not len(table):
            return {}
        return {name: np.quantile(table[:, i], shares).round(6).tolist() for i, name in enumerate(NUMBERS)}


def make_small_model(seed: int) -> torch.nn.Module:
    """A Llama of 0.9M parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    model: torch.nn.Module = LlamaForCausalLM(config)
    return model


class Bench:
    """Plays rounds, checks honest messages and cheats."""

    def __init__(self, args: argparse.Namespace, tokens: Path) -> None:
        self._args = args
        model = make_small_model(args.seed) if args.model == "small" else make_model(args.seed)
        self._fleet = Fleet(model, compute_loss, DistroConfig(), TRAINERS)
        self._data = Data(str(tokens), args.seed)
        self._random, self._rng = random.Random(args.seed), np.random.default_rng(args.seed)
        self._schedule = Cosine(PEAK_LR, args.steps, PEAK_LR / 10, warmup_steps=min(20, args.steps // 4))
        self.honest = {kind: Tally(limits) for kind, limits in LIMITS.items()}
        self.cheats = {(name, kind): Tally(limits) for name in CHEATS for kind, limits in LIMITS.items()}

    def play(self) -> int:
        """All rounds; their number."""
        started = time.monotonic()
        for step in range(self._args.steps):
            batches = list(self._data.get_batch().chunk(len(TRAINERS)))
            scenes = self._fleet.play_round(batches, self._schedule.get_lr(step))
            for scene in scenes:
                gradients = [self._fleet.recompute(scene, compute) for compute in VERIFIERS]
                for compute, gradient in zip(VERIFIERS, gradients, strict=True):
                    kind = "bf16" if compute.is_bf16 or scene.compute.is_bf16 else "fp32"
                    second = gradients[0 if compute.is_bf16 else -1] if kind == "bf16" else None
                    self._check(scene, scene.answer, gradient, second, self.honest[kind])
                if scene.worker == 0 and step and step % self._args.cheat_every == 0:
                    self._play_cheats(scene, gradients[0], gradients[-1])
            if (step + 1) % 10 == 0:
                self._report(step + 1, time.monotonic() - started)

        self.save(self._args.steps)
        return int(self._args.steps)

    def _report(self, num_rounds: int, seconds: float) -> None:
        """Where the honest ones are, every ten rounds; and all measurements on disk, for --rejudge."""
        worst = {kind: tally.get_quantiles((0.0, 1.0)) for kind, tally in self.honest.items()}
        print(f"round {num_rounds}, {seconds:.0f} s, {count_false(self.honest)} false, {worst}", flush=True)
        self.save(num_rounds)

    def get_path(self, seed: int) -> Path:
        """Where the measurements of a run are kept."""
        return Path(self._args.out) / f"verify-{self._args.model}-{seed}.json"

    def save(self, num_rounds: int) -> None:
        """Keep everything measured."""
        tallies = [*self.honest.items(), *((" ".join(key), x) for key, x in self.cheats.items())]
        content = {
            name: [[astuple(x) for x in tally.numbers], list(tally.unmeasured), tally.num_tiles]
            for name, tally in tallies
        }
        self.get_path(self._args.seed).write_text(json.dumps({"rounds": num_rounds, "tallies": content}))

    def load(self, seed: int) -> int:
        """Add what an earlier run with ``seed`` measured; the number of its rounds."""
        content = json.loads(self.get_path(seed).read_text())
        for name, (numbers, unmeasured, num_tiles) in content["tallies"].items():
            tally = self.cheats[tuple(name.split(" "))] if " " in name else self.honest[name]
            tally.numbers += [Measurement(*x) for x in numbers]
            tally.unmeasured += [Reason(x) for x in unmeasured]
            tally.num_tiles += num_tiles
        return int(content["rounds"])

    def _play_cheats(self, scene: Scene, fp32: FloatArray, bf16: FloatArray) -> None:
        for name, cheat in CHEATS.items():
            deed = cheat(self._fleet, scene, self._rng)
            for kind, gradient, second in (("fp32", fp32, None), ("bf16", bf16, fp32)):
                for _ in range(2):
                    self._check(deed.scene, deed.answer, gradient, second, self.cheats[name, kind])

    def _check(
        self,
        scene: Scene,
        answer: Callable[[list[int]], bytes | None],
        gradient: FloatArray,
        second: FloatArray | None,
        tally: Tally,
    ) -> None:
        """One verification as the protocol has it; the tally applies the thresholds to its numbers."""
        seed, num_tiles = self._random.getrandbits(64), self._fleet.layout.num_tiles
        tiles = compute_sampled_tiles(seed, Duty(0, scene.worker), num_tiles)
        check = self._fleet.make_check(scene, tiles, gradient, second)
        tally.add(check_message(check, answer(tiles), MEASURE_ALL), len(tiles))


def count_false(honest: Mapping[str, Tally]) -> int:
    """Honest messages that were not found honest."""
    return sum(
        num
        for tally in honest.values()
        for reason, num in tally.reasons.items()
        if reason.finding is not Finding.HONEST
    )


# -- rounds until a cheat is caught --


def draw_rounds(percent: int) -> list[list[int]]:
    """Rounds in which each client's result is looked at, by the product's own draw."""
    source, looked_at = random.Random(percent), [[] for _ in range(NUM_CLIENTS)]
    num_verifiers = compute_num_verifiers(NUM_CLIENTS, percent)
    everybody, committed = range(NUM_CLIENTS), set(range(NUM_CLIENTS))
    for number in range(NUM_DRAWN_ROUNDS):
        seed = source.getrandbits(64)
        role_seed = compute_role_seed(seed, COMMITTEE_SALT)
        verifiers = compute_ranks_at(num_verifiers, NUM_CLIENTS, role_seed)
        for duty in draw_duties(seed, verifiers, everybody):
            if duty.trainer in committed:
                looked_at[duty.trainer].append(number)
        committed = set(everybody) - set(verifiers)
    return looked_at


def measure_waits(looked_at: list[list[int]], caught: float, seed: int) -> list[int]:
    """Rounds from one time that a cheat is caught to the next, the cheater being each client in turn.

    The clients' histories are played one after the other as one, so that long waits are not cut off.
    """
    source, waits, last = random.Random(seed), [], -1
    for i, rounds in enumerate(looked_at):
        for number in rounds:
            if source.random() < caught:
                waits.append(i * NUM_DRAWN_ROUNDS + number - last)
                last = i * NUM_DRAWN_ROUNDS + number
    return waits


def describe_waits(looked_at: list[list[int]], percent: int, caught: float) -> dict[str, float | None]:
    """Median and 95th percentile, played and by formula."""
    waits = measure_waits(looked_at, caught, percent)
    rate = percent / 100 * caught
    if rate == 0.0 or len(waits) < 20:
        return {"median": None, "p95": None, "formula_median": None, "formula_p95": None}
    formula = [max(1, math.ceil(math.log(x) / math.log1p(-rate))) if rate < 1 else 1 for x in (0.5, 0.05)]
    median, p95 = np.quantile(waits, [0.5, 0.95])
    return {
        "median": float(median),
        "p95": float(p95),
        "formula_median": formula[0],
        "formula_p95": formula[1],
    }


def summarize_cheats(cheats: dict[tuple[str, str], Tally]) -> list[dict[str, Any]]:
    """One entry per cheat, and the lazy one that cheats in one round of ten."""
    drawn = {percent: draw_rounds(percent) for percent in (1, 5, 20)}
    entries = []
    for name in CHEATS:
        fp32, bf16 = cheats[name, "fp32"], cheats[name, "bf16"]
        nearest = fp32.get_quantiles((0.0, 1.0))
        entries.append(
            {
                "kind": name,
                "caught_fp32": round(fp32.caught, 4),
                "caught_bf16": round(bf16.caught, 4),
                "reasons": {reason.name: num for reason, num in bf16.reasons.most_common()},
                "least_residual": nearest["residual"][0] if nearest else None,
                "most_jaccard": nearest["jaccard"][1] if nearest else None,
                "rounds": {str(v): describe_waits(drawn[v], v, bf16.caught) for v in drawn},
            }
        )
    lazy = 1 / LAZY_PERIOD
    waits = {str(v): describe_waits(drawn[v], v, lazy) for v in drawn}
    entries.append({"kind": f"lazy_once_in_{LAZY_PERIOD}", "rounds": waits})
    return entries


# -- what it costs --


def measure_cpu_ms(work: Callable[[], object], repeats: int = 5) -> float:
    """Least CPU time of some tries, after one that warms up."""
    times = []
    for _ in range(repeats + 1):
        started = time.process_time()
        work()
        times.append((time.process_time() - started) * 1e3)
    return min(times[1:])


def measure_costs(millions: int) -> dict[str, Any]:
    """Bytes and milliseconds at a model of about that many million parameters, on one thread."""
    torch.set_num_threads(1)
    training_ms = measure_training_ms(millions)
    parameters = make_parameters(millions)
    optimizer = DistroOptimizer(parameters.items(), DistroConfig())
    layout = optimizer.payload_layout
    before = MomentumSnapshot(layout, optimizer.momentum)
    payload = optimizer.step(1e-3)
    after = MomentumSnapshot(layout, optimizer.momentum)
    step_ms = measure_cpu_ms(lambda: optimizer.step(1e-3), 3)
    scratch = MomentumSnapshot(layout, optimizer.momentum)
    commit_ms = measure_cpu_ms(lambda: MomentumSnapshot(layout, optimizer.momentum, into=scratch))
    tiles = compute_sampled_tiles(1, Duty(0, 1), layout.num_tiles)
    answer = encode_reveal(before, after, tiles)
    answer_ms = measure_cpu_ms(lambda: encode_reveal(before, after, tiles))
    flat = torch.zeros(layout.num_stored)

    def transform() -> FloatArray:
        return cut_tiles(layout, optimizer.transform_gradient(1e-3, flat).numpy())

    gradient = transform()
    decay = DistroConfig().compression_decay
    check = CheckInput(layout, payload, before.root, after.root, tiles, decay, gradient)
    if check_message(check, answer, FP32).reason is not Reason.NONE:
        raise SystemExit("the honest message of the cost measurement was not found honest")
    return {
        "parameters": sum(p.numel() for p in parameters.values()),
        "training_ms": round(training_ms + step_ms),
        "commit_ms": round(commit_ms, 1),
        "trainer_share": round(commit_ms / (training_ms + step_ms), 5),
        "commit_bytes": 64,
        "answer_bytes": len(answer),
        "answer_ms": round(answer_ms, 1),
        "verifier_transform_ms": round(measure_cpu_ms(transform, 3), 1),
        "verifier_check_ms": round(measure_cpu_ms(lambda: check_message(check, answer, FP32), 3), 1),
        "snapshot_bytes": 4 * layout.num_stored,
    }


def main() -> None:
    """Play, measure, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=("small", "3m"), default="small")
    parser.add_argument("--steps", type=int, default=170)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cheat-every", type=int, default=20)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--rejudge", default="")
    parser.add_argument("--sizes", default="10,125")
    parser.add_argument("--text")
    parser.add_argument("--out", type=Path, default=Path("runs/convergence"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.calibrate:
        args.seed += 1000
    bench = Bench(args, prepare_tokens(args.out, args.text))
    seeds = [int(seed) for seed in args.rejudge.split(",") if seed]
    num_rounds = sum(bench.load(seed) for seed in seeds) if seeds else bench.play()
    if args.calibrate:
        shares = (0.0, 0.001, 0.01, 0.5, 0.99, 0.999, 1.0)
        for name, tally in [*bench.honest.items(), *bench.cheats.items()]:
            print(name, tally.num_messages, json.dumps(tally.get_quantiles(shares)))
        return
    sizes = [measure_costs(int(size)) for size in args.sizes.split(",") if size]
    honest = bench.honest.values()
    result = {
        "model": args.model,
        "rounds": num_rounds,
        "checked_messages": sum(tally.num_messages for tally in honest),
        "checked_tiles": sum(tally.num_tiles for tally in honest),
        "false_verdicts": count_false(bench.honest),
        "ill_conditioned": {k: tally.reasons[Reason.ILL_CONDITIONED] for k, tally in bench.honest.items()},
        "honest": {kind: tally.get_quantiles((0.0, 1.0)) for kind, tally in bench.honest.items()},
        "cheats": summarize_cheats(bench.cheats),
        "trainer_share": max((size["trainer_share"] for size in sizes), default=None),
        "sizes": sizes,
        "client": [measure_client(int(size)) for size in args.sizes.split(",") if size],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
