"""A few scripts of every family; `make bench-faults` plays hundreds, test_cheats.py the cheats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psyche_py.sim.families import FAMILIES, GRID, make_library, make_script
from psyche_py.sim.faults import KINDS, ROLES, Fault
from psyche_py.sim.outcome import make_world, play_script, play_world, shorten_script

LONG = ("agora", "third-fails", "cheat")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LONG])
@pytest.mark.parametrize("seed", [100, 101])
def test_a_script(family: str, seed: int) -> None:
    outcome = play_script(make_script(family, seed))
    assert not outcome.problems
    assert outcome.lost_batches == outcome.unequal_digests == 0
    assert outcome.num_rounds >= 8, "the shortest family, forge, has ten"


def test_a_third_of_twenty_clients_fails() -> None:
    outcome = play_script(make_script("third-fails", 0))
    assert not outcome.problems
    assert outcome.fired == 7


def test_every_kind_of_fault_is_in_the_library() -> None:
    used = {fault.kind for script in make_library(40) for fault in script.faults}
    assert used == KINDS.keys() - {"cut"}
    assert {fault.role for fault in GRID} == {"", *ROLES}
    assert len(make_library()) >= 600


def _find_places() -> list[int]:
    """A script of the grid for every state and role, and for every kind and state where there is no role."""
    places = {(f.point, f.role or f.kind): number for number, f in enumerate(GRID)}
    return sorted(places.values())


@pytest.mark.parametrize("number", _find_places())
def test_what_the_grid_names_happens(number: int) -> None:
    """Some of its scripts named a role that nobody had, and struck the first client."""
    script, fault = make_script("grid", number), GRID[number]
    world = make_world(script)
    outcome = play_world(script, world)
    assert not outcome.problems
    assert outcome.waiting == 0
    struck = next(one for one in world.faults.fired if one.kind == fault.kind and one.point == fault.point)
    assert len(struck.clients) == (1 if fault.role else 0)


def test_a_role_that_nobody_has_is_an_error() -> None:
    script = make_script("calm", 1)
    fault = Fault("kill", (), "Warmup", 1, role="witness")
    outcome = play_script(replace(script, faults=(fault,)))
    assert "Nobody is a witness in Warmup at step 1." in outcome.problems[0]


def test_a_cut_link_is_gone_around() -> None:
    script = make_script("calm", 1)
    cut = Fault("cut", (0, 1), "Train", 5, seconds=30.0)
    outcome = play_script(replace(script, faults=(cut,)))
    assert not outcome.problems
    assert outcome.fired == 1


def test_a_script_that_fails_is_shortened() -> None:
    """All but one gone are too many: the run waits for ever, and what does not matter is left out."""
    script = make_script("calm", 0)
    kill = Fault("kill", tuple(range(1, script.settings.num_clients)), "Train", 6)
    others = (Fault("describe", (), "Train", 3), Fault("change_rates", (), "Apply", 4, value=5.0))
    faulty = replace(script, faults=(others[0], kill, others[1]), max_seconds=900.0)
    assert play_script(faulty).is_failed
    shortest = shorten_script(faulty)
    assert [fault.kind for fault in shortest.faults] == ["kill"]
    assert play_script(shortest).is_failed
    assert len(shortest.faults[0].clients) <= len(kill.clients)


def test_a_shorter_script_fails_for_the_same_reason() -> None:
    """With fewer clients than an epoch needs, or without its cheat, it would fail in another way."""
    script = make_script("cheat", 0)
    settings = script.settings
    roles = {number: replace(role, end="acquitted") for number, role in settings.roles.items()}
    noise = (Fault("describe", (), "Train", 3),)
    faulty = replace(script, settings=replace(settings, roles=roles), faults=noise, max_seconds=900.0)
    shortest = shorten_script(faulty)
    assert not shortest.faults
    assert shortest.settings.num_clients == settings.config["init_min_clients"]
    assert all("is slashed by" in problem for problem in play_script(shortest).problems)
