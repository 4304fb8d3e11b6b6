"""Do replicas stay equal and batches accounted for, whatever goes wrong? Scripts of faults in virtual time.

    make bench-faults                                     the library
    python benchmarks/bench_faults.py --family pair --seeds 200
    python benchmarks/bench_faults.py --script pair:17    one script, with its timeline

A script is a family of faults and a seed (psyche_py/sim/families.py); the client machine and the rule book in
it are the real ones. One that fails, or ends before a fault that it names has come, is shortened to the
fewest faults that still fail, and printed. Forks deeper than ``confirmed`` allows (more than four slots;
docs/simulator.md, "Findings") are not in the library, and so not in its figures. The last line is JSON; the
exit code is 1 when a script failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from typing import Any

from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.sim.families import DEFAULT_SEEDS, FAMILIES, NUM_SCRIPTS, make_script
from psyche_py.sim.outcome import Outcome, judge, make_world, play_script, shorten_script
from psyche_py.sim.script import write_script

PROGRESS_SECONDS = 10.0
LONG_FAMILIES = ("agora", "third-fails")


def play(name: tuple[str, int]) -> tuple[Outcome, float]:
    """One script, in a worker process, and the CPU seconds that it took."""
    begin = time.process_time()
    return play_script(make_script(*name)), time.process_time() - begin


def play_all(scripts: list[tuple[str, int]], num_workers: int) -> tuple[list[Outcome], Counter[str]]:
    """Play scripts side by side and say how far it is. Returns also the CPU seconds of each family."""
    outcomes: list[Outcome] = []
    cpu_seconds: Counter[str] = Counter()
    begin = shown = time.monotonic()
    with multiprocessing.Pool(num_workers) as pool:
        for outcome, seconds in pool.imap_unordered(play, scripts):
            outcomes.append(outcome)
            cpu_seconds[outcome.name.partition(":")[0]] += seconds
            if outcome.is_failed:
                print(f"FAILED {outcome.name}: {outcome.problems[0]}", flush=True)
            now = time.monotonic()
            if now - shown >= PROGRESS_SECONDS or len(outcomes) == len(scripts):
                shown, num_failed = now, sum(one.is_failed for one in outcomes)
                done = f"{len(outcomes)} of {len(scripts)} scripts, {num_failed} failed"
                print(f"{now - begin:6.0f} s  {done}", flush=True)
    return sorted(outcomes, key=lambda outcome: outcome.name), cpu_seconds


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


def summarise(outcomes: list[Outcome], cpu_seconds: Counter[str], seconds: float) -> dict[str, Any]:
    """The last line."""
    families = Counter(outcome.name.partition(":")[0] for outcome in outcomes)
    return {
        "scripts": len(outcomes),
        "failed": sum(outcome.is_failed for outcome in outcomes),
        "batches_lost": sum(outcome.lost_batches for outcome in outcomes),
        "unequal_digests": sum(outcome.unequal_digests for outcome in outcomes),
        "samples_lost": sum(outcome.lost_samples for outcome in outcomes),
        "virtual_hours": round(sum(outcome.virtual_seconds for outcome in outcomes) / 3600, 2),
        "rounds": sum(outcome.num_rounds for outcome in outcomes),
        "faults": sum(outcome.fired for outcome in outcomes),
        "faults_that_never_came": sum(outcome.waiting for outcome in outcomes),
        "batches_reported_untrained": sum(outcome.untrained_batches for outcome in outcomes),
        "resyncs": sum(outcome.resyncs for outcome in outcomes),
        "families": dict(families),
        "cpu_seconds": round(sum(cpu_seconds.values()), 1),
        "cpu_seconds_per_script": {f: round(cpu_seconds[f] / num, 2) for f, num in families.items()},
        "seconds": round(seconds, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--family", choices=sorted(FAMILIES), help="one family only")
    parser.add_argument(
        "--seeds", type=int, default=DEFAULT_SEEDS, help="scripts per family that has no number of its own"
    )
    parser.add_argument("--script", help="one script, FAMILY:SEED, with its timeline")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args()
    begin = time.monotonic()
    if options.script:
        outcomes, cpu_seconds = [show(options.script)], Counter[str]()
    else:
        families = [options.family] if options.family else list(FAMILIES)
        scripts = [(f, seed) for f in families for seed in range(NUM_SCRIPTS.get(f, options.seeds))]
        scripts.sort(key=lambda script: script[0] not in LONG_FAMILIES)  # or one worker ends alone
        outcomes, cpu_seconds = play_all(scripts, options.workers)
    for outcome in outcomes:
        if outcome.is_failed:
            report(outcome)
    print(json.dumps(summarise(outcomes, cpu_seconds, time.monotonic() - begin)))
    return 1 if any(outcome.is_failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
