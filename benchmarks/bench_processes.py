"""Whether the process scripts pass every time: each REPEAT times (default 50) on real client processes.

    REPEAT=5 RUNS=2 python benchmarks/bench_processes.py

The scripts of tests/integration/test_process_scripts.py, RUNS at a time (default 3; each keeps four clients
and a local validator). Their processes are kept for ``ROUNDS_OF_SCRIPTS`` plays of all scripts, then begun
anew. The files of a script that failed stay where the report says. The last line is one JSON object: scripts,
plays of each, failures by script, minutes. Exit code 1 unless all passed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
SCRIPTS = "tests/integration/test_process_scripts.py"
ROUNDS_OF_SCRIPTS = 5


def play(count: int, runs: int, directory: Path) -> tuple[Counter[str], Counter[str]]:
    """Plays of each script, and failures of each, in ``count`` repetitions.

    Raises RuntimeError when pytest itself fails.
    """
    report = directory / "report.xml"
    options = ["-p", "no:cacheprovider", f"--basetemp={directory / 'files'}", f"--junitxml={report}"]
    repeat = ["--count", str(count), "--repeat-scope", "session", "--dist", "worksteal", "-n", str(runs)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", SCRIPTS, *options, *repeat],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    (directory / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1):
        output = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        raise RuntimeError(f"pytest ended with code {done.returncode}:\n{output}")
    plays: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"].removeprefix("test_script[").split("-")[0]
        plays[name] += 1
        failures[name] += any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
    return plays, +failures


def main() -> int:
    repeat, runs = int(os.environ.get("REPEAT", "50")), int(os.environ.get("RUNS", "3"))
    started = time.monotonic()
    plays: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    while (played := min(plays.values(), default=0)) < repeat:
        directory = Path(tempfile.mkdtemp(prefix="process-scripts-"))
        more_plays, more_failures = play(min(ROUNDS_OF_SCRIPTS, repeat - played), runs, directory)
        plays += more_plays
        failures += more_failures
        minutes = (time.monotonic() - started) / 60
        print(
            f"{sum(plays.values())} plays, {sum(failures.values())} failed, {minutes:.1f} minutes", flush=True
        )
        if more_failures:
            print(f"failed: {dict(more_failures)}; files: {directory}", flush=True)
    facts = {
        "scripts": len(plays),
        "repetitions": min(plays.values()),
        "plays": sum(plays.values()),
        "failed": sum(failures.values()),
        "failures": dict(failures),
        "minutes": round((time.monotonic() - started) / 60, 1),
    }
    print(json.dumps(facts))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
