"""The view: numbers for people, lines in a log, a table on a terminal, nothing invented."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from psyche_py.observe.events import Event
from psyche_py.observe.tally import ClientTally
from psyche_py.observe.view import BARS, RunView, format_bytes, format_event, make_sparkline, make_table


@pytest.mark.parametrize(
    ("num", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (5_600_000, "5.6 MB"), (7.8e12, "7800.0 GB")],
)
def test_bytes_have_units(num: float, text: str) -> None:
    assert format_bytes(num) == text


def test_sparkline_spans_lowest_to_highest_and_keeps_its_width() -> None:
    assert make_sparkline([]) == ""
    assert make_sparkline([2.0, 2.0]) == BARS[0] * 2
    line = make_sparkline([1.0, 2.0, 3.0])
    assert (line[0], line[-1]) == (BARS[0], BARS[-1])
    assert len(make_sparkline([float(i) for i in range(1000)], width=40)) == 40


def test_what_is_awaited_of_a_model_and_from_whom_is_in_the_log() -> None:
    peers = [
        {"peer": "aabbccddeeff", "state": "serving", "pieces": 3, "mb_per_second": 12.34},
        {"peer": "001122334455", "state": "busy", "pieces": 0, "mb_per_second": 0.0},
    ]
    event: Event = {"kind": "model_progress", "pieces": 3, "of": 9, "bytes": 12_000_000, "mb_per_second": 8.0}
    line = format_event({**event, "peers": peers})
    assert line == (
        "model: 3 of 9 pieces, 12.0 MB, 8.0 MB/s  "
        "(aabbccddeeff serving 12.3 MB/s, 001122334455 busy 0.0 MB/s)"
    )
    line = format_event({**event, "pieces": 0, "of": 0, "bytes": 0, "mb_per_second": 0.0, "peers": []})
    assert line == "model: waiting for a peer that has it, 0 B, 0.0 MB/s  (nobody)"


def _make_tally(state: str, step: int) -> ClientTally:
    tally = ClientTally("client-0", run_state=state, epoch=1, step=step, num_healthy=3)
    tally.losses = {1: 7.25, 2: 5.5}
    tally.tokens, tally.train_seconds, tally.bytes_sent = 4096, 2.0, 12_345
    return tally


def test_the_table_says_who_is_not_reached_in_the_usual_way() -> None:
    tally = _make_tally("RoundTrain", 1)
    shown = []
    for ways in ({}, {"direct": 5}, {"direct": 2, "punched": 1, "through_relay": 2}, {"through_relay": 5}):
        tally.add({"kind": "peers", "connected": 5, "known": 5, "ways": ways})
        output = io.StringIO()
        Console(file=output, width=200).print(make_table([tally]))
        shown.append(output.getvalue())
    assert ["5 (" in text for text in shown] == [False, False, True, True]
    assert "5 (1 punched, 2 relayed)" in shown[2]
    assert "5 (5 relayed)" in shown[3]


def test_log_has_a_line_for_each_phase_and_not_for_each_look() -> None:
    output = io.StringIO()
    with RunView("demo", Console(file=output, width=200)) as view:
        for state in ("Warmup", "Warmup", "Cooldown", "Cooldown"):
            view.show([_make_tally(state, 2)], {"client-0": 55})
    lines = output.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["Warmup", "Cooldown"]
    assert "loss 7.250 -> 5.500" in lines[0]
    assert "points 55" in lines[0]
    assert "\x1b" not in output.getvalue()


def test_terminal_shows_table_and_curve() -> None:
    output = io.StringIO()
    console = Console(file=output, width=140, force_terminal=True, color_system=None)
    with RunView("psyche-py demo", console) as view:
        view.show([_make_tally("RoundTrain", 2)], {"client-0": 55})
        view.say("a line that stays [not markup]")
    shown = output.getvalue()
    for part in ("psyche-py demo", "client-0", "2048", "12.3 kB", "7.250", "[not markup]"):
        assert part in shown, part


EVENTS: list[tuple[Event, str]] = [
    ({"kind": "joined", "signer": "abc"}, "joined as abc"),
    ({"kind": "witness", "height": 4}, "witnessed round 4"),
    ({"kind": "warning", "message": "slow"}, "warning: slow"),
    ({"kind": "checkpoint", "path": "/c", "step": 9}, "/c"),
    ({"kind": "lost", "epoch": 3, "samples": [[8, 9]]}, "epoch 3 that nobody trained: [[8, 9]]"),
    ({"kind": "finished", "reason": "finished", "lost": [[8, 9]]}, "nobody trained: [[8, 9]]"),
    ({"kind": "left", "reason": "left", "lost": []}, "left the run"),
    (
        {"kind": "apply", "num_payloads": 3, "step": 5, "digest": "ff" * 32, "untrained": [[8, 9]]},
        "to be trained again: [[8, 9]]",
    ),
]


@pytest.mark.parametrize(("event", "part"), EVENTS, ids=[event["kind"] for event, _ in EVENTS])
def test_event_is_told_in_one_line(event: Event, part: str) -> None:
    line = format_event({"t": 0.0, **event})
    assert line is not None
    assert part in line
    assert "\n" not in line


def test_events_for_views_alone_and_unknown_ones_make_no_line() -> None:
    assert format_event({"t": 0.0, "kind": "bytes", "sent": 1, "received": 2}) is None
    assert format_event({"t": 0.0, "kind": "a-kind-of-the-future"}) is None
