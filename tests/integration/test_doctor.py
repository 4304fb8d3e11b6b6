"""`run-manager doctor` beside a real run over loopback: each verdict, its remedy and its exit status."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_process import Cli, Outcome
from client_processes import RUN_ID, ProcessRun, start_run

pytestmark = pytest.mark.processes


@contextmanager
def open_run(directory: Path, shards: Path, nano: Path) -> Iterator[ProcessRun]:
    """A run that waits for members, with one client in it."""
    with start_run(directory, shards, nano, init_min_clients=4) as run:
        run.add_client()
        run.wait_for(lambda: bool(run.get_account().entries))
        yield run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shards: Path, nano: Path) -> Iterator[ProcessRun]:
    with open_run(tmp_path_factory.mktemp("run"), shards, nano) as run:
        yield run


class Doctor:
    """The console script with the run's cluster and the client's wallet."""

    def __init__(self, run: ProcessRun, home: Path) -> None:
        self._run = run
        self._cli = Cli(home, run.url)

    def __call__(self, *options: str, wallet: Path | None = None) -> Outcome:
        path = wallet if wallet is not None else self._run.clients[0].wallet_path
        return self._cli("doctor", "-r", RUN_ID, "-k", path, *options)

    def ask(self, *options: str, code: int) -> dict[str, Any]:
        """Its JSON, which says the same as the exit status."""
        done = self(*options, "--output", "json")
        assert done.code == code, (done.out, done.err)
        facts: dict[str, Any] = json.loads(done.out)
        assert facts["exit_code"] == code
        return facts


@pytest.fixture
def doctor(run: ProcessRun, tmp_path: Path) -> Doctor:
    return Doctor(run, tmp_path)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Taken, so that nobody else gets it, but nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield int(closed.getsockname()[1])


def test_reachable(doctor: Doctor) -> None:
    facts = doctor.ask(code=0)
    assert facts["verdict"] == "reachable"
    assert [check["name"] for check in facts["checks"]] == ["wallet", "cluster", "clock", "port", "reach"]
    assert not any(check["exit_code"] for check in facts["checks"])
    done = doctor()
    assert done.code == 0
    assert done.out.splitlines()[-1] == "reachable"


def test_a_client_that_is_running_answers_for_its_port(doctor: Doctor, run: ProcessRun) -> None:
    from psyche_py.p2p.hint import unpack_hint

    address = unpack_hint(run.get_account().entries[0].address_hint)
    assert address is not None
    facts = doctor.ask("--listen-port", str(address.port), code=0)
    assert facts["verdict"] == "reachable"
    assert "A client of ours" in facts["checks"][3]["found"]


def test_through_relay(doctor: Doctor, closed_port: int) -> None:
    facts = doctor.ask("--announce", f"127.0.0.1:{closed_port}", code=8)
    assert facts["verdict"] == "through relay"
    *_, reach, punch = facts["checks"]
    assert f"port {closed_port}" in reach["remedy"]
    assert "--announce" in reach["remedy"]
    assert punch["name"] == "punch"
    assert punch["exit_code"] == 0
    assert "Hole punching should work" in punch["found"], "there is no router at all"
    assert doctor.ask("--announce", "none", code=8)["verdict"] == "through relay"


def test_a_port_of_somebody_else(doctor: Doctor) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        facts = doctor.ask("--listen-port", str(other.getsockname()[1]), code=5)
    assert facts["verdict"] == "not known"
    assert "--listen-port" in facts["checks"][-1]["remedy"]


def test_a_wallet_without_money_and_none_at_all(doctor: Doctor, tmp_path: Path) -> None:
    poor = Cli(tmp_path).make_wallet("poor")
    done = doctor(wallet=poor)
    assert done.code == 3
    assert "wallet airdrop" in done.out
    assert done.out.splitlines()[-1] == "reachable", "the other checks are made all the same"
    assert doctor(wallet=tmp_path / "nowhere.json").code == 2


@pytest.mark.parametrize(
    ("shift", "lead", "code"), [(30, "ok ", 0), (3600, "-- ", 2)], ids=["warned", "refused"]
)
def test_a_clock_that_is_off(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int, lead: str, code: int
) -> None:
    """The console script itself, with this machine's clock ahead: the line, its remedy, the exit status."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import time\n\nread = time.time\ntime.time = lambda: read() + {shift}\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = doctor()
    assert done.code == code, (done.out, done.err)
    lines = done.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line[4:].startswith("clock"))
    said = re.fullmatch(rf"{lead} clock    This machine's clock is \+(\d+) s off the chain's\.", lines[at])
    assert said is not None, lines[at]
    assert shift <= int(said[1]) < shift + 20, "a busy machine's chain is seconds late"
    assert lines[at + 1].strip() == "Let it be set by NTP: timedatectl set-ntp true"
    assert lines[-1] == "reachable", "the other checks are made all the same"


def test_a_cluster_that_is_not_there(tmp_path: Path, run: ProcessRun, closed_port: int) -> None:
    cli = Cli(tmp_path, f"http://127.0.0.1:{closed_port}")
    done = cli("doctor", "-r", RUN_ID, "-k", run.clients[0].wallet_path)
    assert done.code == 3
    assert "nobody to ask" in done.out
    assert done.out.splitlines()[-1] == "not known"


def test_not_reachable_when_nobody_answers(tmp_path: Path, shards: Path, nano: Path) -> None:
    """The client is killed, and its address stays in the account."""
    (tmp_path / "run").mkdir()
    with open_run(tmp_path / "run", shards, nano) as run:
        child = run.clients[0].child
        assert child is not None
        run.kill(child)
        facts = Doctor(run, tmp_path).ask(code=5)
    assert facts["verdict"] == "not reachable"
    assert "firewall" in facts["checks"][-1]["remedy"]
