"""What the timeline of a simulated run shows is what happened in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from psyche_py.errors import StorageError
from psyche_py.sim.faults import Fault
from psyche_py.sim.outcome import Outcome, Script, make_world, play_world
from psyche_py.sim.settings import Settings
from psyche_py.sim.world import World

pytest.importorskip("matplotlib", reason="pip install 'psyche-py[plot]'")

CONFIG = {"total_steps": 16, "epoch_time": 35, "init_min_clients": 3, "min_clients": 2}
LABELS = {
    "states of the run, faults": ("virtual seconds", ""),
    "each client in each round": ("round", "seconds since its start"),
    "who waited for whom": ("for client", "client waited"),
    "uploads": ("client", "bytes sent / bytes of its payloads"),
}
KINDS = ["own", "relayed", "announcements", "model"]


class Drawn(NamedTuple):
    """A run that was played, and the axes of its picture by title."""

    world: World
    outcome: Outcome
    by_title: dict[str, Any]
    heading: str


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    """Of four clients one is killed."""
    from psyche_py.sim.plot import draw_run

    kill = Fault("kill", (2,), "Train", 4, by=2)
    script = Script("killed", Settings(4, seed=1, config=CONFIG), (kill,))
    world = make_world(script)
    outcome = play_world(script, world)
    figure = draw_run(world, outcome)
    by_title = {axes.get_title(): axes for axes in figure.axes}
    return Drawn(world, outcome, by_title, figure.get_suptitle())


def read_legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_what_the_axes_are_is_written_at_them(drawn: Drawn) -> None:
    scale = drawn.by_title[""]
    assert scale.get_ylabel() == "seconds", "the colours of the waits"
    named = {title: axes for title, axes in drawn.by_title.items() if title}
    assert {title: (axes.get_xlabel(), axes.get_ylabel()) for title, axes in named.items()} == LABELS
    assert read_legend(named["each client in each round"]) == ["trained", "finished", "round ends"]
    assert read_legend(named["uploads"]) == KINDS


def test_states_and_faults(drawn: Drawn) -> None:
    from matplotlib.colors import to_rgba

    from psyche_py.sim.plot import COLOURS

    world, _, by_title, heading = drawn
    axes = by_title["states of the run, faults"]
    spans = np.array([(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches])
    assert spans == pytest.approx(np.array([(span.start, span.end) for span in world.timeline.spans]))
    assert [text.get_text() for text in axes.texts] == ["kill 2"]
    assert [line.get_xdata()[0] for line in axes.lines] == [mark.seconds for mark in world.timeline.marks]
    colours = [to_rgba(COLOURS[span.state]) for span in world.timeline.spans]
    assert [patch.get_facecolor() for patch in axes.patches] == colours
    names = read_legend(axes)
    assert sorted(names) == sorted({span.state.name for span in world.timeline.spans})
    shown = [handle.get_facecolor() for handle in axes.get_legend().legend_handles]
    assert dict(zip(names, shown, strict=True)) == {
        span.state.name: colour for span, colour in zip(world.timeline.spans, colours, strict=True)
    }
    assert heading.startswith("killed, seed 1: ")
    assert heading.endswith("passed")


def test_a_run_that_failed_says_so_and_why(drawn: Drawn) -> None:
    from psyche_py.sim.plot import draw_run

    failed = replace(drawn.outcome, problems=("replicas differ", "samples are missing"))
    assert draw_run(drawn.world, failed).get_suptitle().endswith("FAILED: replicas differ")


def test_a_picture_that_cannot_be_written_is_an_error(drawn: Drawn, tmp_path: Path) -> None:
    from psyche_py.sim.plot import plot_run

    with pytest.raises(StorageError, match="Cannot write"):
        plot_run(drawn.world, drawn.outcome, tmp_path / "nowhere" / "run.png")


def test_rounds(drawn: Drawn) -> None:
    """A point for each client that did its part, at the seconds since the round began."""
    world, _, by_title, _ = drawn
    rounds = [times for times in world.timeline.rounds if times.end]
    clouds = by_title["each client in each round"].collections
    for name, cloud in zip(("trained", "finished"), clouds, strict=True):
        assert cloud.get_label() == name
        points = [
            (i, seconds - times.start)
            for i, times in enumerate(rounds)
            for seconds in getattr(times, name).values()
        ]
        assert len(points) >= len(rounds)
        assert np.asarray(cloud.get_offsets()) == pytest.approx(np.array(points))
    (ends,) = by_title["each client in each round"].lines
    assert list(ends.get_ydata()) == pytest.approx([times.end - times.start for times in rounds])


def test_waits_and_bytes(drawn: Drawn) -> None:
    """Who waited is down the side; the bars of a client stand on each other, one for each kind of bytes."""
    world, _, by_title, _ = drawn
    (image,) = by_title["who waited for whom"].images
    waits = np.asarray(image.get_array())
    assert waits == pytest.approx(np.array(world.timeline.compute_waits(4)))
    assert waits.sum() > 0
    assert not waits.diagonal().any()
    assert (waits != waits.T).any()
    tops = np.zeros(4)
    for kind, bars in zip(KINDS, by_title["uploads"].containers, strict=True):
        assert bars.get_label() == kind
        for client, bar in zip(world.clients, bars, strict=True):
            assert bar.get_x() + bar.get_width() / 2 == pytest.approx(client.number)
            assert bar.get_y() == pytest.approx(tops[client.number])
            height = world.wires.get_sent(client.number)[kind] / client.produced_bytes
            assert bar.get_height() == pytest.approx(height)
            tops[client.number] += height
    assert tops.min() >= 1, "everybody sent its own payloads"
