"""Does hole punching work, how soon, and what does it change? Two homes behind real NATs, one public client.

    python benchmarks/bench_punch.py [--attempts 20] [--megabytes 20]

In network namespaces that it makes itself; needs root, `ip` and `nft`. One part per kind of router: both
keep the port of a connection (nft masquerade), one or both give every target a random one. Each attempt
begins with a request between the two, which makes a circuit. The last line is one JSON object, by kind:
    attempts, punched      how many circuits were made, and how many became direct connections within 10 s
    median_s, max_s        from the circuit to the direct connection, of those
    mb_s                   of one payload between the two, in the way that they are left with; best of three
    relay_share            bytes that came in at the public client, divided by the payload's
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from nat_homes import Node, open_homes

KINDS = {"keep": "", "one_random": "a", "both_random": "ab"}


def measure(nodes: tuple[Node, Node, Node], num_attempts: int, num_bytes: int) -> dict[str, Any]:
    """One kind of router."""
    a, b, p = nodes
    everybody = [[node.key, node.hint] for node in nodes]
    seconds: list[float | None] = []
    for attempt in range(num_attempts):
        for node in nodes:
            node(peers=[[p.key, p.hint]], seed=f"{attempt} apart")
        for node in nodes:
            node(peers=everybody, seed=f"{attempt} together")
        for node, number in ((p, 2), (a, 1), (b, 1)):
            node(connected=number)
        asker, asked = ((a, b), (b, a))[attempt % 2]
        seconds.append(asker(punch=asked.key)["seconds"])
        print(f"  {attempt + 1}: {seconds[-1]}", flush=True)
    punched = [value for value in seconds if value is not None]
    speeds, shares = [], []
    for number in range(3):
        size = num_bytes + number
        digest = a(put=size)["digest"]
        before, started = p.count_received_bytes(), time.monotonic()
        b(fetch=digest, size=size, **{"from": a.key})
        speeds.append(size / (time.monotonic() - started) / 1e6)
        shares.append((p.count_received_bytes() - before) / size)
    return {
        "attempts": num_attempts,
        "punched": len(punched),
        "median_s": round(statistics.median(punched), 3) if punched else None,
        "max_s": round(max(punched), 3) if punched else None,
        "mb_s": round(max(speeds), 1),
        "relay_share": round(statistics.median(shares), 2),
    }


def main() -> None:
    """Measure all kinds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=20)
    arguments = parser.parse_args()
    results = {}
    for kind, random_ports in KINDS.items():
        print(f"routers: {kind}", flush=True)
        with open_homes(random_ports) as nodes:
            number = arguments.attempts if not random_ports else min(3, arguments.attempts)
            results[kind] = measure(nodes, number, arguments.megabytes * 1_000_000)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
