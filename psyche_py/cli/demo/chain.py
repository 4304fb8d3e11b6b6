"""The demo's chain work: the run and its money before, points and claims after."""

from __future__ import annotations

import httpx
import trio
from solders.keypair import Keypair

from psyche_py.chain.client import ProgramClient
from psyche_py.chain.port import ChainBackend
from psyche_py.cli.demo.plan import EARNING_RATE, RUN_ID, DemoPlan
from psyche_py.cli.demo.processes import Child
from psyche_py.coordinator.config import RunConfig
from psyche_py.coordinator.model import Metadata

SOL = 1_000_000_000
MAX_EPOCHS_PAID = 1000
START_SECONDS = 60.0


async def wait_for_chain(url: str, child: Child) -> None:
    """Until the local validator answers. Raises ChildFailed when it ends first, TooSlowError in the end."""
    with trio.fail_after(START_SECONDS):
        async with httpx.AsyncClient() as client:
            while True:
                child.check_alive()
                try:
                    body = {"jsonrpc": "2.0", "id": 1, "method": "getHealth"}
                    answer = await client.post(url, json=body, timeout=2)
                    if answer.json().get("result") == "ok":
                        return
                except httpx.TransportError:
                    await trio.sleep(0.1)


async def create_demo_run(
    backend: ChainBackend, owner: Keypair, wallets: list[Keypair], config: RunConfig, plan: DemoPlan
) -> None:
    """Test money for all, a token, a funded run that anybody may join, started."""
    client = ProgramClient(backend, owner)
    await backend.request_airdrop(owner.pubkey(), 100 * SOL)
    for wallet in wallets:
        await backend.request_airdrop(wallet.pubkey(), SOL)
    await client.authorization_create()
    mint = await client.create_mint()
    run = await client.create_run(RUN_ID, collateral_mint=mint, client_version="test")
    amount = EARNING_RATE * MAX_EPOCHS_PAID
    await client.mint_to(mint, owner.pubkey(), amount)
    await client.top_up(run, amount)
    await client.update_run(
        run,
        config=config.config,
        model=config.model,
        metadata=Metadata(name="demo", description=f"{plan.num_clients} clients on one machine"),
        earning_rate_total_shared=EARNING_RATE,
    )
    await client.set_paused(run, False)


async def pause_run(backend: ChainBackend, owner: Keypair) -> None:
    """Ask the run to stop when its epoch has ended."""
    client = ProgramClient(backend, owner)
    await client.set_paused(await client.fetch_run(RUN_ID), True)


async def claim_all(backend: ChainBackend, wallets: list[Keypair]) -> tuple[int, int]:
    """Claim for every wallet that earned; returns points earned and tokens that arrived, summed."""
    earned = arrived = 0
    for wallet in wallets:
        client = ProgramClient(backend, wallet)
        run = await client.fetch_run(RUN_ID)
        claimable = await client.fetch_claimable(run)
        earned += claimable.earned
        if claimable.num_points == 0:
            continue
        await client.claim(run)
        account = (await client.fetch_collateral_mint(run)).find_token_account(wallet.pubkey())
        arrived += await client.fetch_token_amount(account)
    return earned, arrived
