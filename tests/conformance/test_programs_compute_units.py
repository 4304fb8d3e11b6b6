"""No instruction costs more than a plain transaction may (200,000 compute units), at its worst.

`make bench-programs` searches longer and prints the figures; run with -s to see those of this test.
"""

from __future__ import annotations

import pytest
from cost_search import search_worst
from program_costs import (
    MAX_PACKET_BYTES,
    UNIT_LIMIT,
    Costs,
    compute_rent_sol,
    find_all_costs,
    find_missing,
    get_account_sizes,
    get_transaction_sizes,
)
from recording_svm import read_units

BUDGET = 250


@pytest.fixture(scope="module")
def costs() -> Costs:
    return find_all_costs(BUDGET)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_instruction_fits_at_its_worst(costs: Costs) -> None:
    print(f"\n{costs}")
    assert find_missing(costs) == []
    dear = {
        name: units for units_by in costs.values() for name, units in units_by.items() if units > UNIT_LIMIT
    }
    assert dear == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_search_finds_what_is_dear(costs: Costs) -> None:
    """A full run's dearest calls: the round that ends, with 32 witnesses and an election among 256."""
    assert costs["coordinator"]["witness"] > 150_000
    assert costs["coordinator"]["tick"] > 140_000


def test_transactions_leave_room_for_a_priority_fee() -> None:
    sizes = get_transaction_sizes()
    assert {name: size for name, size in sizes.items() if size > MAX_PACKET_BYTES} == {}
    assert sizes["witness"] > 500


def test_the_search_turns_every_knob() -> None:
    """A cost with its maximum away from the first choices, where two knobs matter only together."""
    knobs = {"a": tuple(range(10)), "b": tuple(range(10)), "c": (False, True)}

    def measure(setting: dict[str, int]) -> int:
        return 10 * setting["a"] + (90 if setting["c"] and setting["b"] == 7 else setting["b"])

    worst = search_worst(knobs, measure, budget=400)
    assert (worst.units, worst.setting) == (180, {"a": 9, "b": 7, "c": True})
    assert search_worst(knobs, lambda setting: 0, budget=50).units == 0


def test_units_are_read_from_the_log() -> None:
    logs = [
        "Program ComputeBudget111111111111111111111111111111 invoke [1]",
        "Program ComputeBudget111111111111111111111111111111 success",
        "Program A invoke [1]",
        "Program B invoke [2]",
        "Program B consumed 7 of 100 compute units",
        "Program B success",
        "Program log: Program C invoke [1]",
        "Program A consumed 20 of 200000 compute units",
        "Program A success",
        "Program B invoke [1]",
        "Program B consumed 8 of 100 compute units",
        "Program B success",
    ]
    assert read_units(logs) == [0, 20, 8]


def test_rent_is_what_the_chain_asks() -> None:
    from programs_harness import ProgramChain

    chain = ProgramChain()
    for size in get_account_sizes().values():
        assert chain.svm.minimum_balance_for_rent_exemption(size) == round(compute_rent_sol(size) * 10**9)
