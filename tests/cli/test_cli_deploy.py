"""``deploy-programs`` on a localnet with our programs built in; tests/integration has a real deployment."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import Cli

from psyche_py.chain.artifacts import PROGRAM_NAMES

pytestmark = pytest.mark.slow


def test_built_in_programs_are_up_to_date(chain: Cli, stranger: Path) -> None:
    done = chain("deploy-programs", "-k", stranger)
    assert done.code == 0, done.err
    assert done.out.startswith("SBPF v0\n")
    assert done.out.count("is up to date") == len(PROGRAM_NAMES)
    assert chain("deploy-programs", "--close-buffers", "-k", stranger).out.startswith("0.000000 SOL")


def test_mistakes_are_told(chain: Cli, stranger: Path) -> None:
    signed = ("-k", stranger)
    chain("deploy-programs", "treasury", *signed).check_error(2, "'treasury'", "treasurer")
    chain("deploy-programs", "treasurer", "--sbpf", 3, *signed).check_error(3, "built in")
    chain("deploy-programs", "--upgrade-authority", "none.json", *signed).check_error(2, "none.json")
