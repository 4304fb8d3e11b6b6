"""Local steps beside the default step, at equal tokens and at equal bytes: the product's optimizers.

    python benchmarks/study_local_steps.py "local=1 topk=8,64" "local=8 topk=64 lr=4e-3" [--text PATH]
                                           [--model configs/models/nano] [--out runs/convergence]
    python benchmarks/study_local_steps.py --table | --plot docs/distro_local_steps.png

Every argument is a grid over the fields of ``Setting``; its runs are made one after the other, on one thread,
and appended to benchmarks/results/local_steps.jsonl, those that are there already left out. Data, model and
evaluation are those of bench_convergence.py: 16 sequences of 64 tokens a batch, split over the workers.

A round takes ``batches`` batches: one for the default's step (more: one gradient of all of them), one for
each local step. Rates follow a cosine over rounds, which count from 1 as a run's steps do, to a tenth, after
5 % of warm-up. ``bytes`` is what one worker sends per batch of 1,024 tokens (all workers together) and 4,096
parameters of a 64 x 64 tile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from bench_convergence import SEQUENCES, Data, compute_loss, evaluate, get_vocab, make_model, prepare_tokens

from psyche_py.distro import (
    Cosine,
    DistroConfig,
    DistroOptimizer,
    LocalOptimizer,
    PayloadLayout,
    group_parameters,
    make_optimizer,
)

RESULTS = Path(__file__).parent / "results" / "local_steps.jsonl"
NANO = Path(__file__).parents[1] / "configs" / "models" / "nano"
CURVE_POINTS = 10


@dataclass(frozen=True)
class Setting:
    """One run.

    local:    local steps a round; 1 is the default's step
    batches:  batches of a round for the default's step; local steps take one each
    total:    batches of the whole run
    late:     results are applied a round late, gradients taken at the point of all pending messages
    decay:    of momentum, or of what is unsent
    """

    local: int = 1
    topk: int = 8
    lr: float = 8e-3
    workers: int = 4
    total: int = 400
    batches: int = 1
    late: bool = False
    decay: float = 0.999
    scale: float = 4.0
    seed: int = 0

    @property
    def round_batches(self) -> int:
        """Batches of a round."""
        return self.batches if self.local == 1 else self.local

    def make_config(self) -> DistroConfig:
        """The optimizer's configuration."""
        return DistroConfig(
            local_steps=self.local,
            compression_topk=self.topk,
            compression_decay=self.decay,
            vocab_lr_scale=self.scale,
        )

    def compute_bytes(self) -> float:
        """What a worker sends per batch for 4,096 parameters."""
        (group,) = PayloadLayout.from_shapes({"w": (4096, 4096)}, self.make_config()).groups
        return group.num_bytes / group.num_tiles / self.round_batches


class Workers:
    """Workers over one set of weights, which all of them would have."""

    def __init__(self, setting: Setting, model: torch.nn.Module) -> None:
        config = setting.make_config()
        groups = group_parameters(model, config)
        self._workers = [make_optimizer(groups, config) for _ in range(setting.workers)]
        self._model, self._setting = model, setting
        self._waiting: list[list[bytes]] = []

    def train(self, lr: float, batches: Sequence[torch.Tensor]) -> None:
        """One round: apply what is due, then every worker trains its part of every batch."""
        if len(self._waiting) > self._setting.late:
            self._workers[0].apply(self._waiting.pop(0), lr)
        pending = self._waiting[-1] if self._waiting else []
        results = []
        for i, worker in enumerate(self._workers):
            parts = [batch.chunk(self._setting.workers)[i] for batch in batches]
            others = [payload for j, payload in enumerate(pending) if j != i]
            results.append(self._work(worker, lr, parts, others))
        self._waiting.append(results)

    def _work(
        self,
        worker: DistroOptimizer | LocalOptimizer,
        lr: float,
        parts: Sequence[torch.Tensor],
        others: Sequence[bytes],
    ) -> bytes:
        if not self._setting.late:
            worker.drop_pending()
        worker.zero_grad()
        with worker.lookahead(lr, others):
            for part in parts:
                (compute_loss(self._model, part) / (1 if self._setting.local > 1 else len(parts))).backward()
                if isinstance(worker, LocalOptimizer):
                    worker.inner_step(lr)
                    worker.zero_grad()
        return worker.step(lr)

    def finish(self, lr: float) -> None:
        """Apply the rounds that are still on their way."""
        while self._waiting:
            self._workers[0].apply(self._waiting.pop(0), lr)


def run(setting: Setting, data_path: str, model_path: Path) -> dict[str, Any]:
    """Train; the curve is [batches, validation loss in nats per token]."""
    torch.set_num_threads(1)
    data, model = Data(data_path, setting.seed), make_model(setting.seed, model_path)
    workers, rounds = Workers(setting, model), setting.total // setting.round_batches
    schedule = Cosine(setting.lr, rounds, setting.lr * 0.1, warmup_steps=max(1, rounds // 20))
    started, curve = time.process_time(), []
    for i in range(rounds):
        workers.train(schedule.get_lr(i + 1), [data.get_batch() for _ in range(setting.round_batches)])
        is_last = i + 1 == rounds
        if is_last:
            workers.finish(schedule.get_lr(i + 1))
        if is_last or (i + 1) * CURVE_POINTS // rounds > i * CURVE_POINTS // rounds:
            curve.append(((i + 1) * setting.round_batches, round(evaluate(model, data), 4)))
    return {
        "setting": asdict(setting),
        "bytes": round(setting.compute_bytes(), 2),
        "loss": curve[-1][1],
        "curve": curve,
        "tokens": rounds * setting.round_batches * SEQUENCES * 64,
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def parse_grid(text: str) -> list[Setting]:
    """All combinations of "name=value,value name=value"."""
    kinds: dict[str, Any] = {"int": int, "float": float, "bool": lambda x: x == "true"}
    types = {item.name: kinds[str(item.type)] for item in fields(Setting)}
    names = [item.partition("=")[0] for item in text.split()]
    values = [item.partition("=")[2].split(",") for item in text.split()]
    return [
        Setting(**{name: types[name](value) for name, value in zip(names, combination, strict=True)})
        for combination in itertools.product(*values)
    ]


def read_results() -> list[dict[str, Any]]:
    """Finished runs."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def print_table() -> None:
    """Best first, by bytes."""
    usual = asdict(Setting())
    for result in sorted(read_results(), key=lambda x: (x["setting"]["total"], x["bytes"], x["loss"])):
        words = [f"{name}={x}" for name, x in result["setting"].items() if x != usual[name]]
        print(f"{result['bytes']:7.2f} B  {result['loss']:.4f}  {' '.join(words)}")


def plot(path: Path, choices: Sequence[str]) -> None:
    """Curves of the runs named by grids, seeds averaged."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    results = read_results()
    for text in choices:
        wanted = [asdict(setting) for setting in parse_grid(text)]
        runs = [x for x in results if x["setting"] in wanted]
        steps = [x for x, _ in runs[0]["curve"]]
        losses = [sum(r["curve"][i][1] for r in runs) / len(runs) for i in range(len(steps))]
        label = f"{text}: {runs[0]['bytes']} B, {losses[-1]:.3f}"
        axes.plot(
            steps, losses, "--" if runs[0]["setting"]["local"] == 1 else "-", label=label, linewidth=1.2
        )
    axes.set(xlabel="batches of 1,024 tokens", ylabel="validation loss, nats per token", ylim=(None, 5.2))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what is missing, print or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("grids", nargs="*")
    parser.add_argument("--text")
    parser.add_argument("--model", type=Path, default=NANO)
    parser.add_argument("--out", type=Path, default=Path("runs/convergence"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.table or args.plot:
        print_table() if args.table else plot(args.plot, args.grids)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    data = str(prepare_tokens(args.out, args.text, get_vocab(args.model)))
    for setting in itertools.chain.from_iterable(map(parse_grid, args.grids)):
        if any(result["setting"] == asdict(setting) for result in read_results()):
            continue
        result = run(setting, data, args.model)
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
