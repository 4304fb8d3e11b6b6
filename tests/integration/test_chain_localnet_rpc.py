"""RpcBackend and ProgramClient against the local validator: real HTTP, real websocket, real programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from programs_harness import make_p2p_key
from rulebook_driver import get_hint, make_run_config
from solders.keypair import Keypair

from psyche_py.chain.client import ProgramClient, RunHandle
from psyche_py.chain.clusters import Cluster
from psyche_py.chain.errors import AirdropRefused, InsufficientFunds, ProgramError
from psyche_py.chain.localnet import LocalnetConfig, LocalnetInfo, serve_localnet
from psyche_py.chain.rpc import RpcBackend

SOL = 10**9


@asynccontextmanager
async def open_localnet() -> AsyncIterator[tuple[ProgramClient, Cluster]]:
    """A funded wallet on a local validator in the same trio loop."""
    ready = trio.Event()
    found: list[LocalnetInfo] = []

    def on_ready(info: LocalnetInfo) -> None:
        found.append(info)
        ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_localnet, LocalnetConfig(rpc_port=0), on_ready)
        with trio.fail_after(120):
            await ready.wait()
            cluster = Cluster((found[0].rpc_url,), found[0].ws_url, "processed", "test")
            async with RpcBackend(cluster) as backend:
                wallet = Keypair()
                await backend.request_airdrop(wallet.pubkey(), 100 * SOL)
                yield ProgramClient(backend, wallet), cluster
        nursery.cancel_scope.cancel()


async def make_run(client: ProgramClient) -> RunHandle:
    config = make_run_config()
    mint = await client.create_mint()
    await client.mint_to(mint, client.payer.pubkey(), 1000)
    run = await client.create_run("run", client_version="test", collateral_mint=mint)
    await client.update_run(run, config=config.config, model=config.model, earning_rate_total_shared=5)
    await client.authorization_create()
    await client.set_paused(run, False)
    return run


def test_everything_a_wallet_does() -> None:
    async def main() -> None:
        async with open_localnet() as (client, _):
            run = await make_run(client)
            await client.top_up(run, 500)
            await client.join_run(run, p2p_key=make_p2p_key(client.payer), address_hint=get_hint(9000))
            run = await client.fetch_run("run")
            assert [entry.signer for entry in run.account.entries] == [bytes(client.payer.pubkey())]
            assert [item.run_id for item in (await client.list_runs()).runs] == ["run"]
            assert (await client.fetch_claimable(run)).vault_amount == 500
            assert len(await client.list_authorizations(client.payer.pubkey())) == 1
            with pytest.raises(ProgramError) as caught:
                await client.claim(run, 5)
            assert (caught.value.name, caught.value.program) == ("InsufficientPoints", "treasurer")
            with pytest.raises(InsufficientFunds):
                await ProgramClient(client.backend, Keypair()).tick(run)
            with pytest.raises(AirdropRefused):
                await client.backend.request_airdrop(client.payer.pubkey(), 2**63)
            assert (await client.backend.get_chain_time()).unix_timestamp > 1_700_000_000

    trio.run(main)


def test_equal_ticks_are_separate_transactions_and_quick() -> None:
    async def main() -> None:
        async with open_localnet() as (client, _):
            run = await make_run(client)
            await client.tick(run)
            began = trio.current_time()
            signatures = {(await client.tick(run)).signature for _ in range(20)}
            seconds = trio.current_time() - began
            assert len(signatures) == 20
            # a few ms each on an idle machine; polling in steps of 0.4 s would take 8 s
            assert seconds < 4

    trio.run(main)


def test_a_subscription_tells_at_once() -> None:
    async def main() -> None:
        async with open_localnet() as (client, cluster):
            run = await make_run(client)
            async with (
                RpcBackend(cluster) as other,
                other.subscribe_account(run.coordinator_account) as updates,
            ):
                assert (await updates.receive()).data
                await trio.sleep(0.3)  # the websocket comes up beside the first reading
                for rate in range(10, 15):
                    await client.update_run(run, earning_rate_total_shared=rate)
                    with trio.fail_after(30):
                        info = await updates.receive()
                    stored = await client.backend.get_account(run.coordinator_account)
                    assert stored is not None
                    assert info.data == stored.data

    trio.run(main)
