"""The event file: one JSON line for each thing that happened, for views, tests and scripts.

Every line has ``t`` (unix seconds) and ``kind``. The client's kinds:

    joined signer | state run_state epoch step height num_healthy data_index
    peers connected known ways (how many are direct, punched, through_relay) punches offences (both by kind)
    model_fetch pieces bytes peers digest here | model_loaded source seconds digest peers
    model_progress pieces of bytes mb_per_second peers (each: peer state pieces mb_per_second reason)
    model_offender peer reason | incomplete epoch reason samples
    model_lost epoch step digest next is_checkpoint
    train step height loss tokens seconds batch_start batch_end repeats | published height bytes commitment
    apply height step num_payloads digest trained untrained seconds | lost epoch samples
    witness height signature | health_check index
    digest epoch step digest | checkpoint path step | bytes sent received
    verified height trainer reason is_accused seconds alignment residual violation jaccard noise (millionths)
    verdict height trainer evidence | judged evidence is_guilty why | vote evidence is_guilty
    dispute_opened epoch height accuser trainer reason evidence
    dispute_settled epoch height accuser trainer reason evidence outcome num_guilty num_not_guilty
    ejected reason
    waiting reason | leaving after_height | warning message | error message exit_code
    left reason lost | finished reason lost
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

Event = dict[str, Any]
Clock = Callable[[], float]


class EventSink:
    """Appends events to a file, and hands each to ``listener`` for a live view."""

    def __init__(
        self, file: TextIO | None, clock: Clock, listener: Callable[[Event], None] | None = None
    ) -> None:
        self._file = file
        self._clock = clock
        self._listener = listener

    def emit(self, kind: str, **fields: object) -> None:
        """Write one event at once, so that a reader of the file is never behind."""
        event: Event = {"t": round(self._clock(), 3), "kind": kind, **fields}
        if self._file is not None:
            self._file.write(json.dumps(_make_finite(event), default=str) + "\n")
            self._file.flush()
        if self._listener is not None:
            self._listener(event)


def _make_finite(event: Event) -> Event:
    """JSON has no NaN; a number that is none is written as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in event.items()
    }


class EventReader:
    """Reads what was added to an event file since the last look; a half-written last line waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> Iterator[Event]:
        """Events added since the last call; nothing when the file is not there yet."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                yield json.loads(line)


def read_events(path: Path) -> list[Event]:
    """All events of a file."""
    return list(EventReader(path).read_new())
