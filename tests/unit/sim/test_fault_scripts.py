"""A few scripts of every family; `make bench-faults` plays hundreds."""

from __future__ import annotations

import pytest

from psyche_py.sim.families import FAMILIES, make_script, play_script, shorten_script
from psyche_py.sim.faults import KINDS, Fault


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [100, 101])
def test_a_script(family: str, seed: int) -> None:
    outcome = play_script(make_script(family, seed))
    assert not outcome.problems
    assert outcome.lost_batches == outcome.unequal_digests == 0
    assert outcome.num_rounds > 20


def test_every_kind_of_fault_is_in_a_family() -> None:
    used = {
        fault.kind for family in FAMILIES for seed in range(40) for fault in make_script(family, seed).faults
    }
    assert used == set(KINDS)


def test_a_script_that_fails_is_shortened() -> None:
    """Two of four clients gone are too many: the run waits for ever, and what does not matter is left out."""
    script = make_script("calm", 0)
    num = script.settings.num_clients
    kill = Fault("kill", tuple(range(1, num)), "Train", 6)
    others = (Fault("describe", (), "Train", 3), Fault("change_rates", (), "Apply", 4, value=5.0))
    faulty = type(script)("calm", 0, script.settings, (others[0], kill, others[1]))
    assert play_script(faulty).is_failed
    assert shorten_script(faulty).faults == (kill,)
