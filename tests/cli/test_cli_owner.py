"""What an owner and a reader do with a run, against a localnet of its own process."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from cli_process import TINY, Cli
from localnet_process import Localnet

pytestmark = pytest.mark.slow


def _status(chain: Cli, run_id: str) -> dict[str, object]:
    facts = chain("status", "-r", run_id, "--output", "json").json
    assert isinstance(facts, dict)
    return facts


def test_run_is_created_paused_changed_resumed_and_closed(chain: Cli, owner: Path) -> None:
    signed = ("-k", owner)
    made = chain("create-run", "-r", "free", "--config", TINY, "--name", "Free", "--permissionless", *signed)
    assert made.code == 0, made.err
    facts = _status(chain, "free")
    assert (facts["name"], facts["run_state"], facts["step"]) == ("Free", "WaitingForMembers", 1)
    assert facts["collateral_mint"] is None
    assert "free" in chain("list-runs").out
    assert chain("tick", "-r", "free", *signed).out.startswith("WaitingForMembers")

    assert chain("set-paused", "-r", "free", *signed).code == 0
    changed = chain.home / "changed.toml"
    changed.write_text(TINY.read_text().replace("total_steps = 1_000", "total_steps = 777", 1))
    done = chain("update-config", "-r", "free", "--config", changed, "--restart-from-step", 7, *signed)
    assert done.code == 0, done.err
    facts = _status(chain, "free")
    assert (facts["total_steps"], facts["step"], facts["run_state"]) == (777, 7, "Paused")

    assert chain("set-paused", "-r", "free", "--resume", *signed).out == "run free: WaitingForMembers\n"
    assert chain("json-dump-run", "-r", "free").json["config"]["total_steps"] == 777
    assert chain("set-paused", "-r", "free", *signed).code == 0
    assert chain("close-run", "-r", "free", *signed).code == 0
    assert "free" not in [run["run_id"] for run in chain("list-runs", "--output", "json").json]


def test_run_that_pays_is_funded(chain: Cli, owner: Path, stranger: Path) -> None:
    signed = ("-k", owner)
    rate = ("--new-mint", "--earning-rate", 1000)
    assert chain("create-run", "-r", "paid", "--config", TINY, *rate, *signed).code == 0
    assert _status(chain, "paid")["earning_rate_total_shared"] == 1000

    empty = chain("treasurer-top-up", "-r", "paid", "--amount", 50, *signed)
    assert (empty.code, "holds 0 base units" in empty.err) == (4, True)
    assert chain("treasurer-top-up", "-r", "paid", "--amount", 50, "--mint-first", *signed).code == 0
    rated = chain("set-future-epoch-rates", "-r", "paid", "--earning-rate-total-shared", 7, *signed)
    assert rated.code == 0, rated.err
    assert _status(chain, "paid")["earning_rate_total_shared"] == 7

    nothing = chain("claim-rewards", "-r", "paid", "-k", stranger)
    assert (nothing.code, "nothing to claim" in nothing.err) == (4, True)
    assert chain("set-paused", "-r", "paid", *signed).code == 0
    kept = chain("close-run", "-r", "paid", *signed)
    kept.check_error(3, "RunNotFinished", "theirs")


def test_status_watch_shows_each_change_until_it_is_interrupted(chain: Cli, owner: Path) -> None:
    assert chain("create-run", "-r", "watched", "--config", TINY, "-k", owner).code == 0
    watch = subprocess.Popen(
        chain.get_command("status", "-r", "watched", "--watch"),
        env={**chain.get_environment(), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    assert "WaitingForMembers" in watch.stdout.readline()
    assert chain("set-paused", "-r", "watched", "-k", owner).code == 0
    while "Paused" not in (line := watch.stdout.readline()):
        assert line, "it ended before the change came"
    watch.send_signal(signal.SIGINT)
    _, errors = watch.communicate(timeout=120)
    assert (watch.returncode, errors.strip()) == (130, "Stopped.")


def test_localnet_starts_keeps_its_ledger_and_stops(cli: Cli) -> None:
    """By the console script, on ports of its own choice; the balance is there after a restart."""
    wallet = cli.make_wallet("mine")
    for sol in ("3", None):
        server = subprocess.Popen(
            cli.get_command("localnet", "--rpc-port", "0", "--ledger", "ledger"),
            cwd=cli.home,
            env={**cli.get_environment(), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[1]
            node = Localnet(server, url, "", "", False)
            if sol is not None:
                assert cli("wallet", "airdrop", sol, "-k", wallet, url=url).code == 0
            address = cli("wallet", "address", wallet).out.strip()
            assert node.call("getBalance", address)["value"] == 3_000_000_000
        finally:
            server.send_signal(signal.SIGINT)
            _, errors = server.communicate(timeout=120)
        assert server.returncode in (0, 130), errors
