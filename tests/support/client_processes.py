"""Real processes over loopback: a local validator, a funded run, clients started by the console script."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from solders.keypair import Keypair
from whole_run import make_config

from psyche_py.chain.client import ProgramClient
from psyche_py.chain.clusters import resolve_cluster
from psyche_py.chain.keypair import new_keypair
from psyche_py.chain.rpc import RpcBackend
from psyche_py.cli.demo.chain import wait_for_chain
from psyche_py.cli.demo.processes import Child, Children, find_free_ports
from psyche_py.coordinator.config import load_run_config
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.observe.events import Event, EventReader
from psyche_py.observe.tally import ClientTally

RUN_ID = "processes"
SOL = 10**9
COMMAND = [sys.executable, "-m", "psyche_py.cli.main"]


@dataclass(frozen=True)
class Home:
    """Where a client's process runs: a command that its own comes behind, and options that it needs there."""

    command: Sequence[str] = ()
    options: Sequence[str] = ()


FindHome = Callable[[int], Home]
"""By the client's number."""


class ProcessClient:
    """A client process and what its event file says. ``command`` stands for ``run-manager``."""

    def __init__(
        self, number: int, directory: Path, command: Sequence[str] = COMMAND, home: Home = Home()
    ) -> None:
        self.command = command
        self.home = home
        self.wallet_path = directory / f"wallet-{number}.json"
        self.wallet = new_keypair(self.wallet_path)
        self.events_path = directory / f"events-{number}.jsonl"
        self.log = directory / f"client-{number}.log"
        self.checkpoints = directory / f"checkpoints-{number}"
        self.tally = ClientTally(str(number))
        self.events: list[Event] = []
        self.child: Child | None = None
        self._reader = EventReader(self.events_path)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self.child is not None
        return self.child.process

    def get_first_source(self, num_events: int = 0) -> str:
        """Where its model came from when it first had one, after so many events.

        A client that was too late for its first epoch has the model in memory for the next.
        """
        loaded = [event for event in self.events[num_events:] if event["kind"] == "model_loaded"]
        return str(loaded[0]["source"])

    def update(self) -> None:
        """Read what it has reported since the last look."""
        for event in self._reader.read_new():
            self.events.append(event)
            self.tally.add(event)


StartChain = Callable[["ProcessRun"], Child]


class ProcessRun:
    """A chain, a run and its clients; all processes end with it."""

    def __init__(
        self,
        directory: Path,
        config: str,
        children: Children,
        start_chain: StartChain | None = None,
        host: str = "127.0.0.1",
        slashing_rate: int = 0,
        find_home: FindHome = lambda number: Home(),
    ) -> None:
        self._slashing_rate = slashing_rate
        self._find_home = find_home
        self.directory = directory
        self.clients: list[ProcessClient] = []
        self._config = load_run_config(config)
        self.children = children
        self.rpc_port, self._ws_port = find_free_ports()
        self._host = host
        self.url = f"http://{host}:{self.rpc_port}"
        self.localnet = start_chain(self) if start_chain is not None else self.start_localnet()
        self.owner = Keypair()
        self.call(self._create)

    def start_localnet(self) -> Child:
        """Start the local validator on the ledger, the first time or again."""
        ports = ["--host", self._host, "--rpc-port", str(self.rpc_port), "--ws-port", str(self._ws_port)]
        command = [*COMMAND, "localnet", *ports, "--ledger", str(self.directory / "ledger")]
        self.localnet = self.children.start("localnet", command, self.directory / "localnet.log")
        trio.run(wait_for_chain, self.url, self.localnet)
        return self.localnet

    def call(self, work: Callable, wallet: Keypair | None = None) -> object:  # type: ignore[type-arg]
        """Run ``work`` with a client of the programs."""

        async def main() -> object:
            async with RpcBackend(resolve_cluster(self.url, None, {}, {})) as backend:
                return await work(ProgramClient(backend, wallet or self.owner))

        return trio.run(main)

    async def _create(self, owner: ProgramClient) -> None:
        await owner.backend.request_airdrop(self.owner.pubkey(), 100 * SOL)
        await owner.authorization_create()
        mint = await owner.create_mint()
        run = await owner.create_run(RUN_ID, collateral_mint=mint, client_version="test")
        await owner.mint_to(mint, self.owner.pubkey(), 10**6)
        await owner.top_up(run, 10**6)
        await owner.update_run(
            run,
            config=self._config.config,
            model=self._config.model,
            earning_rate_total_shared=1000,
            slashing_rate_per_client=self._slashing_rate,
        )
        await owner.set_paused(run, False)

    def get_account(self) -> CoordinatorAccount:
        """The run's account now."""

        async def work(client: ProgramClient) -> CoordinatorAccount:
            return (await client.fetch_run(RUN_ID)).account

        account = self.call(work)
        assert isinstance(account, CoordinatorAccount)
        return account

    def add_client(self, *options: str, command: Sequence[str] = COMMAND) -> ProcessClient:
        """A new wallet with money, and its client, started by ``command`` in the place of run-manager."""
        number = len(self.clients)
        client = ProcessClient(number, self.directory, command, self._find_home(number))
        self.clients.append(client)

        async def work(owner: ProgramClient) -> None:
            await owner.backend.request_airdrop(client.wallet.pubkey(), SOL)

        self.call(work)
        self.start_client(client, *options, command=command)
        return client

    def start_client(self, client: ProcessClient, *options: str, command: Sequence[str] = COMMAND) -> None:
        """Start a client's process, the first time or again."""
        arguments = [
            *("join", "-r", RUN_ID, "-u", self.url, "-k", str(client.wallet_path)),
            *("--events", str(client.events_path), "--checkpoint-dir", str(client.checkpoints)),
            *client.home.options,
            *options,
        ]
        command = [*client.home.command, *client.command, *arguments]
        client.child = self.children.start("client", command, client.log)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 900.0) -> None:
        """Until something is so, judged by the events. Raises AssertionError with the clients' last lines."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for client in self.clients:
                client.update()
            if condition():
                return
            time.sleep(0.1)
        logs = "\n".join(f"{c.log.name}:\n{c.log.read_text()[-1500:]}" for c in self.clients)
        raise AssertionError(f"waited {seconds} s in vain\n{logs}")

    def wait_for_end(self, clients: list[ProcessClient], seconds: float = 900.0) -> None:
        """Until these clients have ended by themselves, in peace."""
        self.wait_for(lambda: all(c.process.poll() is not None for c in clients), seconds)
        for client in clients:
            client.update()
            assert client.process.returncode == 0, client.log.read_text()[-2000:]

    @staticmethod
    def kill(child: Child) -> None:
        """SIGKILL."""
        child.process.send_signal(signal.SIGKILL)
        child.process.wait()


@contextmanager
def start_run(
    directory: Path,
    shards: Path,
    model: Path,
    *,
    start_chain: StartChain | None = None,
    host: str = "127.0.0.1",
    slashing_rate: int = 0,
    find_home: FindHome = lambda number: Home(),
    **config: object,
) -> Iterator[ProcessRun]:
    """A run with quick times; ``config`` replaces keys of [config], ``start_chain`` our local validator.

    ``host``: where the validator listens. ``lr_schedule`` in ``config``: see ``whole_run.make_config``.
    """
    settings = {
        "warmup_time": 60,
        "epoch_time": 100,
        "max_round_train_time": 8,
        "round_witness_time": 2,
        "cooldown_time": 2,
        **config,
    }
    with Children() as children:
        run_config = make_config(shards, model, **settings)
        yield ProcessRun(directory, run_config, children, start_chain, host, slashing_rate, find_home)
