"""What do the programs cost at their worst? Compute units by instruction, sizes, rent, transaction sizes.

    make bench-programs                                  about two minutes
    python benchmarks/bench_programs.py --budget 5000    search longer

The worst cases of the coordinator are searched for among accounts of full size (256 clients, 32 witnesses, a
full ring) that years of play and every lie could leave behind; those of the other programs among the longest
inputs and the addresses that take longest to derive. Exits 1 when an instruction needs more than the 200,000
units that a transaction gets without asking, or a witness does not fit a packet together with a priority fee.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from program_costs import (  # noqa: E402
    MAX_PACKET_BYTES,
    UNIT_LIMIT,
    compute_rent_sol,
    find_all_costs,
    find_missing,
    get_account_sizes,
    get_program_sizes,
    get_transaction_sizes,
)

DEFAULT_BUDGET = 2500


def measure(budget: int) -> dict[str, Any]:
    """The last line."""
    begin = time.monotonic()
    units = find_all_costs(budget, progress=lambda line: print(line, flush=True))
    return {
        "compute_units": units,
        "compute_units_max": max(max(costs.values()) for costs in units.values()),
        "compute_units_limit": UNIT_LIMIT,
        "binary_bytes": get_program_sizes(),
        "account_bytes": get_account_sizes(),
        "rent_sol": {name: compute_rent_sol(size) for name, size in get_account_sizes().items()},
        "transaction_bytes": get_transaction_sizes(),
        "transaction_bytes_limit": MAX_PACKET_BYTES,
        "settings_tried": budget,
        "seconds": round(time.monotonic() - begin, 1),
    }


def find_failures(result: dict[str, Any]) -> list[str]:
    """What is too dear, too large or was not measured."""
    failures = [
        f"{program}.{name} was not measured" for program, name in find_missing(result["compute_units"])
    ]
    for program, costs in result["compute_units"].items():
        dear = {name: units for name, units in costs.items() if units > UNIT_LIMIT}
        failures += [f"{program}.{name} takes {units:,} compute units" for name, units in dear.items()]
    for name, size in result["transaction_bytes"].items():
        if size > MAX_PACKET_BYTES:
            failures.append(f"{name} takes {size:,} bytes")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--budget", type=int, default=DEFAULT_BUDGET, help="states tried for each coordinator instruction"
    )
    options = parser.parse_args()
    warnings.simplefilter("error")
    result = measure(options.budget)
    failures = find_failures(result)
    for failure in failures:
        print(f"FAILURE: {failure}")
    print(json.dumps({**result, "failures": len(failures)}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
