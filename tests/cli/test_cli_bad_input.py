"""Each bad input ends in one clear error with a remedy, an exit code by cause, and nothing half-done."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import TINY, Cli, Outcome
from localnet_process import Localnet

pytestmark = pytest.mark.processes

USAGE, CHAIN, RUN_STATE, NETWORK = 2, 3, 4, 5


def check(done: Outcome, code: int, *parts: str) -> None:
    """The exit code, "Error: what", and a line with the remedy; ``parts`` occur in them."""
    assert done.code == code, (done.code, done.out, done.err)
    lines = done.err.strip().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Error: "))
    assert len(lines) == at + 2, f"not one error with one remedy: {lines}"
    for part in parts:
        assert part in done.err, (part, done.err)


# ---- wallets ------------------------------------------------------------------------------------------


def test_missing_keypair(cli: Cli) -> None:
    done = cli("set-paused", "-r", "any", "-k", "none.json")
    check(done, USAGE, "no keypair at none.json", "run-manager wallet new none.json")


def test_keypair_that_others_can_read(cli: Cli) -> None:
    path = cli.make_wallet("open")
    path.chmod(0o644)
    check(cli("join", "-r", "any", "-k", path), USAGE, "can be read", f"chmod 600 {path}")


@pytest.mark.parametrize("text", ["[1, 2, 3]", "not json", "{}", json.dumps([0] * 63 + [256])])
def test_file_that_is_no_keypair(cli: Cli, text: str) -> None:
    path = cli.home / "bad.json"
    path.write_text(text)
    path.chmod(0o600)
    check(cli("claim-rewards", "-r", "any", "-k", path), USAGE, "bad.json")


def test_new_wallet_overwrites_nothing(cli: Cli) -> None:
    path = cli.make_wallet("mine")
    before = path.read_bytes()
    check(cli("wallet", "new", path), USAGE, "exists already")
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o600


# ---- clusters -----------------------------------------------------------------------------------------


def test_url_that_is_no_cluster(cli: Cli) -> None:
    check(cli("list-runs", "-u", "devnt"), USAGE, "'devnt' is no cluster", "devnet")


def test_damaged_solana_config(cli: Cli) -> None:
    path = cli.home / "config.yml"
    path.write_text("a: [")
    check(cli("list-runs", "-C", path), USAGE, "cannot be read", "solana config set")


@pytest.mark.slow
def test_cluster_that_does_not_answer(cli: Cli) -> None:
    check(cli("status", "-r", "any", "-u", "http://127.0.0.1:9"), CHAIN, "127.0.0.1:9", "-u")


@pytest.fixture
def empty_cluster() -> Iterator[str]:
    """A node on which no account exists: what a wrong cluster looks like from here."""

    class Node(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            value: object = None if request["method"] == "getAccountInfo" else []
            result = {"context": {"slot": 1}, "value": value}
            body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_cluster_without_our_programs(cli: Cli, empty_cluster: str) -> None:
    done = cli("status", "-r", "any", url=empty_cluster)
    check(done, CHAIN, "is not on this cluster", "-u")


# ---- runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "join", "claim-rewards", "set-paused", "can-join", "tick"])
def test_run_that_does_not_exist(chain: Cli, stranger: Path, command: str) -> None:
    done = chain(command, "-r", "nope", "-k", stranger)
    check(done, CHAIN, "no run 'nope'", "list-runs")


@pytest.fixture(scope="module")
def run(chain: Cli, owner: Path) -> str:
    """A run that is paused, that nobody but its owner's authorized wallets may join and that pays nobody."""
    made = chain("create-run", "-r", "strict", "--config", TINY, "-k", owner)
    assert made.code == 0, made.err
    paused = chain("set-paused", "-r", "strict", "-k", owner)
    assert paused.out == "run strict: Paused\n"
    return "strict"


def test_paused_run(chain: Cli, run: str, stranger: Path) -> None:
    check(chain("join", "-r", run, "-k", stranger), RUN_STATE, "is paused", "--wait")


def test_run_that_was_never_started(chain: Cli, owner: Path, stranger: Path) -> None:
    assert chain("create-run", "-r", "early", "--config", TINY, "--paused", "-k", owner).code == 0
    check(chain("join", "-r", "early", "-k", stranger), RUN_STATE, "not been started", "--resume")


def test_wallet_that_is_not_authorized(chain: Cli, stranger: Path) -> None:
    """An owner of its own: one that opens a run to everybody opens all of its runs."""
    strict = chain.make_wallet("strict", 20)
    assert chain("create-run", "-r", "members", "--config", TINY, "--paused", "-k", strict).code == 0
    check(chain("can-join", "-r", "members", "-k", stranger), RUN_STATE, "may not join", "--authorizer")


def test_run_of_somebody_else(chain: Cli, run: str, stranger: Path) -> None:
    done = chain("set-paused", "-r", run, "--resume", "-k", stranger)
    check(done, CHAIN, "WrongAuthority", "wallet that owns the run")
    assert chain("status", "-r", run, "--output", "json").json["run_state"] == "Paused"


def test_client_version_that_is_not_ours(chain: Cli, run: str, owner: Path, stranger: Path) -> None:
    chain("create-run", "-r", "newer", "--config", TINY, "--client-version", "psyche-py-99", "-k", owner)
    check(chain("join", "-r", "newer", "-k", stranger), 10, "psyche-py-99", "Install")


def test_run_id_that_is_taken_leaves_nothing_behind(
    chain: Cli, run: str, owner: Path, localnet: Localnet
) -> None:
    address = chain("wallet", "address", owner).out.strip()
    before = localnet.call("getBalance", address)["value"]
    done = chain("create-run", "-r", run, "--config", TINY, "--permissionless", "--new-mint", "-k", owner)
    check(done, RUN_STATE, "a run 'strict' already", "another run id")
    assert localnet.call("getBalance", address)["value"] == before


def test_run_id_that_is_too_long(chain: Cli, owner: Path) -> None:
    done = chain("create-run", "-r", "x" * 33, "--config", TINY, "-k", owner)
    check(done, USAGE, "32")


def test_wallet_without_money(chain: Cli) -> None:
    poor = chain.make_wallet("poor")
    done = chain("create-run", "-r", "dear", "--config", TINY, "-k", poor)
    check(done, CHAIN, "too little SOL", "wallet airdrop")


def test_run_that_pays_nobody(chain: Cli, run: str, owner: Path) -> None:
    check(chain("claim-rewards", "-r", run, "-k", owner), RUN_STATE, "no treasurer")
    check(chain("treasurer-top-up", "-r", run, "--amount", 1, "-k", owner), RUN_STATE, "no treasurer")


def test_config_of_a_running_run_stays(chain: Cli, owner: Path) -> None:
    assert chain("create-run", "-r", "busy", "--config", TINY, "-k", owner).code == 0
    done = chain("update-config", "-r", "busy", "--config", TINY, "-k", owner)
    check(done, CHAIN, "must be paused first", "set-paused")


# ---- configurations -----------------------------------------------------------------------------------

BROKEN = [
    ("min_clients = 2", "min_clents = 2", "min_clents"),
    ("epoch_time = 600", "epoch_time = 0", "epoch_time"),
    ("warmup_time = 60", "warmup_time = 600", "warmup_time"),
    ("witness_nodes = 0", "witness_nodes = 3", "witness_nodes"),
    ("verification_percent = 0", "verification_percent = 51", "verification_percent"),
    ("max_seq_len = 128", "max_seq_len = 0", "max_seq_len"),
    ("compression_topk = 64", "compression_topk = 0", "compression_topk"),
    ("cold_start_warmup_steps = 5", "cold_start_warmup_steps = 500", "cold_start_warmup_steps"),
    ("total_steps = 1_000", 'total_steps = "many"', "total_steps"),
    ("[config]", "[config", "TOML"),
]


@pytest.mark.parametrize(("line", "broken", "named"), BROKEN, ids=[broken for _, broken, _ in BROKEN])
def test_configuration_that_breaks_a_rule(cli: Cli, line: str, broken: str, named: str) -> None:
    """The rule is named before anything is sent: the cluster of this test does not even exist."""
    text = TINY.read_text()
    assert line in text
    path = cli.home / "run.toml"
    path.write_text(text.replace(line, broken, 1))
    wallet = cli.make_wallet("owner")
    done = cli("create-run", "-r", "any", "--config", path, "-k", wallet, "-u", "http://127.0.0.1:9")
    assert done.code == USAGE, done.err
    assert named in done.err, done.err


def test_configuration_that_is_not_there(cli: Cli) -> None:
    check(cli("create-run", "-r", "any", "--config", "none.toml"), USAGE, "none.toml", "--config")


@pytest.mark.parametrize(
    "flags",
    [
        ("--permissionless", "--join-authority", "11111111111111111111111111111111"),
        ("--new-mint", "--mint", "11111111111111111111111111111111"),
        ("--earning-rate", "5"),
        ("--join-authority", "not-a-key"),
    ],
)
def test_flags_that_contradict_each_other(cli: Cli, flags: tuple[str, ...]) -> None:
    check(cli("create-run", "-r", "any", "--config", TINY, *flags), USAGE)


# ---- data and ports -----------------------------------------------------------------------------------


def test_shards_that_are_not_there(chain: Cli, owner: Path) -> None:
    chain("create-run", "-r", "open", "--config", TINY, "--permissionless", "-k", owner)
    done = chain("join", "-r", "open", "-k", owner, "--data", "none")
    check(done, USAGE, "none", "run-manager data prepare")


def test_port_that_is_taken(cli: Cli, localnet: Localnet) -> None:
    done = cli("localnet", "--rpc-port", localnet.rpc_port)
    check(done, NETWORK, str(localnet.rpc_port), "--rpc-port")
