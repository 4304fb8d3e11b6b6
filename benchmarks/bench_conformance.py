"""Does the program do what the rule book says? Random histories on both, compared to the byte at every step.

    make bench-conformance                                50,000 steps, as CI does
    python benchmarks/bench_conformance.py --long         1,000,000 steps
    python benchmarks/bench_conformance.py --replay FILE  a recorded history (vectors/FORMAT.md)

A step is a transaction. A difference stops the run, is shortened to the fewest events that still show it,
printed and written to a file that --replay plays. Exits 1 when there is one. The last line is JSON:
``accepted`` and ``refused`` count steps by instruction, ``rules`` counts every named rule that was seen.
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

from conformance import Difference, Pair, minimise_difference, play_random_history  # noqa: E402
from vector_format import pack_history, read_history  # noqa: E402

DEFAULT_STEPS, LONG_STEPS = 50_000, 1_000_000
PROGRESS_SECONDS = 5


def run(pair: Pair, num_steps: int, seed: int, *, is_quiet: bool = False) -> Difference | None:
    """Play histories from seeds ``seed``, ``seed + 1``, ... until ``num_steps`` are compared."""
    begin = shown = time.monotonic()
    while pair.coverage.steps < num_steps:
        try:
            play_random_history(pair, seed)
        except Difference as difference:
            print(f"\nhistory {seed}: {difference.what}; shortening {len(difference.events)} events")
            return minimise_difference(pair, difference)
        seed += 1
        now = time.monotonic()
        if now - shown >= PROGRESS_SECONDS and not is_quiet:
            shown, steps = now, pair.coverage.steps
            print(f"{steps:,} of {num_steps:,} steps, {steps / (now - begin):,.0f} a second", flush=True)
    return None


def replay(pair: Pair, path: Path) -> Difference | None:
    """Play one recorded history and say where the two disagree."""
    return pair.replay(read_history(json.loads(path.read_text(encoding="utf-8"))))


def report(difference: Difference, path: Path) -> None:
    """Print and keep a history that shows a difference."""
    print(f"DIFFERENCE after {len(difference.events)} events: {difference.what}")
    for name, arguments in difference.events:
        print(f"    {name} {json.dumps(arguments)}")
    path.write_text(pack_history("difference", difference.events), encoding="utf-8")
    print(f"written to {path}; play it with: python benchmarks/bench_conformance.py --replay {path}")


def summarise(pair: Pair, difference: Difference | None, seconds: float) -> dict[str, Any]:
    """The last line."""
    found = pair.coverage
    return {
        "histories": found.histories,
        "steps": found.steps,
        "differences": 0 if difference is None else 1,
        "steps_per_second": round(found.steps / max(seconds, 1e-9)),
        "seconds": round(seconds, 1),
        "max_compute_units": dict(sorted(pair.program.units.items())),
        "accepted": dict(sorted(found.accepted.items())),
        "refused": dict(sorted(found.refused.items())),
        "rules": dict(sorted(found.rules.items())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS)
    parser.add_argument("--long", action="store_true", help=f"{LONG_STEPS:,} steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first history")
    parser.add_argument("--replay", type=Path, help="play a recorded history instead")
    parser.add_argument("--write", type=Path, default=Path("difference.json"), help="where a difference goes")
    options = parser.parse_args()
    warnings.simplefilter("error")  # numpy warns where a number leaves its range
    pair, begin = Pair(), time.monotonic()
    if options.replay:
        difference = replay(pair, options.replay)
    else:
        difference = run(pair, LONG_STEPS if options.long else options.steps, options.seed)
    if difference is not None:
        report(difference, options.write)
    print(json.dumps(summarise(pair, difference, time.monotonic() - begin)))
    return 1 if difference is not None else 0


if __name__ == "__main__":
    sys.exit(main())
