"""Whether clients last: eight processes on a local validator, for MINUTES (default 30).

    MINUTES=10 VERIFICATION_PERCENT=20 python benchmarks/bench_soak.py

Short epochs, so that joining, sharing the model and settling happen hundreds of times too. The last line is
one JSON object: memory of every client at the start (when all have trained three rounds), after the warm-up
and at the end in MB, how fast each grew in the second half and how fast it might (MB per 1,000 rounds; see
soak_growth.py), the same three readings of the validator, connections that were lost and came back, rounds,
checks, warnings by their first words, whether all digests are equal and every sample is accounted for. Exit
code 1 unless they are, all clients ended in peace, none grew faster than it may, and the validator is no
larger than ``MAX_LOCALNET_MB``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from client_processes import RUN_ID, ProcessClient, ProcessRun, start_run  # noqa: E402
from soak_growth import Reading, compute_allowed, compute_growth, get_late  # noqa: E402

from psyche_py.chain.client import ProgramClient  # noqa: E402
from psyche_py.data.prepare import prepare_shards  # noqa: E402
from psyche_py.observe.tally import are_digests_equal, find_unaccounted  # noqa: E402

NUM_CLIENTS = 8
REPORT_SECONDS = 30.0
READ_SECONDS = 5.0
WARM_UP_SECONDS = 120.0
"""Until then code and buffers are used for the first time: a whole round, an epoch's end, connections; and
the mesh fills its memory of the last minute."""
MAX_LOCALNET_MB = 200.0
"""75 MB to begin with; 20,000 transactions of history with their indexes, 4 KB each; 2,000 of them once
more in the engine."""
VERIFICATION_PERCENT = int(os.environ.get("VERIFICATION_PERCENT", "0"))
CONFIG = {
    "total_steps": 10**6,
    "epoch_time": 60,
    "warmup_time": 40,
    "max_round_train_time": 20,
    "init_min_clients": NUM_CLIENTS,
    "min_clients": 2,
    "global_batch_size_start": 16,
    "global_batch_size_end": 16,
    "verification_percent": VERIFICATION_PERCENT,
}


def read_memory_mb(process: subprocess.Popen[bytes]) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None, "the process has ended"
    return round(int(found[1]) / 1000, 1)


def count_reconnects(client: ProcessClient) -> int:
    """How many connections were lost and made again, as the reports every five seconds show them."""
    connected = [event["connected"] for event in client.events if event["kind"] == "peers"]
    risen = sum(max(after - before, 0) for before, after in pairwise([0, *connected]))
    return risen - max(connected, default=0)


def watch(run: ProcessRun, clients: list[ProcessClient], minutes: float) -> list[Reading]:
    """Read the memory of all clients and, last, of the validator for so long, from the start on."""
    processes = [*(client.process for client in clients), run.localnet.process]
    readings: list[Reading] = []
    started, reported = time.monotonic(), 0.0
    while (seconds := time.monotonic() - started) < 60 * minutes:
        if not readings or seconds - readings[-1].seconds >= READ_SECONDS:
            memory = tuple(read_memory_mb(process) for process in processes)
            readings.append(Reading(seconds, len(clients[0].tally.digests), memory))
        if seconds - reported > REPORT_SECONDS:
            reported, tally = seconds, clients[0].tally
            mean = statistics.fmean(readings[-1].memory[:-1])
            print(f"epoch {tally.epoch} step {tally.step}: {mean:.1f} MB per client", flush=True)
        time.sleep(1.0)
        for client in clients:
            client.update()
    return readings


def soak(run: ProcessRun, minutes: float) -> dict[str, Any]:
    """Train for so long, end the run cleanly, and say how it was."""
    clients = [run.add_client() for _ in range(NUM_CLIENTS)]
    run.wait_for(lambda: all(client.tally.num_rounds >= 3 for client in clients), 600)
    readings = watch(run, clients, minutes)
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
        "verification_percent": VERIFICATION_PERCENT,
        **describe_memory(readings),
        "reconnects": sum(count_reconnects(client) for client in clients),
        "rounds": len({place for tally in tallies for place in tally.digests}),
        "epochs": len(tallies[0].epoch_digests),
        "checks": sum(tally.num_verified for tally in tallies),
        "accusations": sum(tally.num_accused for tally in tallies),
        "samples": end,
        "samples_unaccounted": len(find_unaccounted(tallies, end)),
        "samples_repeated": sum(b - a + 1 for a, b in tallies[0].untrained),
        "samples_lost": sum(b - a + 1 for ranges in tallies[0].lost.values() for a, b in ranges),
        "warnings": dict(warnings.most_common(6)),
        "digests_equal": are_digests_equal(tallies),
    }


def describe_memory(readings: list[Reading]) -> dict[str, object]:
    """What becomes of memory, for the report."""
    warm = next(reading for reading in readings if reading.seconds >= WARM_UP_SECONDS)
    late = get_late(readings, WARM_UP_SECONDS)
    moments = (readings[0], warm, readings[-1])
    start, warmed_up, end = (reading.memory[:-1] for reading in moments)
    return {
        "memory_start_mb": start,
        "memory_warm_mb": warmed_up,
        "memory_end_mb": end,
        "rounds_second_half": late[-1].num_rounds - late[0].num_rounds,
        "growth_mb_per_1000_rounds": compute_growth(late)[:-1],
        "allowed_mb_per_1000_rounds": compute_allowed(late),
        "localnet_mb": [reading.memory[-1] for reading in moments],
    }


def is_good(facts: dict[str, Any]) -> bool:
    """See the module."""
    is_right = facts["digests_equal"] and not facts["samples_unaccounted"]
    grew = max(facts["growth_mb_per_1000_rounds"]) > facts["allowed_mb_per_1000_rounds"]
    return is_right and not grew and max(facts["localnet_mb"]) <= MAX_LOCALNET_MB


async def pause(owner: ProgramClient) -> None:
    """End the run when its epoch has ended."""
    await owner.set_paused(await owner.fetch_run(RUN_ID), True)


def main() -> int:
    minutes = float(os.environ.get("MINUTES", "30"))
    if 60 * minutes < WARM_UP_SECONDS + 60:
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
    return 0 if is_good(facts) else 1


if __name__ == "__main__":
    sys.exit(main())
