"""When what happened, for people: rounds and their states, who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import ROUND_STATES, RunState

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.clock import VirtualClock


@dataclass(slots=True)
class RoundTimes:
    """One round, in seconds since the run began; clients by number."""

    epoch: int
    height: int
    step: int
    start: float
    end: float = 0.0
    begun: dict[int, float] = field(default_factory=dict)
    """When a client has its first job of the round: it has seen it begin."""
    training: dict[int, float] = field(default_factory=dict)
    trained: dict[int, float] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    witnessed: dict[int, float] = field(default_factory=dict)
    """When a witness signs what it attests."""
    submitted: dict[int, float] = field(default_factory=dict)
    """When that is where it can land."""

    def get_last(self) -> int | None:
        """Whoever was the last to say Finished: the others waited for it."""
        return max(self.finished, key=lambda number: (self.finished[number], number), default=None)


@dataclass(frozen=True, slots=True)
class Span:
    """A state of the run, from ``start`` to ``end`` (seconds since the run began)."""

    state: RunState
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A fault that struck."""

    seconds: float
    text: str


class Timeline:
    """See the module."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._begin = clock.now
        self._state_since = 0.0
        self.spans: list[Span] = []
        self.rounds: list[RoundTimes] = []
        self.marks: list[Mark] = []

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock.now - self._begin

    def take_mark(self, text: str) -> None:
        """A fault strikes."""
        self.marks.append(Mark(self.now, text))

    def take_job(self, client: int, height: int, *, is_training: bool) -> None:
        """A client's trainer begins something: to train its batch, or to apply what is due before that."""
        if self.rounds and self.rounds[-1].height == height:
            self.rounds[-1].begun.setdefault(client, self.now)
            if is_training:
                self.rounds[-1].training.setdefault(client, self.now)

    def take_trained(self, client: int, height: int) -> None:
        """A client has its result."""
        if self.rounds and self.rounds[-1].height == height:
            self.rounds[-1].trained[client] = self.now

    def take_finished(self, client: int, height: int) -> None:
        """A client says that it is done with a round."""
        if self.rounds and self.rounds[-1].height == height:
            self.rounds[-1].finished[client] = self.now

    def take_witness(self, client: int, height: int, *, is_submitted: bool) -> None:
        """A witness attests, or what it attests has come to the chain."""
        if self.rounds and self.rounds[-1].height == height:
            times = self.rounds[-1].submitted if is_submitted else self.rounds[-1].witnessed
            times.setdefault(client, self.now)

    def take_change(self, before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        """The account has changed."""
        if before.run_state is not after.run_state:
            self.spans.append(Span(before.run_state, self._state_since, self.now))
            self._state_since = self.now
        was_round, is_round = before.run_state in ROUND_STATES, after.run_state in ROUND_STATES
        is_other = before.current_round.height != after.current_round.height or was_round != is_round
        if was_round and is_other and self.rounds:
            self.rounds[-1].end = self.now
        if is_round and is_other:
            height = after.current_round.height
            self.rounds.append(RoundTimes(after.epoch, height, after.step, self.now))

    def compute_waits(self, num_clients: int) -> list[list[float]]:
        """``waits[a][b]``: seconds that client a, done with a round, waited until b was."""
        waits = [[0.0] * num_clients for _ in range(num_clients)]
        for times in self.rounds:
            last = times.get_last()
            if last is not None:
                for number, time in times.finished.items():
                    waits[number][last] += times.finished[last] - time
        return waits
