"""Chooses the histories of vectors/: for every rule the shortest that shows it, and some of any kind."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

from conformance import NOT_INSTRUCTIONS, make_driver
from histories import Character, compute_num_events, draw_character, generate_events
from rule_coverage import find_rules
from rulebook_driver import Event

NUM_SEARCHED = 400
NUM_RANDOM = 180
NUM_RANDOM_EVENTS = 80
FULL_SIZE_SEEDS = (3, 7)
"""Of the searched histories, those with 256 clients."""
FULL_SIZE = Character(256, useful=0.97, lying=0.1, silent=0.002, owner=0.002)


@dataclass
class Reduced:
    """Events of a history that changed the account, with the time that passed between them."""

    events: list[Event]
    seconds: int = 0
    slots: int = 0

    def add(self, event: Event) -> None:
        """The next event that changed something."""
        self.events = [*self._flush(), event]

    def _flush(self) -> list[Event]:
        passed = {"seconds": self.seconds, "slots": self.slots}
        self.seconds = self.slots = 0
        return [*self.events, ("advance", passed)] if any(passed.values()) else list(self.events)

    def end_with(self, event: Event) -> list[Event]:
        """The whole history, up to an event that may change nothing."""
        return [*replace(self)._flush(), event]

    def __len__(self) -> int:
        """Number of events of :meth:`end_with`."""
        return len(self.events) + 1 + bool(self.seconds or self.slots)


def search_history(seed: int, found: dict[str, list[Event]]) -> None:
    """Put into ``found``, by rule, the beginnings of a random history that are shorter than what is there.

    What was refused or changed nothing is left out: it cannot have mattered.
    """
    rng, driver, reduced = random.Random(seed), make_driver(), Reduced([])
    drawn = draw_character(rng)
    small = replace(drawn, num_clients=min(drawn.num_clients, 12))
    character = FULL_SIZE if seed in FULL_SIZE_SEEDS else small
    for name, arguments in generate_events(driver, rng, compute_num_events(character), character):
        before, was_closed = driver.account, driver.is_closed
        event = (name, dict(arguments))
        error = driver.apply(name, **arguments)
        if name == "advance":
            reduced.seconds += arguments["seconds"]
            reduced.slots += arguments["slots"]
            continue
        for rule in find_rules(before, name, error, driver.account) if name not in NOT_INSTRUCTIONS else ():
            if rule not in found or len(reduced) < len(found[rule]):
                found[rule] = reduced.end_with(event)
        is_moved = driver.account is not before or driver.is_closed is not was_closed
        if is_moved or name in NOT_INSTRUCTIONS:
            reduced.add(event)


def find_shortest() -> dict[str, list[Event]]:
    """By rule, the shortest history found."""
    found: dict[str, list[Event]] = {}
    for seed in range(NUM_SEARCHED):
        search_history(seed, found)
    return dict(sorted(found.items()))


def make_random(seed: int) -> list[Event]:
    """A history of any kind, with everything in it that was refused."""
    rng, driver = random.Random(f"vector {seed}"), make_driver()
    character = replace(draw_character(rng), num_clients=rng.choice([1, 2, 3, 4, 5, 6]))
    events = []
    for name, arguments in generate_events(driver, rng, NUM_RANDOM_EVENTS, character):
        events.append((name, dict(arguments)))
        driver.apply(name, **arguments)
    return events


def get_file_name(rule: str) -> str:
    """A rule's name as a file's."""
    return re.sub("[^a-z0-9]+", "-", re.sub("([a-z])([A-Z])", r"\1-\2", rule).lower()).strip("-")
