"""Do replicas stay equal and batches accounted for, whatever goes wrong? Scripts of faults in virtual time.

    make bench-faults                                     the library
    python benchmarks/bench_faults.py --family pair --seeds 200
    python benchmarks/bench_faults.py --script pair:17    one script, with its timeline

A script is a family of faults and a seed (psyche_py/sim/families.py); the client machine and the rule book in
it are the real ones. One that fails is shortened to the fewest faults that still fail, and printed. The last
line is JSON; the exit code is 1 when a script failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from typing import Any

from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.sim.families import DEFAULT_SEEDS, FAMILIES, NUM_SCRIPTS, make_script
from psyche_py.sim.outcome import Outcome, judge, make_world, play_script, shorten_script
from psyche_py.sim.script import write_script


def play(script: tuple[str, int]) -> Outcome:
    """One script, in a worker process."""
    return play_script(make_script(*script))


def show(name: str) -> Outcome:
    """Play one script and print what the chain goes through."""
    family, _, seed = name.partition(":")
    script = make_script(family, int(seed))
    world = make_world(script)

    def print_change(before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        height = after.current_round.height
        if (before.run_state, before.current_round.height) != (after.run_state, height):
            clients = "".join(client.state.name[0] for client in after.epoch_clients)
            print(
                f"{world.virtual_seconds:9.2f} s  {after.run_state.name:18} epoch {after.epoch} "
                f"step {after.step} height {height} clients {clients}"
            )

    for fault in script.faults:
        print(fault)
    world.chain.on_change.append(print_change)
    return judge(script, world, world.run(max_seconds=script.max_seconds))


def report(outcome: Outcome) -> None:
    """Print a failure and the fewest faults that still show it."""
    print(f"FAILED {outcome.name}: {'; '.join(outcome.problems[:5])}")
    family, _, seed = outcome.name.partition(":")
    print(write_script(shorten_script(make_script(family, int(seed)))))
    print(f"    python benchmarks/bench_faults.py --script {outcome.name}")


def summarise(outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """The last line."""
    families = Counter(outcome.name.partition(":")[0] for outcome in outcomes)
    return {
        "scripts": len(outcomes),
        "failed": sum(outcome.is_failed for outcome in outcomes),
        "batches_lost": sum(outcome.lost_batches for outcome in outcomes),
        "unequal_digests": sum(outcome.unequal_digests for outcome in outcomes),
        "virtual_hours": round(sum(outcome.virtual_seconds for outcome in outcomes) / 3600, 2),
        "rounds": sum(outcome.num_rounds for outcome in outcomes),
        "faults": sum(outcome.fired for outcome in outcomes),
        "batches_reported_untrained": sum(outcome.untrained_batches for outcome in outcomes),
        "resyncs": sum(outcome.resyncs for outcome in outcomes),
        "families": dict(families),
        "seconds": round(seconds, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--family", choices=sorted(FAMILIES), help="one family only")
    parser.add_argument(
        "--seeds", type=int, default=DEFAULT_SEEDS, help="scripts per family that has no number of its own"
    )
    parser.add_argument("--script", help="one script, FAMILY:SEED, with its timeline")
    options = parser.parse_args()
    begin = time.monotonic()
    if options.script:
        outcomes = [show(options.script)]
    else:
        families = [options.family] if options.family else list(FAMILIES)
        scripts = [(f, seed) for f in families for seed in range(NUM_SCRIPTS.get(f, options.seeds))]
        scripts.sort(key=lambda script: script[0] != "agora")  # the long ones first
        with multiprocessing.Pool() as pool:
            outcomes = list(pool.imap(play, scripts))
    for outcome in outcomes:
        if outcome.is_failed:
            report(outcome)
    print(json.dumps(summarise(outcomes, time.monotonic() - begin)))
    return 1 if any(outcome.is_failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
