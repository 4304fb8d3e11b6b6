"""A run from creation to the payment of its clients: ProgramClient on the real programs in LiteSVM."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import trio
from client_world import START, World, expect, play
from programs_harness import make_p2p_key
from rulebook_driver import get_hint
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.client import ProgramClient, RunHandle
from psyche_py.chain.errors import AccountNotFound, InsufficientFunds, ProgramError, WrongCluster
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.coordinator.layout import CheckpointKind, RunState
from psyche_py.errors import ChainError, RunStateError, UsageError


def test_a_paid_epoch() -> None:
    async def script(world: World) -> None:
        owner = world.owner
        mint = await owner.create_mint()
        await owner.mint_to(mint, owner.payer.pubkey(), 5000)
        run = await world.make_run(mint=mint)
        assert run.treasurer is not None
        assert run.owner == owner.payer.pubkey()
        await owner.top_up(run, 2000)
        run = await world.run_epoch(run)
        claimables = [await client.fetch_claimable(run) for client in world.clients]
        assert sum(claimable.earned for claimable in claimables) == 1001
        assert [claimable.vault_amount for claimable in claimables] == [2000, 2000]
        first, second = world.clients
        await first.claim(run, 100)
        await first.claim(run)
        assert (await first.fetch_claimable(run)).num_points == 0
        assert await first.fetch_token_amount(await _token_account(first, run)) == claimables[0].earned
        assert (await owner.fetch_claimable(run, first.payer.pubkey())).claimed == claimables[0].earned
        with pytest.raises(RunStateError, match="nothing to claim"):
            await first.claim(run)
        error = await expect("InsufficientPoints", second.claim(run, claimables[1].earned + 1))
        assert error.program == "treasurer"
        participant = await first.fetch_participant(run)
        assert participant is not None
        assert participant.claimed_earned_points == claimables[0].earned
        assert (await owner.fetch_run("run")).treasurer.total_claimed_earned_points == claimables[0].earned  # type: ignore[union-attr]

    play(script)


async def _token_account(client: ProgramClient, run: RunHandle) -> Pubkey:
    from psyche_py.chain.pda import find_token_account

    assert run.treasurer is not None
    return find_token_account(client.payer.pubkey(), run.treasurer.collateral_mint)


def test_an_empty_vault() -> None:
    async def script(world: World) -> None:
        mint = await world.owner.create_mint()
        run = await world.run_epoch(await world.make_run(mint=mint))
        error = await expect("InsufficientVault", world.clients[0].claim(run))
        assert "top" in error.remedy
        await expect_usage(world.owner.top_up(run, 0))
        with pytest.raises(InsufficientFunds, match="holds 0"):
            await world.owner.top_up(run, 10)

    play(script)


async def expect_usage(call: Awaitable[Any]) -> None:
    with pytest.raises(UsageError):
        await call


def test_a_subscription_sees_the_run_advance() -> None:
    async def script(world: World) -> None:
        run = await world.make_run()
        with trio.fail_after(60):
            async with world.backend.subscribe_account(run.coordinator_account) as updates:
                first = await updates.receive()
                await world.join(run)
                newest = await updates.receive()
                assert newest.slot > first.slot
                stored = await world.backend.get_account(run.coordinator_account)
                assert stored is not None
                assert newest.data == stored.data
                await world.owner.set_paused(run, True)
                await updates.receive()
                await world.owner.free_coordinator(run)
                assert [item async for item in updates] == []
        with pytest.raises(AccountNotFound, match="no run 'run'"):
            await world.owner.fetch_run("run")

    play(script)


def test_who_may_join() -> None:
    async def script(world: World) -> None:
        owner, (first, second) = world.owner, world.clients
        run = await world.make_run()
        keys = {"p2p_key": make_p2p_key(first.payer), "address_hint": get_hint(9000)}
        assert await first.check_authorization(run)
        await owner.authorization_set_active(None, False)
        with pytest.raises(RunStateError, match="switched off"):
            await first.join_run(run, **keys)
        await owner.authorization_create(first.payer.pubkey())
        await first.join_run(run, **keys)
        with pytest.raises(RunStateError, match="missing"):
            await second.check_authorization(run, first.payer.pubkey())
        await first.authorization_delegate(owner.payer.pubkey(), [second.payer.pubkey()])
        await second.join_run(
            run,
            p2p_key=make_p2p_key(second.payer),
            address_hint=get_hint(9001),
            authorizer=first.payer.pubkey(),
        )
        account = (await owner.fetch_run("run")).account
        assert [entry.signer for entry in account.entries] == [
            bytes(client.payer.pubkey()) for client in (first, second)
        ]
        found = {
            (a.grantee == first.payer.pubkey(), a.active)
            for a in await owner.list_authorizations(owner.payer.pubkey())
        }
        assert found == {(True, True), (False, False)}
        await owner.authorization_close(None)
        assert len(await owner.list_authorizations(owner.payer.pubkey())) == 1
        await expect("WrongAuthority", first.set_paused(run, True))

    play(script)


def test_revoking_takes_those_who_joined_with_it_out() -> None:
    async def script(world: World) -> None:
        owner = world.owner
        first, second = await world.make_run("first"), await world.make_run("second")
        apart = world.clients[-1]
        await owner.authorization_create(apart.payer.pubkey())
        for number, client in enumerate(world.clients):
            key, hint = make_p2p_key(client.payer), get_hint(9000 + number)
            await client.join_run(first, p2p_key=key, address_hint=hint)
            if number < 2:
                await client.join_run(second, p2p_key=key, address_hint=hint)
        await world.clients[1].leave_run(second)

        assert await owner.authorization_revoke(None) == len(world.clients) - 1 + 1
        for run_id, still_there in (("first", [bytes(apart.payer.pubkey())]), ("second", [])):
            account = (await owner.fetch_run(run_id)).account
            assert [account.entries[number].signer for number in account.pending] == still_there
        found = await owner.fetch_authorization(owner.payer.pubkey(), None)
        assert found is not None
        assert not found.active
        with pytest.raises(RunStateError, match="switched off"):
            await world.clients[0].check_authorization(first)
        assert await owner.authorization_revoke(None) == 0, "nobody is left"
        with pytest.raises(RunStateError, match="has not authorized"):
            await world.clients[0].authorization_revoke(None)

    play(script, num_clients=15)


def test_authorizations_end_by_themselves() -> None:
    async def script(world: World) -> None:
        owner, first = world.owner, world.clients[0]
        run = await world.make_run()
        soon = world.backend.engine.unix_timestamp + 100
        await owner.authorization_create(expires_unix_timestamp=soon)
        await first.check_authorization(run)
        world.backend.set_time(soon)
        with pytest.raises(RunStateError, match="has expired"):
            await first.check_authorization(run)
        await owner.authorization_set_active(None, False)
        found = await owner.fetch_authorization(owner.payer.pubkey(), None)
        assert found is not None
        assert (found.active, found.expires_unix_timestamp) == (False, soon)
        await owner.authorization_create()
        await first.check_authorization(run)

    play(script)


def test_an_authorization_from_before_there_were_expiries_gets_one() -> None:
    async def script(world: World) -> None:
        owner, engine = world.owner, world.backend.engine
        run = await world.make_run()
        address = await owner.authorization_create()
        info = await world.backend.get_account(address)
        assert info is not None
        data = info.data[:-8]
        rent = await world.backend.get_minimum_balance(len(data))
        engine.set_account(address, Account(rent, data, info.owner))
        assert await world.clients[0].check_authorization(run) == address
        later = engine.unix_timestamp + 10**6
        await owner.authorization_create(expires_unix_timestamp=later)
        assert [a.expires_unix_timestamp for a in await owner.list_authorizations(owner.payer.pubkey())] == [
            later
        ]

    play(script)


def test_owning_a_run() -> None:
    async def script(world: World) -> None:
        owner = world.owner
        mint = await owner.create_mint()
        plain, paid = await world.make_run("plain"), await world.make_run("paid", mint=mint)
        for run in (plain, paid):
            account = run.account
            assert (account.run_state, account.metadata.name) == (RunState.WaitingForMembers, "name")
            assert account.future_rates.earning_rate_total_shared == 1001
            await expect("UpdateConfigNotHalted", owner.update_run(run, config=account.config))
            await owner.set_paused(run, True)
            await owner.update_run(run, client_version="2", progress=(7, 3, 50), slashing_rate_per_client=9)
            changed = (await owner.fetch_run(run.run_id)).account
            assert (changed.client_version, changed.step, changed.epoch) == ("2", 7, 3)
            assert changed.epoch_start_data_index == 50
            assert changed.future_rates.earning_rate_total_shared == 1001
            assert changed.future_rates.slashing_rate_per_client == 9
        with pytest.raises(RunStateError, match="already"):
            await owner.create_run("plain")
        await expect_usage(owner.create_run("x" * 33))
        await expect_usage(owner.create_run(""))
        listing = await world.clients[0].list_runs()
        assert ([run.run_id for run in listing.runs], listing.unreadable) == (["paid", "plain"], ())
        with pytest.raises(RunStateError, match="no treasurer"):
            await owner.claim(plain)

    play(script)


def test_a_run_of_an_older_release_is_migrated_by_anybody() -> None:
    async def script(world: World) -> None:
        from solders.account import Account

        run = await world.make_run()
        info = await world.backend.get_account(run.coordinator_account)
        assert info is not None
        path = Path(__file__).parents[1] / "conformance/fixtures/coordinator_account_v1_paused.bin.gz"
        older = Account(info.lamports, gzip.decompress(path.read_bytes()), info.owner)
        world.backend.engine.set_account(info.pubkey, older)
        with pytest.raises(ChainError, match="version 1") as caught:
            await world.owner.fetch_run("run")
        assert "run-manager migrate" in caught.value.remedy
        await world.clients[0].migrate("run")
        assert (await world.owner.fetch_run("run")).account.run_state is RunState.Paused
        with pytest.raises(ProgramError, match=r"version already"):
            await world.clients[0].migrate("run")

    play(script)


def test_a_run_of_another_version_is_listed_as_unreadable() -> None:
    async def script(world: World) -> None:
        from solders.account import Account

        run = await world.make_run()
        info = await world.backend.get_account(run.coordinator_account)
        assert info is not None
        newer = info.data[:8] + (3).to_bytes(8, "little") + info.data[16:]
        world.backend.engine.set_account(info.pubkey, Account(info.lamports, newer, info.owner))
        listing = await world.owner.list_runs()
        assert not listing.runs
        assert listing.unreadable[0].run_id == "run"
        assert "ersion" in listing.unreadable[0].error.what

    play(script)


def test_leave_and_checkpoint_and_health_check() -> None:
    async def script(world: World) -> None:
        run = await world.make_run()
        first = world.clients[0]
        await expect("SignerNotAClient", first.leave_run(run))
        await world.join(run)
        error = await expect("InvalidRunState", first.health_check(run, index=1))
        assert error.program == "coordinator"
        await expect_usage(first.checkpoint(run, kind="Local", repo="x" * 129))
        await expect("ClientNotInEpoch", first.checkpoint(run, kind=CheckpointKind.Local, repo="/x"))
        await first.leave_run(run)
        account = (await first.fetch_run("run")).account
        assert account.entries[0].active == 0

    play(script)


def test_no_money_and_no_program() -> None:
    async def script(world: World) -> None:
        run = await world.make_run()
        with pytest.raises(InsufficientFunds, match="too little SOL"):
            await world.make_client(50, lamports=0).tick(run)

    play(script)

    async def elsewhere() -> None:
        backend = LiteSvmBackend.create(programs={})
        client = ProgramClient(backend, Keypair())
        with pytest.raises(WrongCluster):
            await client.fetch_run("run")
        with pytest.raises(WrongCluster):
            await client.list_runs()

    trio.run(elsewhere)


def test_a_tick_before_its_time_changes_no_byte() -> None:
    async def script(world: World) -> None:
        run = await world.make_run()
        before = await world.backend.get_account(run.coordinator_account)
        first = await world.owner.tick(run)
        second = await world.owner.tick(run)
        after = await world.backend.get_account(run.coordinator_account)
        assert before is not None
        assert after is not None
        assert before.data == after.data
        assert first.signature != second.signature
        assert second.slot > first.slot
        assert second.compute_units
        time = await world.backend.get_chain_time()
        assert time.unix_timestamp == START

    play(script)
