"""What the timeline of a simulated run shows is what happened in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psyche_py.sim.faults import Fault
from psyche_py.sim.outcome import Script, make_world, play_world
from psyche_py.sim.settings import Settings
from psyche_py.sim.world import World

pytest.importorskip("matplotlib", reason="pip install 'psyche-py[plot]'")

CONFIG = {"total_steps": 16, "epoch_time": 35, "init_min_clients": 3, "min_clients": 2}


@pytest.fixture(scope="module")
def drawn() -> tuple[World, dict[str, Any], str]:
    """A run of four clients of which one is killed; the axes of its picture by title, and the heading."""
    from psyche_py.sim.plot import draw_run

    kill = Fault("kill", (2,), "Train", 4, by=2)
    script = Script("killed", Settings(4, seed=1, config=CONFIG), (kill,))
    world = make_world(script)
    figure = draw_run(world, play_world(script, world))
    heading = figure.get_suptitle()
    return world, {axes.get_title(): axes for axes in figure.axes}, heading


def test_states_and_faults(drawn: tuple[World, dict[str, Any], str]) -> None:
    world, by_title, heading = drawn
    axes = by_title["states of the run, faults"]
    spans = np.array([(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches])
    assert spans == pytest.approx(np.array([(span.start, span.end) for span in world.timeline.spans]))
    assert [text.get_text() for text in axes.texts] == ["kill 2"]
    assert [line.get_xdata()[0] for line in axes.lines] == [mark.seconds for mark in world.timeline.marks]
    names = {text.get_text() for text in axes.get_legend().get_texts()}
    assert names == {span.state.name for span in world.timeline.spans}
    assert heading.startswith("killed, seed 1: ")
    assert heading.endswith("passed")


def test_rounds(drawn: tuple[World, dict[str, Any], str]) -> None:
    world, by_title, _ = drawn
    rounds = [times for times in world.timeline.rounds if times.end]
    trained, finished = by_title["each client in each round"].collections
    assert len(trained.get_offsets()) == sum(len(times.trained) for times in rounds)
    assert len(finished.get_offsets()) == sum(len(times.finished) for times in rounds)
    (ends,) = by_title["each client in each round"].lines
    assert list(ends.get_ydata()) == pytest.approx([times.end - times.start for times in rounds])


def test_waits_and_bytes(drawn: tuple[World, dict[str, Any], str]) -> None:
    world, by_title, _ = drawn
    (image,) = by_title["who waited for whom"].images
    waits = np.asarray(image.get_array())
    assert waits.shape == (4, 4)
    assert waits.sum() > 0
    assert not waits.diagonal().any()
    heights = np.zeros(4)
    for bar in by_title["uploads"].patches:
        heights[round(bar.get_x() + bar.get_width() / 2)] += bar.get_height()
    for client in world.clients:
        sent = sum(
            world.wires.get_sent(client.number)[k] for k in ("own", "relayed", "announcements", "model")
        )
        assert heights[client.number] == pytest.approx(sent / client.produced_bytes)
