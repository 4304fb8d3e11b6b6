"""What does a round cost, with 8, 64 and 256 clients? The client machine and the rule book in virtual time.

    make bench-sim
    python benchmarks/bench_sim.py --clients 256 --rounds 10

Links of 200 Mbit/s and 80 ms there and back, payloads of 1 MB, 12 s of training. Per number of clients:
seconds of real time (and of CPU) a simulated round takes; bytes of payloads a client uploads in a round over
the size of its own payload (nobody can do with fewer than clients - 1 on average: everybody needs every
payload), for the mean and the busiest client, and how often a sender sends its own; bytes of announcements
likewise; and the virtual seconds a round lasts beyond the longer of training and transfer, and where they
go: median and 95th percentile of each stage of a round (psyche_py/sim/stages.py). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from psyche_py.sim.settings import Link, Settings
from psyche_py.sim.stages import compute_stages, summarise_stages
from psyche_py.sim.world import World

ROUNDS = {8: 60, 64: 24, 256: 3}
"""Rounds measured: enough to be steady, few enough for a minute or two."""
WARM_ROUNDS = 2
"""The first rounds of an epoch transfer nothing."""
LINK = Link(latency_seconds=0.04, up_bytes_per_second=25e6, down_bytes_per_second=25e6)
PAYLOAD_BYTES = 1_000_000
TRAIN_SECONDS = 12.0


def make_settings(num_clients: int) -> Settings:
    """A run of one long epoch."""
    config = {
        "global_batch_size_start": 4 * num_clients,
        "global_batch_size_end": 4 * num_clients,
        "init_min_clients": num_clients,
        "max_round_train_time": 120,
        "warmup_time": 120,
        "epoch_time": 100_000,
        "total_steps": 1000,
    }
    return Settings(
        num_clients,
        seed=1,
        config=config,
        link=LINK,
        train_seconds=TRAIN_SECONDS,
        spread=0.1,
        payload_bytes=PAYLOAD_BYTES,
    )


def count_sent(world: World, *kinds: str) -> list[int]:
    """Bytes each client has sent."""
    sent = [world.wires.get_sent(number) for number in range(len(world.clients))]
    return [sum(by_kind[kind] for kind in kinds) for by_kind in sent]


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one size by name, and seconds of a round's stages: median and 95th percentile."""

    figures: dict[str, float]
    stages: dict[str, tuple[float, float]]


def measure(num_clients: int, num_rounds: int) -> Measured:
    """Play rounds of one size. Raises RuntimeError when the run does not get there."""
    world = World(make_settings(num_clients))
    first = world.account.step + WARM_ROUNDS
    reach(world, first)
    before = {kind: count_sent(world, kind) for kind in ("own", "relayed", "announcements")}
    begin, begin_cpu = time.monotonic(), time.process_time()
    reach(world, first + num_rounds)
    seconds, cpu = time.monotonic() - begin, time.process_time() - begin_cpu
    sent = {
        kind: [
            (b - a) / PAYLOAD_BYTES / num_rounds for a, b in zip(old, count_sent(world, kind), strict=True)
        ]
        for kind, old in before.items()
    }
    payloads = [own + relayed for own, relayed in zip(sent["own"], sent["relayed"], strict=True)]
    transfer = (num_clients - 1) * PAYLOAD_BYTES / LINK.up_bytes_per_second
    rounds = world.ledger.rounds[WARM_ROUNDS:]
    stages = [stage for stage in map(compute_stages, world.timeline.rounds[WARM_ROUNDS:]) if stage]
    figures = {
        "seconds": seconds / num_rounds,
        "cpu_seconds": cpu / num_rounds,
        "upload": statistics.mean(payloads),
        "upload_max": max(payloads),
        "own_upload": statistics.mean(sent["own"]),
        "announcements": statistics.mean(sent["announcements"]),
        "overhead": statistics.mean(r.seconds - max(r.slowest_training, transfer) for r in rounds),
        "round": statistics.mean(r.seconds for r in rounds),
    }
    return Measured(figures, summarise_stages(stages))


def reach(world: World, step: int) -> None:
    """Let the run come to a step. Raises RuntimeError."""
    if not world.run(lambda: world.account.step >= step):
        raise RuntimeError(f"the run stays in {world.account.run_state.name} at step {world.account.step}")


def summarise(results: dict[int, Measured]) -> dict[str, Any]:
    """The last line."""

    def by_clients(key: str, digits: int = 3) -> dict[str, float]:
        return {str(num): round(result.figures[key], digits) for num, result in results.items()}

    stages = {
        str(num): {name: [round(seconds, 3) for seconds in pair] for name, pair in result.stages.items()}
        for num, result in results.items()
    }

    return {
        "by_clients": by_clients("seconds"),
        "cpu_seconds_per_round": by_clients("cpu_seconds"),
        "upload_per_payload": by_clients("upload", 2),
        "upload_per_payload_max": by_clients("upload_max", 2),
        "own_payload_sent": by_clients("own_upload", 2),
        "announcements_per_payload": by_clients("announcements", 4),
        "overhead_virtual_seconds": by_clients("overhead"),
        "round_virtual_seconds": by_clients("round"),
        "stages_virtual_seconds": stages,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, help="one size only")
    parser.add_argument("--rounds", type=int, help="rounds measured per size")
    options = parser.parse_args()
    sizes = {options.clients: 5} if options.clients else ROUNDS
    results = {}
    for num_clients, num_rounds in sizes.items():
        results[num_clients] = measured = measure(num_clients, options.rounds or num_rounds)
        print(num_clients, {key: round(value, 3) for key, value in measured.figures.items()}, flush=True)
        for name, (median, high) in measured.stages.items():
            print(f"    {name:13} median {median:.3f} s, 95 % {high:.3f} s", flush=True)
    print(json.dumps(summarise(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
