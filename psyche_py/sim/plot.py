"""A run as a picture: its states and rounds, who waited for whom, what everybody sent. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psyche_py.coordinator.layout import RunState
from psyche_py.errors import StorageError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from psyche_py.sim.outcome import Outcome
    from psyche_py.sim.world import World

COLOURS = {
    RunState.WaitingForMembers: "#cccccc",
    RunState.Warmup: "#f2c14e",
    RunState.RoundTrain: "#4c9f70",
    RunState.RoundWitness: "#d1495b",
    RunState.Cooldown: "#5b8e7d",
    RunState.Paused: "#8d99ae",
}
MAX_MARKS = 40
"""More faults than this are ticks without a name."""


def check_plotting() -> None:
    """Raises UsageError when matplotlib is not there: better before a long run than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        remedy = "Install it: pip install 'psyche-py[plot]'"
        raise UsageError("A timeline needs matplotlib, which is not installed.", remedy) from None


def plot_run(world: World, outcome: Outcome, path: Path) -> None:
    """Write the picture (PNG). Raises UsageError without matplotlib, StorageError."""
    figure = draw_run(world, outcome)
    try:
        # LiteSVM leaves the flag of invalid operations set, which numpy's next division would report
        with np.errstate(invalid="ignore"):
            figure.savefig(path, dpi=100, format="png")
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error}", "Name another place.") from None


def draw_run(world: World, outcome: Outcome) -> Figure:
    """The picture, with axes for states, rounds, waits and bytes. Raises UsageError without matplotlib."""
    check_plotting()
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(14, 12), layout="constrained")
    axes: Any = figure.subplot_mosaic([["states", "states"], ["rounds", "rounds"], ["waits", "bytes"]])
    _plot_states(axes["states"], world)
    _plot_rounds(axes["rounds"], world)
    _plot_waits(figure, axes["waits"], world)
    _plot_bytes(axes["bytes"], world)
    verdict = "passed" if not outcome.is_failed else "FAILED: " + outcome.problems[0]
    figure.suptitle(f"{outcome.name}, seed {outcome.seed}: {outcome.num_rounds} rounds, {verdict}"[:150])
    return figure


def _plot_states(axes: Any, world: World) -> None:
    """States of the run over time, and the faults that struck."""
    shown: set[RunState] = set()
    for span in world.timeline.spans:
        colour = COLOURS.get(span.state, "white")
        label = None if span.state in shown else span.state.name
        axes.axvspan(span.start, span.end, color=colour, linewidth=0, label=label)
        shown.add(span.state)
    for i, mark in enumerate(world.timeline.marks):
        axes.axvline(mark.seconds, color="black", linewidth=0.8, linestyle=":")
        if len(world.timeline.marks) <= MAX_MARKS:
            height = 0.95 - 0.12 * (i % 7)
            axes.text(mark.seconds, height, mark.text[:24], fontsize=7, transform=axes.get_xaxis_transform())
    axes.set_yticks([])
    axes.set_xlabel("virtual seconds")
    axes.set_title("states of the run, faults")
    axes.legend(loc="lower right", fontsize=7)


def _plot_rounds(axes: Any, world: World) -> None:
    """When everybody had trained and had finished, in each round."""
    rounds = [times for times in world.timeline.rounds if times.end]
    for name, colour in (("trained", "#4c9f70"), ("finished", "#2e4057")):
        points = [
            (i, seconds - times.start)
            for i, times in enumerate(rounds)
            for seconds in getattr(times, name).values()
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), s=4, color=colour, label=name, alpha=0.5)
    axes.step(
        range(len(rounds)), [t.end - t.start for t in rounds], where="mid", color="black", label="round ends"
    )
    axes.set_xlabel("round")
    axes.set_ylabel("seconds since its start")
    axes.set_title("each client in each round")
    axes.legend(fontsize=7)


def _plot_waits(figure: Any, axes: Any, world: World) -> None:
    """Who waited for whom."""
    waits = world.timeline.compute_waits(len(world.clients))
    image = axes.imshow(waits, cmap="magma_r", aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="seconds")
    axes.set_xlabel("for client")
    axes.set_ylabel("client waited")
    axes.set_title("who waited for whom")


def _plot_bytes(axes: Any, world: World) -> None:
    """What everybody uploaded, over what its own payloads amount to."""
    numbers = [client.number for client in world.clients if client.produced_bytes]
    bottom = [0.0] * len(numbers)
    for kind in ("own", "relayed", "announcements", "model"):
        heights = [world.wires.get_sent(n)[kind] / world.clients[n].produced_bytes for n in numbers]
        axes.bar(numbers, heights, bottom=bottom, label=kind, width=1.0)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set_xlabel("client")
    axes.set_ylabel("bytes sent / bytes of its payloads")
    axes.set_title("uploads")
    axes.legend(fontsize=7)
