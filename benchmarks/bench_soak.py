"""Whether clients last: eight processes on a local validator, for MINUTES (default 30).

    MINUTES=5 python benchmarks/bench_soak.py

Short epochs, so that joining, sharing the model and settling happen hundreds of times too. The last line is
one JSON object: memory of every process at the start (when all have trained three rounds), after the warm-up
and at the end in MB, how fast each grew after the warm-up (slope of a line through its readings, MB per hour
and per 1,000 rounds), connections that were lost and came back, rounds, warnings by their first
words, whether all digests are equal and every sample is accounted for. Exit code 1 unless they are, all
clients ended in peace, and none grew faster than ``MAX_MB_PER_1000_ROUNDS``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from client_processes import RUN_ID, ProcessClient, ProcessRun, start_run  # noqa: E402

from psyche_py.chain.client import ProgramClient  # noqa: E402
from psyche_py.data.prepare import prepare_shards  # noqa: E402
from psyche_py.observe.tally import are_digests_equal, find_unaccounted  # noqa: E402

NUM_CLIENTS = 8
REPORT_SECONDS = 30.0
READ_SECONDS = 10.0
WARM_UP_SECONDS = 120.0
"""Until then code and buffers are used for the first time: a whole round, an epoch's end, connections; and
the mesh fills its memory of the last minute."""
MAX_MB_PER_1000_ROUNDS = 12.0
"""100 MB in a day of rounds of ten seconds. Of rounds and not of hours: these here are over in half a second.
2 MB of it are what the mesh remembers, for the first 4,096 rounds."""
CONFIG = {
    "total_steps": 10**6,
    "epoch_time": 60,
    "warmup_time": 40,
    "max_round_train_time": 20,
    "init_min_clients": NUM_CLIENTS,
    "min_clients": 2,
    "global_batch_size_start": 16,
    "global_batch_size_end": 16,
}


def read_memory_mb(client: ProcessClient) -> float:
    """Resident memory of a client's process."""
    status = Path(f"/proc/{client.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None, "the process has ended"
    return round(int(found[1]) / 1000, 1)


def count_reconnects(client: ProcessClient) -> int:
    """How many connections were lost and made again, as the reports every five seconds show them."""
    connected = [event["connected"] for event in client.events if event["kind"] == "peers"]
    risen = sum(max(after - before, 0) for before, after in pairwise([0, *connected]))
    return risen - max(connected, default=0)


class Reading(NamedTuple):
    """Seconds since the start, rounds that the first client has applied, memory of every client in MB."""

    seconds: float
    num_rounds: int
    memory: list[float]


def watch(clients: list[ProcessClient], minutes: float) -> list[Reading]:
    """Read everybody's memory for so long, from the start on."""
    readings: list[Reading] = []
    started, reported = time.monotonic(), 0.0
    while (seconds := time.monotonic() - started) < 60 * minutes:
        if not readings or seconds - readings[-1].seconds >= READ_SECONDS:
            memory = [read_memory_mb(client) for client in clients]
            readings.append(Reading(seconds, clients[0].tally.num_rounds, memory))
        if seconds - reported > REPORT_SECONDS:
            reported, tally = seconds, clients[0].tally
            mean = statistics.fmean(readings[-1].memory)
            print(f"epoch {tally.epoch} step {tally.step}: {mean:.1f} MB per client", flush=True)
        time.sleep(1.0)
        for client in clients:
            client.update()
    return readings


def compute_growth(readings: list[Reading], places: list[float]) -> list[float]:
    """MB per unit of ``places`` of every client: the slope of its readings, one at each place."""
    columns = zip(*(reading.memory for reading in readings), strict=True)
    return [round(statistics.linear_regression(places, column).slope, 1) for column in columns]


def soak(run: ProcessRun, minutes: float) -> dict[str, object]:
    """Train for so long, end the run cleanly, and say how it was."""
    clients = [run.add_client() for _ in range(NUM_CLIENTS)]
    run.wait_for(lambda: all(client.tally.num_rounds >= 3 for client in clients), 600)
    readings = watch(clients, minutes)
    warm = [reading for reading in readings if reading.seconds >= WARM_UP_SECONDS]
    run.call(pause)
    run.wait_for(lambda: all(client.tally.run_state == "Paused" for client in clients), 300)
    end = run.get_account().epoch_start_data_index
    for client in clients:
        client.process.send_signal(signal.SIGINT)
    run.wait_for_end(clients)
    tallies = [client.tally for client in clients]
    warnings = Counter(" ".join(text.split()[:3]) for tally in tallies for text in tally.warnings)
    return {
        "minutes": minutes,
        "clients": NUM_CLIENTS,
        "memory_start_mb": readings[0].memory,
        "memory_warm_mb": warm[0].memory,
        "memory_end_mb": warm[-1].memory,
        "growth_mb_per_hour": compute_growth(warm, [r.seconds / 3600 for r in warm]),
        "growth_mb_per_1000_rounds": compute_growth(warm, [r.num_rounds / 1000 for r in warm]),
        "rounds_warm": warm[-1].num_rounds - warm[0].num_rounds,
        "reconnects": sum(count_reconnects(client) for client in clients),
        "rounds": len({place for tally in tallies for place in tally.digests}),
        "epochs": len(tallies[0].epoch_digests),
        "samples": end,
        "samples_unaccounted": len(find_unaccounted(tallies, end)),
        "samples_repeated": sum(b - a + 1 for a, b in tallies[0].untrained),
        "samples_lost": sum(b - a + 1 for ranges in tallies[0].lost.values() for a, b in ranges),
        "warnings": dict(warnings.most_common(6)),
        "digests_equal": are_digests_equal(tallies),
    }


async def pause(owner: ProgramClient) -> None:
    """End the run when its epoch has ended."""
    await owner.set_paused(await owner.fetch_run(RUN_ID), True)


def main() -> int:
    minutes = float(os.environ.get("MINUTES", "30"))
    if 60 * minutes < WARM_UP_SECONDS + 6 * READ_SECONDS:
        sys.exit("At least three minutes: the first two are warm-up.")
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        directory = Path(name)
        text = directory / "text.txt"
        text.write_text((ROOT / "LICENSE").read_text() * 3)
        prepare_shards([text], directory / "shards", vocab_size=512)
        model = ROOT / "configs" / "models" / "nano" / "config.json"
        with start_run(directory, directory / "shards", model, **CONFIG) as run:
            facts = soak(run, minutes)
    print(json.dumps(facts))
    is_good = facts["digests_equal"] and not facts["samples_unaccounted"]
    return 0 if is_good and max(facts["growth_mb_per_1000_rounds"]) <= MAX_MB_PER_1000_ROUNDS else 1  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
