"""A few scripts of every family; `make bench-faults` plays hundreds, test_cheats.py the cheats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_py.coordinator.layout import ClientState
from psyche_py.sim.chain import SimChain
from psyche_py.sim.families import FAMILIES, GRID, STATES, make_library, make_script
from psyche_py.sim.faults import KINDS, ROLES, Fault, RoleError
from psyche_py.sim.outcome import make_world, play_script, shorten_script
from psyche_py.sim.world import World

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
def test_the_grid_passes(number: int) -> None:
    outcome = play_script(make_script("grid", number))
    assert not outcome.problems
    assert outcome.waiting == 0


def _has_role(world: World, role: str, number: int) -> bool:
    account, key = world.account, world.clients[number].p2p_key
    members = {client.p2p_key: client.index for client in account.epoch_clients}
    elected = account.current_round.elected_indices
    if role == "joiner":
        return key not in members
    if role == "poster":
        return members[key] == min(c.index for c in account.epoch_clients if c.state is ClientState.Healthy)
    return key in members and (members[key] in elected) == (role == "witness")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", sorted({fault.kind for fault in GRID}))
def test_the_grid_strikes_who_it_says(kind: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its scripts named a role that nobody had, and struck the first client. Roles take turns."""
    numbers = [number for number, fault in enumerate(GRID) if (fault.kind, fault.point) == (kind, state)]
    number = numbers[sum(map(ord, kind)) % len(numbers)]
    script, struck = make_script("grid", number), []
    happen = KINDS[kind]

    def notice(world: World, fault: Fault) -> None:
        if fault.point == state:
            struck.append((fault, [_has_role(world, fault.role, n) for n in fault.clients]))
            assert world.account.run_state.name == state
        happen(world, fault)

    monkeypatch.setitem(KINDS, kind, notice)
    world = make_world(script)
    assert world.run(until=lambda: not world.faults.waiting)
    fault, holders = struck[-1]
    assert replace(fault, clients=()) == GRID[number]
    assert holders == ([True] if fault.role else [])


def test_a_fault_that_never_comes_fails_its_script() -> None:
    late = Fault("describe", (), "Train", 10_000)
    outcome = play_script(replace(make_script("calm", 1), faults=(late,)))
    assert outcome.problems == ("a fault never came: describe at Train (step 10000, epoch 0)",)


def test_no_fault_waits_for_a_client_that_another_one_befalls() -> None:
    for script in make_library():
        for fault in script.faults:
            others = {n for other in script.faults if other is not fault for n in other.clients}
            assert fault.by not in others, script.name


@pytest.mark.parametrize("number", [number for number, fault in enumerate(GRID) if fault.kind == "fork"])
def test_a_fork_of_the_grid_takes_the_beginning_of_the_state_back(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It struck in the midst of a slot: often nothing was taken back, and that slot itself was lost."""
    went, fork = [], SimChain.fork

    def watch(chain: SimChain, *arguments: Any) -> None:
        before = chain.account
        fork(chain, *arguments)
        went.append((before.run_state.name, before.nonce, chain.account.run_state.name, chain.account.nonce))

    monkeypatch.setattr(SimChain, "fork", watch)
    assert not play_script(make_script("grid", number)).problems
    ((begun, newer, state, older),) = went
    assert begun == GRID[number].point
    assert state != begun
    assert older < newer


def test_a_role_that_nobody_has_is_an_error() -> None:
    script = make_script("calm", 1)
    fault = Fault("kill", (), "Warmup", 1, role="witness")
    with pytest.raises(RoleError, match=r"Nobody is a witness in Warmup at step 1\."):
        World(script.settings, (fault,)).run()
    outcome = play_script(replace(script, faults=(fault,)))
    assert outcome.problems[0].startswith("RoleError")


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
