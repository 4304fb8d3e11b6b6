"""A whole run in one process: the real programs in LiteSVM, the in-memory mesh, real training.

The chain's clock follows the run: a second passes with every step, or after ``second`` of real time in which
no client computes. So a round's time never runs out because the machine is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from solders.keypair import Keypair

from psyche_py.chain.client import ProgramClient
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.options import ClientOptions
from psyche_py.client.runtime import ClientRuntime
from psyche_py.coordinator.config import load_run_config
from psyche_py.errors import RunStateError
from psyche_py.observe.events import Event, EventSink
from psyche_py.observe.tally import ClientTally
from psyche_py.p2p.identity import derive_p2p_seed
from psyche_py.p2p.memory import MemoryHub
from psyche_py.sim.settings import CONSTANT_LR, make_config_text

RUN_ID = "sim"
SOL = 10**9
POLL_SECONDS = 0.02


@dataclass
class SimClient:
    """One client: wallet, what it reported, how it ended."""

    wallet: Keypair
    tally: ClientTally
    events: list[Event] = field(default_factory=list)
    stop: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    error: RunStateError | None = None


class WholeRun:
    """Owner, chain, mesh; clients are added while it runs."""

    def __init__(self, config: str, nursery: trio.Nursery, second: float = 0.1) -> None:
        self.backend = LiteSvmBackend.create()
        self.hub = MemoryHub()
        self.config = load_run_config(config)
        self.owner = ProgramClient(self.backend, Keypair())
        self.clients: list[SimClient] = []
        self._nursery = nursery
        self._second = second

    async def start(self, earning_rate: int = 1000, slashing_rate: int = 0) -> None:
        """Create, fund and start the run; begin to move the clock."""
        owner = self.owner
        await self.backend.request_airdrop(owner.payer.pubkey(), 100 * SOL)
        await owner.authorization_create()
        mint = await owner.create_mint()
        run = await owner.create_run(RUN_ID, collateral_mint=mint, client_version="test")
        await owner.mint_to(mint, owner.payer.pubkey(), 10**6)
        await owner.top_up(run, 10**6)
        await owner.update_run(
            run,
            config=self.config.config,
            model=self.config.model,
            earning_rate_total_shared=earning_rate,
            slashing_rate_per_client=slashing_rate,
        )
        await owner.set_paused(run, False)
        self._nursery.start_soon(self._keep_time)

    async def _keep_time(self) -> None:
        """A second for every step, so that epochs are numbers of rounds; and while all wait, for timers."""
        last, waited = 0, 0.0
        workers = trio.to_thread.current_default_thread_limiter()
        while True:
            await trio.sleep(POLL_SECONDS)
            waited += POLL_SECONDS if workers.borrowed_tokens == 0 else 0
            step = (await self.owner.fetch_run(RUN_ID)).account.step
            if step != last or waited >= self._second:
                last, waited = step, 0.0
                self.backend.advance(1)

    def now(self) -> float:
        """The chain's clock, which the clients take for their own."""
        return float(self.backend.engine.unix_timestamp)

    async def add_client(
        self, make_jobs: Callable[[ClientOptions], TrainerJobs] = TrainerJobs, **options: object
    ) -> SimClient:
        """A new wallet joins; ``make_jobs`` for one that does not play by the rules."""
        wallet = Keypair()
        await self.backend.request_airdrop(wallet.pubkey(), SOL)
        client = SimClient(wallet, ClientTally(str(len(self.clients))))
        self.clients.append(client)
        self._nursery.start_soon(self._run_client, client, make_jobs, options)
        return client

    async def _run_client(
        self,
        client: SimClient,
        make_jobs: Callable[[ClientOptions], TrainerJobs],
        options: dict[str, object],
    ) -> None:
        def listen(event: Event) -> None:
            client.events.append(event)
            client.tally.add(event)

        sink = EventSink(None, self.now, listen)
        chain = ProgramClient(self.backend, client.wallet)
        run = await chain.fetch_run(RUN_ID)
        with client.scope:
            seed = derive_p2p_seed(bytes(client.wallet)[:32], RUN_ID)
            async with self.hub.open_network(seed) as network:
                p2p_key = Keypair.from_seed(seed)
                chosen = ClientOptions(RUN_ID, **options)
                runtime = ClientRuntime(
                    chosen, chain, run, network, p2p_key, sink, clock=self.now, make_jobs=make_jobs
                )
                try:
                    await runtime.run(client.stop)
                except RunStateError as error:
                    client.error = error
        client.ended.set()

    async def wait_until_ended(self, clients: Iterable[SimClient], seconds: float = 500.0) -> None:
        """Wait for the end of each of them, ``seconds`` at most for one."""
        for client in clients:
            with trio.fail_after(seconds):
                await client.ended.wait()

    async def wait_for(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        """Wait until something is so."""
        with trio.fail_after(seconds):
            while not condition():
                await trio.sleep(0.02)


def make_config(
    shards: Path, model: Path, *, lr_schedule: str = CONSTANT_LR, optimizer: str = "", **values: int
) -> str:
    """A small run configuration."""
    settings = {
        "warmup_time": 30,
        "cooldown_time": 2,
        "max_round_train_time": 8,
        "round_witness_time": 2,
        "epoch_time": 60,
        "total_steps": 30,
        "init_min_clients": 3,
        "min_clients": 2,
        "global_batch_size_start": 6,
        "global_batch_size_end": 6,
        "waiting_for_members_extra_time": 1,
        **values,
    }
    return make_config_text(settings, str(model), str(shards), lr_schedule=lr_schedule, optimizer=optimizer)
