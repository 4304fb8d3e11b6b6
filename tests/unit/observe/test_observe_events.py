"""Events: what is written is what is read, and a reader is never confused by a line that is not whole."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

from psyche_py.observe.events import Event, EventReader, EventSink, read_events


def test_sink_writes_a_line_at_once_and_tells_its_listener() -> None:
    file = io.StringIO()
    heard: list[Event] = []
    sink = EventSink(file, lambda: 1234.56789, heard.append)
    sink.emit("train", step=3, loss=2.5)
    assert json.loads(file.getvalue()) == {"t": 1234.568, "kind": "train", "step": 3, "loss": 2.5}
    assert heard == [{"t": 1234.568, "kind": "train", "step": 3, "loss": 2.5}]


def test_number_that_is_none_becomes_null() -> None:
    file = io.StringIO()
    EventSink(file, lambda: 0.0).emit("train", loss=math.nan, other=math.inf)
    assert json.loads(file.getvalue()) == {"t": 0.0, "kind": "train", "loss": None, "other": None}


def test_sink_without_a_file_only_tells() -> None:
    heard: list[Event] = []
    EventSink(None, lambda: 0.0, heard.append).emit("joined", signer="x")
    assert [event["kind"] for event in heard] == ["joined"]


def test_reader_takes_up_where_it_stopped_and_waits_for_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert list(reader.read_new()) == []
    whole = b'{"t": 1, "kind": "a"}\n'
    path.write_bytes(whole + b'{"t": 2, "ki')
    assert [event["kind"] for event in reader.read_new()] == ["a"]
    assert list(reader.read_new()) == []
    with path.open("ab") as file:
        file.write(b'nd": "b"}\n')
    assert [event["kind"] for event in reader.read_new()] == ["b"]
    assert [event["kind"] for event in read_events(path)] == ["a", "b"]
