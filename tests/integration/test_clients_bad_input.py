"""``run-manager join`` in a process of its own, given something unusable.

One error with a remedy, an exit code by cause, and nothing half-done on the chain or on disk. Runs that are
missing, paused, not started or of another version, and missing shards, are in tests/cli.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from cli_process import Cli, Outcome
from localnet_process import running_localnet
from solders.keypair import Keypair
from whole_run import make_config

from psyche_py.chain.client import ProgramClient
from psyche_py.chain.clusters import resolve_cluster
from psyche_py.chain.keypair import new_keypair
from psyche_py.chain.rpc import RpcBackend
from psyche_py.cli.demo.processes import find_free_ports
from psyche_py.coordinator.config import load_run_config
from psyche_py.coordinator.layout import RunState
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.observe.events import read_events

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

USAGE, CHAIN, RUN_STATE, NETWORK, STORAGE = 2, 3, 4, 5, 7
OPEN, STRICT, SHORT = "open", "strict", "short"
SOL = 10**9
FILE_BLOCKS = 200
"""What a client on a "full disk" may write into one file (KiB): enough for events, not for the weights."""


@dataclass(frozen=True)
class World:
    """A chain, an owner with three runs, and a client's wallet."""

    cli: Cli
    owner: Keypair
    wallet: Path

    def join(self, run_id: str, *options: object, url: str | None = None) -> Outcome:
        return self.cli("join", "-r", run_id, "-k", self.wallet, *options, url=url)

    def call(self, work: Callable[[ProgramClient], Awaitable[object]]) -> None:
        async def main() -> None:
            async with RpcBackend(resolve_cluster(self.cli.url, None, {}, {})) as backend:
                await work(ProgramClient(backend, self.owner))

        trio.run(main)

    def get_account(self, run_id: str) -> CoordinatorAccount:
        found: list[CoordinatorAccount] = []

        async def work(client: ProgramClient) -> None:
            found.append((await client.fetch_run(run_id)).account)

        self.call(work)
        return found[0]


async def create_run(owner: ProgramClient, run_id: str, config: str, authority: Keypair | None) -> None:
    """A started run that everybody may join, or nobody but whom ``authority`` names."""
    parsed = load_run_config(config)
    run = await owner.create_run(run_id, join_authority=authority.pubkey() if authority else None)
    await owner.update_run(run, config=parsed.config, model=parsed.model)
    await owner.set_paused(run, False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, shards: Path, nano: Path) -> Iterator[World]:
    home = tmp_path_factory.mktemp("home")
    with running_localnet() as localnet:
        world = World(Cli(home, localnet.rpc_url), Keypair(), home / "wallet.json")
        wallet = new_keypair(world.wallet)
        two = make_config(shards, nano, init_min_clients=2)
        # for a client alone, and over after one epoch of a few rounds
        one = make_config(shards, nano, init_min_clients=1, min_clients=1, total_steps=6)

        async def prepare(owner: ProgramClient) -> None:
            await owner.backend.request_airdrop(world.owner.pubkey(), 50 * SOL)
            await owner.backend.request_airdrop(wallet.pubkey(), SOL)
            await owner.authorization_create()
            await create_run(owner, OPEN, two, None)
            await create_run(owner, STRICT, two, Keypair())
            await create_run(owner, SHORT, one, None)

        world.call(prepare)
        yield world


def test_chain_that_is_down(world: World) -> None:
    port, _ = find_free_ports()
    done = world.join(OPEN, url=f"http://127.0.0.1:{port}")
    done.check_error(CHAIN, f"127.0.0.1:{port}", "-u")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def test_mesh_port_that_is_taken(world: World, taken_port: int) -> None:
    done = world.join(OPEN, "--listen-port", taken_port)
    done.check_error(NETWORK, str(taken_port), "--listen-port")
    assert not world.get_account(OPEN).entries, "it must not join before it can be reached"


def test_places_that_cannot_be_written(world: World) -> None:
    """Both are told before the client joins, and not when the first epoch has ended."""
    file = world.cli.home / "file"
    file.write_text("")
    world.join(OPEN, "--checkpoint-dir", file / "sub").check_error(STORAGE, "file", "--checkpoint-dir")
    world.join(OPEN, "--events", file / "sub").check_error(STORAGE, "file", "events")
    assert not world.get_account(OPEN).entries


def test_wallet_without_money(world: World) -> None:
    poor = world.cli.home / "poor.json"
    new_keypair(poor)
    world.cli("join", "-r", OPEN, "-k", poor).check_error(CHAIN, "too little SOL", "airdrop")
    assert not world.get_account(OPEN).entries


def test_wallet_that_is_not_authorized(world: World) -> None:
    world.join(STRICT).check_error(RUN_STATE, "may not join", "join authority", "--authorizer")
    assert not world.get_account(STRICT).entries


def join_with_full_disk(world: World, *options: object) -> Outcome:
    """Under a limit on file sizes, which the system reports like a full disk."""
    join = world.cli.get_command("join", "-r", SHORT, "-k", world.wallet, *options)
    done = subprocess.run(
        ["bash", "-c", f'ulimit -f {FILE_BLOCKS} && exec "$@"', "bash", *join],
        cwd=world.cli.home,
        env=world.cli.get_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_full_disk_and_then_a_finished_run(world: World) -> None:
    """The checkpoint does not fit: exit code 7 and no trace of it on disk. The run can end without it."""
    checkpoints, events = world.cli.home / "checkpoints", world.cli.home / "events.jsonl"
    done = join_with_full_disk(world, "--checkpoint-dir", checkpoints, "--events", events)
    done.check_error(STORAGE, "The disk is full", str(checkpoints), "--checkpoint-dir")
    assert list(checkpoints.iterdir()) == []
    told = read_events(events)
    assert (told[-1]["kind"], told[-1]["exit_code"]) == ("error", STORAGE)
    assert "digest" in [event["kind"] for event in told], "it failed at the epoch's end and not before"

    async def tick_until_finished(owner: ProgramClient) -> None:
        with trio.fail_after(30):
            while (run := await owner.fetch_run(SHORT)).account.run_state is not RunState.Finished:
                await owner.tick(run)
                await trio.sleep(0.2)

    world.call(tick_until_finished)
    world.join(SHORT).check_error(RUN_STATE, "is finished", "list-runs")
