"""The same clients against Agave's own validator, when it is installed."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import pytest
import trio
from client_processes import ProcessRun, start_run

from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id
from psyche_py.cli.demo.chain import wait_for_chain
from psyche_py.cli.demo.processes import Child, find_free_ports
from psyche_py.coordinator.layout import RunState
from psyche_py.observe.tally import are_digests_equal

VALIDATOR = shutil.which("solana-test-validator")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        VALIDATOR is None,
        reason="solana-test-validator is not on PATH: the client was tested against our localnet only",
    ),
]


def start_validator(run: ProcessRun) -> Child:
    """Agave's test validator with our programs at their ids, in place of our localnet."""
    folder = resources.files("psyche_py.chain").joinpath("programs")
    programs = [
        part
        for name in PROGRAM_NAMES
        for part in ("--bpf-program", str(get_program_id(name)), str(folder.joinpath(f"{name}.so")))
    ]
    faucet, _ = find_free_ports()
    command = [
        *(str(VALIDATOR), "--reset", "--quiet", "--ledger", str(run.directory / "validator")),
        *("--rpc-port", str(run.rpc_port), "--faucet-port", str(faucet), *programs),
    ]
    child = run.children.start("validator", command, run.directory / "validator.log")
    trio.run(wait_for_chain, run.url, child)
    return child


def test_three_clients_finish_a_run(tmp_path: Path, shards: Path, nano: Path) -> None:
    with start_run(tmp_path, shards, nano, start_chain=start_validator, total_steps=12) as run:
        clients = [run.add_client() for _ in range(3)]
        run.wait_for_end(clients)
        assert run.get_account().run_state is RunState.Finished
        assert are_digests_equal([c.tally for c in clients])
