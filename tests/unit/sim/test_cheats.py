"""Every cheat of the zoo has its fate in a run that verifies, and nobody honest pays for it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from psyche_py.sim.cheats import CHEATS, Fate
from psyche_py.sim.outcome import Script, judge, make_world
from psyche_py.sim.script import read_script
from psyche_py.sim.settings import Role
from psyche_py.sim.trainer import CHEAT_NAMES, MODES
from psyche_py.sim.world import World

SCRIPTS = Path(__file__).parents[3] / "configs" / "sim" / "cheats"
CHEATER = 4


def read(name: str) -> Script:
    return read_script((SCRIPTS / f"{name}.toml").read_text(), name)


def play(script: Script) -> tuple[World, tuple[str, ...]]:
    world = make_world(script)
    return world, judge(script, world, world.run(max_seconds=1800.0)).problems


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_has_its_fate(name: str) -> None:
    world, problems = play(read(name))
    assert not problems
    assert world.court.num_checked > 20
    assert not world.ledger.unequal_digests
    entries = {client.number: world.account.find_entry(client.signer) for client in world.clients}
    slashed = {n for n, i in entries.items() if i is not None and world.account.entries[i].slashed}
    ejected = {n for n in entries if world.clients[n].stopped == "ejected"}
    roles = read(name).settings.roles
    assert all(Fate(role.end) is CHEATS[role.mode].fate for role in roles.values()), "the script says its end"
    guilty = {n for n, role in roles.items() if role.end == "convicted"}
    assert ejected == slashed == guilty


def test_what_is_announced_when_the_draw_is_known_is_in_no_replica() -> None:
    world, _ = play(read("late"))
    assert world.court.false_payloads
    assert not world.ledger.false_applied


def test_without_verification_a_cheat_keeps_its_pay() -> None:
    """The check can fail: it is verification that ejects."""
    script = read("no-work")
    settings = script.settings
    config = {**settings.config, "verification_percent": 0}
    blind = replace(settings, config=config, roles={CHEATER: Role(mode="no-work", end="acquitted")})
    world, problems = play(replace(script, settings=blind))
    assert not problems
    assert world.ledger.false_applied
    index = world.account.find_entry(world.clients[CHEATER].signer)
    assert index is not None
    assert world.account.entries[index].earned > 0


def test_checks_that_convict_nobody_are_noticed() -> None:
    script = read("no-work")
    _, problems = play(replace(script, settings=replace(script.settings, conviction=0.0)))
    assert problems == (f"client {CHEATER} (no-work) is not ejected",)


def test_two_cheats_at_once() -> None:
    script = read("negated")
    roles = {1: Role(mode="lazy"), 6: Role(mode="false-accuser")}
    world, problems = play(replace(script, settings=replace(script.settings, roles=roles)))
    assert not problems
    assert {c.number for c in world.clients if c.stopped == "ejected"} == {1, 6}


def test_the_real_programs_eject_too() -> None:
    script = read("no-work")
    world, problems = play(replace(script, settings=replace(script.settings, is_on_programs=True)))
    assert not problems
    assert world.clients[CHEATER].stopped == "ejected"


def test_who_is_copied_is_not_convicted_for_it() -> None:
    """The copier's payload is the honest one's: it is the place, and not the bytes, that is false."""
    world, problems = play(read("copy"))
    assert not problems
    assert world.clients[CHEATER].stopped == "ejected"
    assert [c.number for c in world.clients if c.stopped == "ejected"] == [CHEATER]
    assert world.court.num_judged >= 1


def test_another_end_than_the_script_says_is_noticed() -> None:
    script = read("equivocator")
    roles = {CHEATER: Role(mode="equivocator", end="convicted")}
    _, problems = play(replace(script, settings=replace(script.settings, roles=roles)))
    assert problems == (f"client {CHEATER} (equivocator) is not ejected",)


def test_names_modes_and_scripts_agree() -> None:
    assert set(CHEAT_NAMES) == set(CHEATS) == {path.stem for path in SCRIPTS.glob("*.toml")}
    assert set(CHEATS) < set(MODES)


def test_a_client_that_joins_a_run_does_not_know_them() -> None:
    code = (
        "import sys, psyche_py.client.runtime, psyche_py.cli.main;"
        "assert not [name for name in sys.modules if name.startswith('psyche_py.sim')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
