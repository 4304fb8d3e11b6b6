"""A mining pool through ProgramClient: the real program in LiteSVM, from creation to the last claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.client import ProgramClient
from psyche_py.chain.errors import AccountNotFound, InsufficientFunds, ProgramError, WrongCluster
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.chain.mining_pool import Pool, PoolHandle
from psyche_py.chain.pda import find_pool, find_token_account
from psyche_py.errors import ChainError, PsycheError, RunStateError, UsageError

U64_MAX = 2**64 - 1
INDEX = 5


class World:
    """A chain, an authority, two lenders; a pool of a new mint that takes up to 1000."""

    def __init__(self) -> None:
        self.backend = LiteSvmBackend.create()
        self.authority, self.first, self.second = (self.make_client(number) for number in (1, 2, 3))

    def make_client(self, number: int) -> ProgramClient:
        keypair = Keypair.from_seed(bytes([number] * 32))
        self.backend.engine.airdrop(keypair.pubkey(), 10**11)
        return ProgramClient(self.backend, keypair)

    async def make_pool(self, **options: Any) -> Pool:
        await self.authority.pool_create(INDEX, None, **{"max_deposit": 1000, "metadata": "é", **options})
        return (await self.authority.fetch_pool(INDEX)).pool

    async def lend(self, client: ProgramClient, amount: int) -> PoolHandle:
        handle = await client.fetch_pool(INDEX)
        await self.authority.mint_to(handle.pool.collateral_mint, client.payer.pubkey(), amount)
        await client.lender_deposit(handle, amount)
        return await client.fetch_pool(INDEX)


def run(work: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            await work(World())

    trio.run(main)


async def fail(kind: type[PsycheError], call: Awaitable[object], name: str = "") -> PsycheError:
    """The call must raise this, with a remedy; ``name`` is that of a program's error."""
    with pytest.raises(kind) as caught:
        await call
    assert caught.value.remedy, caught.value
    if name:
        assert isinstance(caught.value, ProgramError)
        assert caught.value.name == name
    return caught.value


def test_from_creation_to_the_last_claim() -> None:
    async def work(world: World) -> None:
        pool = await world.make_pool()
        assert (pool.index, pool.max_deposit_collateral_amount, pool.metadata_text) == (INDEX, 1000, "é")
        assert (await world.first.fetch_pool(INDEX)).lender is None
        assert (await world.lend(world.first, 300)).collateral_amount == 300
        handle = await world.lend(world.second, 100)
        assert handle.lender is not None
        assert handle.lender.deposited_collateral_amount == 100

        await world.authority.pool_extract(handle)
        held = find_token_account(world.authority.payer.pubkey(), pool.collateral_mint)
        assert await world.authority.fetch_token_amount(held) == 400
        await world.authority.pool_claimable(handle, None)
        handle = await world.authority.fetch_pool(INDEX)
        await world.authority.mint_to(handle.pool.redeemable_mint, world.authority.payer.pubkey(), 1001)
        await world.authority.pool_repay(handle, 1001)

        first = await world.first.fetch_pool(INDEX)
        assert (first.total_repaid, first.redeemable_amount, first.claimable) == (1001, 1001, 750)
        await world.first.lender_claim(first, 700)
        await fail(ProgramError, world.first.lender_claim(first), "ParamsRedeemableAmountIsTooLarge")
        await world.first.lender_claim(await world.first.fetch_pool(INDEX))
        # the second lender's share, asked for by somebody else
        asked = await world.first.fetch_pool(INDEX, world.second.payer.pubkey())
        assert (asked.total_repaid, asked.redeemable_amount, asked.claimable) == (1001, 251, 250)
        await world.second.lender_claim(await world.second.fetch_pool(INDEX))
        for client, amount in ((world.first, 750), (world.second, 250)):
            account = find_token_account(client.payer.pubkey(), handle.pool.redeemable_mint)
            assert await client.fetch_token_amount(account) == amount
        done = await world.second.fetch_pool(INDEX)
        assert (done.claimable, done.redeemable_amount) == (0, 1)
        await fail(RunStateError, world.second.lender_claim(done))
        assert [found.index for found in await world.first.list_pools()] == [INDEX]

    run(work)


def test_what_cannot_be_is_said_before_anything_is_sent() -> None:
    async def work(world: World) -> None:
        missing = await fail(AccountNotFound, world.first.fetch_pool(INDEX))
        assert "pool list" in missing.remedy
        world.backend.engine.airdrop(find_pool(INDEX), 10**6)
        await fail(AccountNotFound, world.first.fetch_pool(INDEX))
        for index in (-1, U64_MAX + 1):
            await fail(UsageError, world.first.fetch_pool(index))
        await fail(UsageError, world.authority.pool_create(INDEX, None, metadata="é" * 201))
        await fail(UsageError, world.authority.pool_create(INDEX, None, max_deposit=U64_MAX + 1))
        await world.make_pool()
        await fail(RunStateError, world.first.pool_create(INDEX, None))
        handle = await world.first.fetch_pool(INDEX)
        for amount in (0, -1, U64_MAX + 1):
            await fail(UsageError, world.first.lender_deposit(handle, amount))
            await fail(UsageError, world.first.pool_repay(handle, amount))
        await fail(InsufficientFunds, world.first.lender_deposit(handle, 1))
        await fail(RunStateError, world.first.pool_repay(handle, 1))
        await fail(RunStateError, world.first.lender_claim(handle))
        await fail(RunStateError, world.authority.pool_extract(handle))
        await fail(UsageError, world.authority.pool_update(handle, metadata="x" * 401))
        assert await world.backend.get_account(handle.pool.collateral_vault) is not None

    run(work)


def test_a_chain_without_the_program() -> None:
    async def main() -> None:
        client = ProgramClient(LiteSvmBackend.create(programs={}), Keypair())
        await fail(WrongCluster, client.fetch_pool(INDEX))
        await fail(WrongCluster, client.list_pools())

    trio.run(main)


def test_refusals_carry_their_names_and_remedies() -> None:
    async def work(world: World) -> None:
        await world.make_pool()
        handle = await world.first.fetch_pool(INDEX)
        await fail(ProgramError, world.first.pool_update(handle, freeze=True), "WrongAuthority")
        nobody = "PoolTotalDepositedCollateralAmountIsZero"
        await fail(ProgramError, world.authority.pool_claimable(handle, None), nobody)
        handle = await world.lend(world.first, 300)
        update = world.authority.pool_update
        await fail(ProgramError, update(handle, max_deposit=299), "ParamsMaxDepositIsBelowTotalDeposited")
        await fail(ProgramError, update(handle, max_deposit=1001), "ParamsMaxDepositIsRaised")
        extract = world.authority.pool_extract(handle, 301)
        await fail(ProgramError, extract, "ParamsCollateralAmountIsTooLarge")
        await fail(RunStateError, world.first.lender_claim(handle, 1))
        await world.authority.pool_update(handle, freeze=True)
        await fail(ProgramError, world.authority.pool_extract(handle), "PoolFreezeIsTrue")
        await world.authority.pool_update(handle, freeze=False, metadata="new", max_deposit=300)
        assert (await world.first.fetch_pool(INDEX)).pool.metadata_text == "new"
        await world.authority.pool_claimable(handle, handle.pool.collateral_mint)
        again = world.authority.pool_claimable(handle, None)
        await fail(ProgramError, again, "PoolClaimingEnabledIsTrue")

    run(work)


def test_a_refused_creation_leaves_no_mint() -> None:
    """The mint is made in the transaction that is refused."""

    async def work(world: World) -> None:
        await world.make_pool()
        handle = await world.first.fetch_pool(INDEX)
        payer = world.first.payer.pubkey()
        before = await world.backend.get_account(payer)
        await fail(ProgramError, world.first.pool_claimable(handle, None), "WrongAuthority")
        after = await world.backend.get_account(payer)
        assert before is not None
        assert after is not None
        assert before.lamports - after.lamports < 10**6  # the fee of one transaction, and no rent

    run(work)


@pytest.mark.parametrize("damage", ["owner", "short", "kind", "length"])
def test_hostile_accounts_are_chain_errors(damage: str) -> None:
    async def work(world: World) -> None:
        await world.make_pool()
        address = find_pool(INDEX)
        info = await world.backend.get_account(address)
        assert info is not None
        data, owner = info.data, info.owner
        if damage == "owner":
            owner = Pubkey([9] * 32)
        elif damage == "short":
            data = data[:200]
        elif damage == "kind":
            data = bytes(8) + data[8:]
        else:
            data = data[:220] + b"\xff\xff" + bytes([0xFF]) * 400
        world.backend.engine.set_account(address, Account(info.lamports, data, owner))
        if damage == "length":
            assert len((await world.first.fetch_pool(INDEX)).pool.metadata_text) == 400
        else:
            with pytest.raises(ChainError):
                await world.first.fetch_pool(INDEX)

    run(work)
