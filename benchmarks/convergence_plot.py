"""Curves of bench_convergence as PNG, from its committed results: 1,000 steps, AdamW beside DisTrO.

python benchmarks/convergence_plot.py [--out docs/distro_convergence.png] [--add runs/convergence]

--add takes finished runs of a folder of bench_convergence into the committed results first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

RESULTS = Path(__file__).parent / "results" / "bench_convergence.jsonl"
NANO = "configs/models/nano"
STEP = {"embed_scale": 4.0, "levels": 16, "lr_outside": True}
BY_TOPK = {64: {**STEP, "topk": 64, "lr": 8e-3}, 8: {**STEP, "topk": 8, "lr": 4e-3}}
"""What DisTrO runs with, top 8 being the default; each top-k at its best rate."""
ADAMW = {"lr": 8e-3, "topk": 0, "levels": 0, "lr_outside": False}
"""Its best rate of 4e-3, 8e-3, 16e-3 over three seeds, with the scale of embedding and head and without."""
BASES = (("adamw", "AdamW", "k-", 1.0), ("adamw-scaled", "AdamW, embeddings x 4", "k--", 4.0))
MODES = (("sync", "DisTrO, synchronous", "-"), ("overlap-all", "DisTrO, a round late", "-"))
WORKERS = (1, 2, 4, 8, 16)

Run = dict[str, Any]


def read_runs() -> list[Run]:
    """Committed runs."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def add_runs(folder: Path) -> int:
    """Append finished runs that are not there yet; how many."""
    known = [run["setting"] for run in read_runs()]
    new = [_shorten(json.loads(path.read_text())) for path in sorted(folder.glob("*w-*-s*.json"))]
    new = [run for run in new if run["setting"] not in known]
    with RESULTS.open("a") as file:
        file.writelines(json.dumps(run) + "\n" for run in new)
    return len(new)


def _shorten(run: Run) -> Run:
    """Its model by the path within the repository, wherever that was."""
    _, configs, rest = run["setting"]["model"].rpartition("configs/models/")
    run["setting"]["model"] = configs + rest
    return run


def find_curves(runs: list[Run], steps: int = 1000, model: str = NANO, **wanted: Any) -> list[Any]:
    """Curves (pairs of step and loss) of finished runs with these settings, one a seed."""
    found = {}
    for run in runs:
        setting = run["setting"]
        is_whole = setting["steps"] == steps == run["curve"][-1][0]
        # runs from before a model could be chosen were of nano
        is_wanted = all(setting.get(key) == value for key, value in wanted.items())
        if is_whole and is_wanted and setting.get("model", NANO) == model:
            found[setting["seed"]] = run["curve"]
    return list(found.values())


def draw(axes: Any, curves: list[Any], label: str, style: str) -> None:
    """Mean over the seeds, with their span."""
    if not curves:
        return
    steps = [step for step, _ in curves[0]]
    losses = list(zip(*([loss for _, loss in curve] for curve in curves), strict=True))
    means = [statistics.fmean(x) for x in losses]
    (line,) = axes.plot(steps, means, style, label=f"{label}: {means[-1]:.3f}", linewidth=1.2)
    axes.fill_between(
        steps, list(map(min, losses)), list(map(max, losses)), alpha=0.2, color=line.get_color()
    )


def iterate_workers(runs: list[Run], mode: str, topk: int) -> Iterator[tuple[int, list[float]]]:
    """Number of workers, and the final losses of its seeds."""
    for workers in WORKERS:
        if curves := find_curves(runs, mode=mode, workers=workers, **BY_TOPK[topk]):
            yield workers, [curve[-1][1] for curve in curves]


def draw_workers(axes: Any, runs: list[Run]) -> None:
    """Final loss by number of workers: a line through the means, a dot a seed."""
    for topk, (mode, label, style) in itertools.product(BY_TOPK, MODES):
        points = list(iterate_workers(runs, mode, topk))
        means = [statistics.fmean(losses) for _, losses in points]
        (line,) = axes.plot([num for num, _ in points], means, style, label=f"{label}, top {topk}")
        for workers, losses in points:
            axes.plot([workers] * len(losses), losses, ".", color=line.get_color(), alpha=0.5)
    for mode, label, style, scale in BASES:
        ends = [c[-1][1] for c in find_curves(runs, mode=mode, embed_scale=scale, **ADAMW)]
        axes.axhline(statistics.fmean(ends), linestyle=style[1:], color="k", linewidth=0.8, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(WORKERS, map(str, WORKERS))
    axes.set(xlabel="workers (1,024 tokens a step among them)", ylabel="validation loss after 1,000 steps")
    axes.legend(fontsize=8)


def main() -> None:
    """Draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/distro_convergence.png"))
    parser.add_argument("--add", type=Path)
    args = parser.parse_args()
    if args.add is not None:
        print(f"{add_runs(args.add)} runs added to {RESULTS}")
    runs = read_runs()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6))
    for mode, label, style, scale in BASES:
        draw(left, find_curves(runs, mode=mode, embed_scale=scale, **ADAMW), label, style)
    for topk, (mode, label, style) in itertools.product(BY_TOPK, MODES):
        curves = find_curves(runs, mode=mode, workers=4, **BY_TOPK[topk])
        draw(left, curves, f"{label}, 4 workers, top {topk}", style)
    left.set(xlabel="step of 1,024 tokens", ylabel="validation loss, nats per token", ylim=(3.25, 4.3))
    left.legend(fontsize=7)
    draw_workers(right, runs)
    figure.suptitle("nano (0.11M parameters), Shakespeare's plays: mean and span of the seeds", fontsize=10)
    figure.tight_layout()
    figure.savefig(args.out, dpi=100)


if __name__ == "__main__":
    main()
