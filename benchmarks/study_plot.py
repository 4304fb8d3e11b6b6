"""Curves of the study as PNG, from its committed results.

    python benchmarks/study_plot.py [--out docs/distro_learning.png]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import matplotlib
from study_distro import DEFAULTS, RESULTS, read_results

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (the backend has to be chosen before)

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


def main() -> None:
    """Draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/distro_learning.png"))
    args = parser.parse_args()
    results = list(read_results(RESULTS).values())
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.8))
    for label, style, setting in CURVES:
        draw(left, get_runs(results, **setting), label, style)
    left.set_ylim(3.3, 4.6)
    left.legend(fontsize=7)
    left.set(xlabel="step of 1,024 tokens", ylabel="validation loss, nats per token", title="0.17M Llama")
    draw_bytes(right, results)
    figure.tight_layout()
    figure.savefig(args.out, dpi=110)


CURVES: list[tuple[str, str, Result]] = []


def draw_bytes(axes: Any, results: list[Result]) -> None:
    """Final loss against bytes."""


if __name__ == "__main__":
    main()
