"""Curves of the study as PNG, from its committed results.

python benchmarks/study_plot.py [--out docs/distro_learning.png]
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib
from study_distro import DEFAULTS, RESULTS, read_results

matplotlib.use("Agg")
from matplotlib import pyplot

Result = dict[str, Any]


def get_runs(results: list[Result], **wanted: Any) -> list[Result]:
    """Runs whose settings are exactly the wanted ones and defaults, whatever the seed."""
    return [
        r
        for r in results
        if {k: v for k, v in r["setting"].items() if k != "seed"}
        == {k: v for k, v in wanted.items() if v != DEFAULTS[k]}
    ]


def draw(axes: Any, runs: list[Result], label: str, style: str = "-") -> None:
    """Mean over the seeds, with their span."""
    if not runs:
        return
    steps = [step for step, _ in runs[0]["curve"]]
    losses = list(zip(*([loss for _, loss in run["curve"]] for run in runs), strict=True))
    means = [statistics.fmean(x) for x in losses]
    (line,) = axes.plot(steps, means, style, label=f"{label}: {means[-1]:.3f}", linewidth=1.2)
    if len(runs) > 1:
        axes.fill_between(steps, [min(x) for x in losses], [max(x) for x in losses],
                          alpha=0.2, color=line.get_color())  # fmt: skip


def compute_bytes(setting: Result) -> float:
    """Bytes that one worker sends per step for 4,096 parameters, at the entropy of a uniform choice."""
    s = {**DEFAULTS, **setting}
    if s["method"] == "adamw":
        return 4096 * 4.0
    area = s["chunk"] ** 2
    value_bits = 16 if s["values"] == "value" else 1
    if s["select"] == "rotate":
        bits = s["topk"] * value_bits
    elif s["select"] == "block":
        bits = s["topk"] * (math.log2(area / s["topk"]) + value_bits)
    elif s["method"] == "local" and s["bits"] == 32:
        bits = area * 32
    else:
        bits = math.log2(math.comb(area, s["topk"])) + s["topk"] * value_bits
    return float(bits) / 8 * 4096 / area / s["inner"]


CURVES: list[tuple[str, str, Result]] = [
    ("AdamW", "k-", {"method": "adamw"}),
    ("AdamW, embeddings x 4", "k--", {"method": "adamw", "embed_scale": 4.0}),
    ("DisTrO, top 64, x 4, clipped", "-", {"method": "distro", "topk": 64, "embed_scale": 4.0,
                                           "update": "clip", "fold": False}),
    ("DisTrO, top 64", "-", {"method": "distro", "topk": 64}),
    ("DisTrO, top 32", "-", {"method": "distro", "topk": 32}),
    ("DisTrO, top 8, x 4", "--", {"method": "distro", "topk": 8, "embed_scale": 4.0}),
    ("DisTrO, top 8", "-", {"method": "distro", "topk": 8}),
    ("SparseLoCo, 11 B", ":", {"method": "local", "inner": 6, "bits": 1, "topk": 64, "basis": "id",
                               "decay": 0.95}),
]  # fmt: skip


PLAIN = {"method", "lr", "steps", "size", "topk"}


def name_method(setting: Result) -> str:
    """The row of a run in the picture of bytes."""
    if setting["method"] == "adamw":
        return "AdamW, embeddings x 4" if setting.get("embed_scale") == 4.0 else "AdamW"
    if setting["method"] == "local":
        name = "DiLoCo" if setting.get("bits", 32) == 32 else "SparseLoCo-style"
        return name + (", embeddings x 4" if setting.get("embed_scale") == 4.0 else "")
    if setting.get("values") == "value":
        return "DeMo (values)"
    if setting.get("select") == "rotate":
        return "positions by step"
    if setting.get("embed_scale") == 4.0:
        return "DisTrO, embeddings x 4"
    return "DisTrO" if set(setting) <= PLAIN else "DisTrO, other variants"


def draw_bytes(axes: Any, results: list[Result], size: str, steps: int) -> None:
    """The best final loss of each method at each price, 4 workers."""
    best: dict[tuple[str, float], float] = {}
    for result in results:
        setting = result["setting"]
        same = (setting.get("size", "small"), setting.get("steps", 300), setting.get("workers", 4))
        if same == (size, steps, 4) and setting.get("seed", 0) == 0:
            key = (name_method(setting), compute_bytes(setting))
            best[key] = min(best.get(key, math.inf), result["loss"])
    for method in sorted({method for method, _ in best}):
        points = sorted((price, loss) for (name, price), loss in best.items() if name == method)
        axes.plot(*zip(*points, strict=True), "o-", label=method, linewidth=0.8)
    axes.set_xscale("log")
    axes.set(xlabel="bytes per step, worker and 4,096 parameters", ylabel="validation loss",
             title=f"{size}, {steps} steps")  # fmt: skip
    axes.legend(fontsize=7)


def main() -> None:
    """Draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/distro_learning.png"))
    args = parser.parse_args()
    results = list(read_results(RESULTS).values())
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.6))
    for label, style, setting in CURVES:
        draw(left, get_runs(results, size="tiny", steps=500, lr=4e-3, **setting), label, style)
    left.legend(fontsize=7)
    left.set(xlabel="step of 1,024 tokens", ylabel="validation loss, nats per token", title="tiny, 500 steps")
    draw_bytes(middle, results, "tiny", 500)
    draw_bytes(right, results, "small", 300)
    figure.tight_layout()
    figure.savefig(args.out, dpi=100)


if __name__ == "__main__":
    main()
