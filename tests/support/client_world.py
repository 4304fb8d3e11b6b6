"""A run in LiteSVM whose owner and clients are ProgramClients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from programs_harness import make_p2p_key
from rulebook_driver import get_hint, make_run_config
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.client import ProgramClient, RunHandle
from psyche_py.chain.errors import ProgramError
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.coordinator.bloom import Bloom
from psyche_py.coordinator.layout import RunState
from psyche_py.coordinator.model import Metadata

SOL = 10**9
START = 1_700_000_000
ROUNDS = (RunState.RoundTrain, RunState.RoundWitness)


@contextmanager
def tolerate(name: str) -> Iterator[None]:
    """A refusal that may come, but no other."""
    try:
        yield
    except ProgramError as error:
        if error.name != name:
            raise


class World:
    """A chain, the owner of a run, and clients with money."""

    def __init__(self, num_clients: int = 2) -> None:
        self.backend = LiteSvmBackend.create(unix_timestamp=START)
        self.owner = self.make_client(0)
        self.clients = [self.make_client(1 + number) for number in range(num_clients)]

    def make_client(self, number: int, lamports: int = 100 * SOL) -> ProgramClient:
        keypair = Keypair.from_seed(bytes([100 + number] * 32))
        if lamports:
            self.backend.engine.airdrop(keypair.pubkey(), lamports)
        return ProgramClient(self.backend, keypair)

    async def make_run(self, run_id: str = "run", *, mint: Pubkey | None = None, **changes: Any) -> RunHandle:
        """Configured, resumed, open to everybody."""
        run = await self.owner.create_run(run_id, client_version="test", collateral_mint=mint)
        config = make_run_config(**changes)
        await self.owner.update_run(
            run,
            metadata=Metadata("name", "what it is for", 1000, 512),
            config=config.config,
            model=config.model,
            earning_rate_total_shared=1001,
        )
        await self.owner.set_paused(run, False)
        await self.owner.authorization_create()
        return await self.owner.fetch_run(run_id)

    async def join(self, run: RunHandle) -> None:
        for number, client in enumerate(self.clients):
            await client.join_run(
                run, p2p_key=make_p2p_key(client.payer), address_hint=get_hint(9000 + number)
            )

    async def run_epoch(self, run: RunHandle) -> RunHandle:
        """All clients behave until the epoch is over."""
        await self.join(run)
        epoch = (await self.owner.fetch_run(run.run_id)).account.epoch
        for _ in range(2000):
            run = await self.owner.fetch_run(run.run_id)
            if run.account.epoch != epoch:
                return run
            if run.account.run_state is RunState.Warmup:
                await self.warm_up(run)
            elif run.account.run_state in ROUNDS:
                await self.attest(run)
            self.backend.advance(1)
            if not (await self.owner.fetch_run(run.run_id)).account.is_halted:
                await self.owner.tick(run)
        raise AssertionError(f"the epoch does not end: {run.account.run_state.name}")

    async def warm_up(self, run: RunHandle) -> None:
        for client in self.clients:
            index = run.account.find_epoch_client(bytes(client.payer.pubkey()))
            if index is not None:
                await client.warmup_witness(run, index=index)

    async def attest(self, run: RunHandle) -> None:
        height = run.account.current_round.height
        for client in self.clients:
            account = (await self.owner.fetch_run(run.run_id)).account
            current, previous = account.current_round, account.previous_round
            index = account.find_epoch_client(bytes(client.payer.pubkey()))
            if account.run_state not in ROUNDS or current.height != height or index is None:
                return
            if index not in current.elected_indices:
                continue
            seen = previous.healthy if previous is not None and not previous.apply_only else 0
            with tolerate("DuplicateWitness"):
                await client.witness(
                    run,
                    index=index,
                    participants=[seen >> 64 * word & (2**64 - 1) for word in range(4)],
                    broadcast_bloom=list(Bloom(current.random_seed).words),
                    broadcast_merkle=bytes(32),
                    state_digest=bytes(32),
                    step=account.step,
                    tokens_per_second=float("inf"),
                    bandwidth_per_second=float("nan"),
                    loss=1e300,
                    efficiency=0.5,
                )


def play(script: Callable[[World], Awaitable[None]], num_clients: int = 2) -> None:
    trio.run(script, World(num_clients))


async def expect(name: str, call: Awaitable[Any]) -> ProgramError:
    with pytest.raises(ProgramError) as caught:
        await call
    assert caught.value.name == name
    return caught.value
