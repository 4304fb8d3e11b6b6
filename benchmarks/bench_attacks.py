"""Do attacks get through? Runs every named attack of tests/attacks, then fuzzes every instruction.

    attacks          hostile transactions of the named attacks (and `tests`, how many of those there are)
    through          hostile transactions accepted that should not be, and fuzzed ones that did what the
                     rule book does not allow
    fuzz_executions  random and damaged instructions run in LiteSVM and judged, by `--seed`
    crashes          of them, those that ended in a panic, a wild memory access or out of compute

Every accepted transaction is compared with the rule book byte by byte. The last line is JSON; the exit status
is 1 when anything got through or a named attack's honest twin fails. About a minute on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from attack_chain import LEDGER  # noqa: E402
from attack_fuzz import Fuzzer, Report  # noqa: E402

LEAST_EXECUTIONS = 100_000


class Counter:
    """A pytest plugin that counts tests."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest for each phase of each test."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed += 1


def run_named_attacks() -> Counter:
    """The tests of tests/attacks but its short fuzzing run."""
    counter = Counter()
    attacks = str(ROOT / "tests" / "attacks")
    options = ["--no-header", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-m", "not fuzz"]
    pytest.main([attacks, *options, "-c", str(ROOT / "pyproject.toml")], plugins=[counter])
    return counter


def show_progress(report: Report) -> None:
    """A line for every tenth of the way."""
    if report.executions % 1000 < 40:
        accepted = sum(report.accepted.values())
        print(f"{report.executions} executions, {accepted} accepted, {len(report.findings)} findings")


def main() -> None:
    """Parse the flags, attack, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executions", type=int, default=LEAST_EXECUTIONS)
    args = parser.parse_args()
    start = time.perf_counter()
    named = run_named_attacks()
    fuzz_start = time.perf_counter()
    report = Fuzzer(args.seed).run(args.executions, show_progress)
    end = time.perf_counter()
    for finding in report.findings[:20]:
        print(f"FINDING {finding}")
    for test in named.failed:
        print(f"FAILED {test}")
    figures = {
        "attacks": LEDGER.attempts,
        "through": len(LEDGER.through) + len(report.findings),
        "tests": named.passed + len(named.failed),
        "tests_failed": len(named.failed),
        "fuzz_executions": report.executions,
        "fuzz_accepted": sum(report.accepted.values()),
        "fuzz_refusals": len(report.refused),
        "crashes": report.crashes,
        "max_compute_units": report.max_units,
        "seed": args.seed,
        "attack_seconds": round(fuzz_start - start, 1),
        "executions_per_second": round(report.executions / (end - fuzz_start)),
    }
    print(json.dumps(figures))
    sys.exit(1 if figures["through"] or named.failed else 0)


if __name__ == "__main__":
    main()
