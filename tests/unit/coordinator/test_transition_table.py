"""The transition table is the state machine's: random histories make every transition in it and no other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from histories import Character, generate_events
from rulebook_driver import Driver, Event, rules

from psyche_py.coordinator.layout import HALTED, RunState
from psyche_py.coordinator.model import Progress
from psyche_py.coordinator.transitions import TRANSITIONS, render_diagram, render_table

NUM_HISTORIES, NUM_EVENTS = 40, 400
Pair = tuple[RunState, RunState]


def generate_history(driver: Driver, rng: random.Random) -> Iterator[Event]:
    """Random events from the very beginning, with more of what ends a warm-up or a run early."""
    num_clients = rng.choice([1, 2, 3, 4])
    for event in generate_events(driver, rng, NUM_EVENTS, Character(num_clients, is_extreme=False)):
        if event[0] == "free_coordinator":  # the end of a run is no transition of it
            return
        state, total = driver.account.run_state, driver.account.config.total_steps
        if state in HALTED and total > 2 and rng.random() < 0.05:
            progress = Progress(step=total - rng.choice([1, 2, 3, 4]))
            yield "update", {"progress": progress.to_bytes().hex()}
        elif state is RunState.Warmup and rng.random() < 0.2:
            leave = "leave_run", {"client": rng.randrange(num_clients)}
            yield rng.choice([leave, leave, leave, ("set_paused", {"paused": True})])
        else:
            yield event


def observe(driver: Driver, rng: random.Random) -> Iterator[Pair]:
    """Every transition of one history. From a round to the next is one too."""
    for name, arguments in generate_history(driver, rng):
        before = driver.account
        driver.apply(name, **arguments)
        after = driver.account
        is_next_round = after.run_state is RunState.RoundTrain and (
            after.current_round.height != before.current_round.height
        )
        if after.run_state is not before.run_state or is_next_round:
            yield before.run_state, after.run_state


def test_random_histories_make_every_transition_of_the_table_and_no_other() -> None:
    seen: Counter[Pair] = Counter()
    for seed in range(NUM_HISTORIES):
        seen.update(observe(Driver(rules.process_init("run", "test")), random.Random(seed)))
    table = {(rule.before, rule.after) for rule in TRANSITIONS}
    assert seen.keys() - table == set()
    assert table - seen.keys() == set()


def test_every_way_is_told_once() -> None:
    ways = [(rule.before, rule.after) for rule in TRANSITIONS]
    assert len(ways) == len(set(ways))
    assert {state for way in ways for state in way} == set(RunState)


def test_every_rule_is_drawn_and_written() -> None:
    diagram, table = render_diagram().splitlines(), render_table().splitlines()
    for rule in TRANSITIONS:
        way = f"{rule.before.name} --> {rule.after.name}: {rule.label}"
        assert diagram.count(f"    {way}") == 1
        assert table.count(f"| {rule.before.name} | {rule.after.name} | {rule.condition} |") == 1
    assert not any(character in rule.label for rule in TRANSITIONS for character in ":;#`")
