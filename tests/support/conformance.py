"""The rule book and the program side by side: plays histories on both, shortens one that they disagree on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from histories import Character, compute_num_events, draw_character, generate_events
from program_driver import ProgramDriver, get_program_signer
from rule_coverage import find_rules
from rulebook_driver import Driver, Event, rules
from told_events import DATA_LOG, make_told, parse_told

from psyche_py.coordinator.layout import COORDINATOR_ACCOUNT
from psyche_py.coordinator.state import CoordinatorAccount

NOT_INSTRUCTIONS = ("advance", "plant", "authorize", "bond")
"""Events that no transaction makes; they are not counted as steps."""
DriverFactory = Callable[[], Driver]


class Difference(Exception):
    """The rule book and the program disagree after the last event of ``events``."""

    def __init__(self, what: str, events: list[Event]) -> None:
        super().__init__(what)
        self.what = what
        self.events = events


def make_driver() -> Driver:
    """The rule book at the start of a history."""
    return Driver(rules.process_init("run", "test"), get_signer=get_program_signer)


def find_differences(expected: bytes, found: bytes) -> list[str]:
    """Names of the account's top-level fields that differ, for messages."""
    fields = COORDINATOR_ACCOUNT.fields
    assert fields is not None
    if len(expected) != len(found):
        return [f"length ({len(expected)} in the rule book, {len(found)} on chain)"]
    names = []
    for name, (dtype, offset, *_) in fields.items():
        span = slice(offset, offset + dtype.itemsize)
        if expected[span] != found[span]:
            names.append(name)
    return names


@dataclass
class Coverage:
    """What was compared."""

    histories: int = 0
    steps: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, driver: Driver, name: str, error: str | None, before: CoordinatorAccount) -> None:
        """Count one step."""
        if name in NOT_INSTRUCTIONS:
            return
        self.steps += 1
        (self.accepted if error is None else self.refused)[name] += 1
        self.rules.update(find_rules(before, name, error, driver.account))


class Pair:
    """Plays events on both. One pair plays many histories, each from ``start``."""

    def __init__(self, num_wallets: int = 257, make: DriverFactory = make_driver) -> None:
        self.make = make
        self.program = ProgramDriver(num_wallets)
        self.coverage = Coverage()
        self.start()

    def start(self) -> None:
        """A new run on both sides."""
        self.program.reset()
        self.rules = self.make()

    def apply(self, name: str, **arguments: object) -> str | None:
        """Make an event happen on both. Raises Difference; returns the name of the error both gave."""
        before = self.rules.account
        expected = self._try("rule book", self.rules, name, arguments)
        found = self._try("program", self.program, name, arguments)
        if expected != found:
            self._fail(
                f"{name}: the rule book says {expected or 'accepted'}, the program {found or 'accepted'}"
            )
        if self.rules.data != (data := self.program.read()):
            self._fail(f"{find_differences(self.rules.data, data)} differ after {name}")
        self._check_told(name, arguments, before)
        self.coverage.add(self.rules, name, expected, before)
        return expected

    def _try(
        self, side: str, driver: Driver | ProgramDriver, name: str, arguments: dict[str, object]
    ) -> str | None:
        """A crash of either side is a difference as well, to be shortened and written like any other."""
        try:
            return driver.apply(name, **arguments)
        except Exception as error:
            raise Difference(f"{name}: the {side} crashes, {error!r}", list(self.rules.log)) from error

    def _check_told(self, name: str, arguments: dict[str, object], before: CoordinatorAccount) -> None:
        """The program tells of transitions and disputes when there are any, and what the account says."""
        expected = make_told(bytes(self.program.run), name, arguments, before, self.rules.account)
        found = [parse_told(line) for line in self.program.logs if line.startswith(DATA_LOG)]
        if found != list(expected):
            self._fail(f"after {name} the program tells {found}")

    def _fail(self, what: str) -> None:
        raise Difference(what, list(self.rules.log))

    def play(self, events: Iterable[Event]) -> None:
        """A whole history. ``events`` may look at ``rules`` to decide what comes next. Raises Difference."""
        self.coverage.histories += 1
        for name, arguments in events:
            self.apply(name, **arguments)

    def replay(self, events: list[Event]) -> Difference | None:
        """Play a recorded history from the start; the difference it shows, if any."""
        self.start()
        try:
            self.play(events)
        except Difference as difference:
            return difference
        return None


def play_random_history(pair: Pair, seed: int, character: Character | None = None) -> None:
    """One random history, which follows from ``seed``. Raises Difference."""
    rng = random.Random(seed)
    character = character or draw_character(rng)
    pair.start()
    pair.play(generate_events(pair.rules, rng, compute_num_events(character), character))


def minimise(events: list[Event], fails: Callable[[list[Event]], bool]) -> list[Event]:
    """Remove ever smaller runs of events while the rest still fails, until no single event can go."""
    size = max(len(events) // 2, 1)
    while True:
        shorter = events
        for kept in _remove_runs(events, size, fails):
            shorter = kept
        if size == 1 and len(shorter) == len(events):
            return events
        events, size = shorter, max(size // 2, 1)


def _remove_runs(
    events: list[Event], size: int, fails: Callable[[list[Event]], bool]
) -> Iterator[list[Event]]:
    start = 0
    while start < len(events):
        shorter = events[:start] + events[start + size :]
        if fails(shorter):
            events = shorter
            yield events
        else:
            start += size


def merge_advances(events: list[Event]) -> list[Event]:
    """Time that passes in several steps, passed at once."""
    merged: list[Event] = []
    for name, arguments in events:
        if name == "advance" and merged and merged[-1][0] == "advance":
            _, before = merged.pop()
            arguments = {key: value + before[key] for key, value in arguments.items()}
        merged.append((name, arguments))
    return merged


def minimise_difference(pair: Pair, difference: Difference) -> Difference:
    """The same difference, or one much like it, with as few events as possible."""
    other = Pair(make=pair.make)  # so that what is tried here is not counted
    events = minimise(difference.events, lambda shorter: other.replay(shorter) is not None)
    merged = merge_advances(events)
    if other.replay(merged) is not None:
        events = merged
    return other.replay(events) or difference
