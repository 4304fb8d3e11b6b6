"""Airdrops through ``ProgramClient`` on the programs in LiteSVM, of both token programs."""

from __future__ import annotations

import pytest
import trio
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.allocation_tree import AllocationTree
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.client import ProgramClient
from psyche_py.chain.distributor import AirdropHandle, Redeemable
from psyche_py.chain.errors import AccountNotFound, InsufficientFunds, ProgramError, WrongCluster
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM, find_airdrop, find_claim
from psyche_py.errors import ChainError, RunStateError, UsageError


async def make_client(backend: LiteSvmBackend) -> ProgramClient:
    wallet = Keypair()
    await backend.request_airdrop(wallet.pubkey(), 10**10)
    return ProgramClient(backend, wallet)


async def make_airdrop(
    owner: ProgramClient, tree: AllocationTree, token_program: Pubkey = TOKEN_PROGRAM, **options: int
) -> AirdropHandle:
    mint = await owner.create_mint(decimals=6, token_program=token_program)
    await owner.mint_to(mint, owner.payer.pubkey(), tree.total_amount + 50)
    now = (await owner.backend.get_chain_time()).unix_timestamp
    options = {"guaranteed_until": now + 1000, **options}
    return await owner.create_airdrop(7, mint, tree, fund=True, metadata=b"for tests", **options)


@pytest.mark.parametrize("token_program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
def test_from_list_to_last_base_unit(token_program: Pubkey) -> None:
    async def main() -> None:
        backend = LiteSvmBackend.create()
        owner, claimer = await make_client(backend), await make_client(backend)
        line = Allocation(claimer.payer.pubkey(), 1000, 3, backend.engine.unix_timestamp, 100)
        tree = AllocationTree([line, Allocation(owner.payer.pubkey(), 5)])
        made = await make_airdrop(owner, tree, token_program)
        assert (made.vault_amount, made.withdrawable_amount) == (1005, 0)
        assert (made.account.metadata, made.account.merkle_root) == (b"for tests", tree.merkle_root)

        backend.advance(50)
        found = await claimer.fetch_airdrop(7)
        assert await claimer.fetch_redeemable(found, line) == Redeemable(line, 500, 0)
        assert await claimer.redeem(found, tree, line, 100) == 100
        assert await claimer.redeem(found, tree, line) == 400
        with pytest.raises(RunStateError, match=r"0 base units .* 500 have vested, 500 were redeemed"):
            await claimer.redeem(found, tree, line)
        assert await claimer.fetch_token_amount(found.mint.find_token_account(line.wallet)) == 500

        await owner.fund_airdrop(found, 50)
        with pytest.raises(InsufficientFunds, match="holds 0"):
            await owner.fund_airdrop(found, 1)
        found = await owner.fetch_airdrop(7)
        assert found.withdrawable_amount == 50
        stranger = Keypair().pubkey()
        await owner.withdraw_airdrop(found, 50, recipient=stranger)
        assert await owner.fetch_token_amount(found.mint.find_token_account(stranger)) == 50
        with pytest.raises(ProgramError) as caught:
            await owner.withdraw_airdrop(found, 1)
        assert caught.value.name == "AirdropIsGuaranteed"
        backend.advance(1000)
        found = await owner.fetch_airdrop(7)
        assert found.withdrawable_amount == found.vault_amount == 505
        await owner.withdraw_airdrop(found, 505)
        with pytest.raises(ProgramError) as caught:
            await claimer.redeem(found, tree, line)
        assert caught.value.name == "AirdropVaultIsTooSmall"

    trio.run(main)


def test_a_long_list_is_redeemed_from() -> None:
    """5000 lines, a proof of 13 levels."""

    async def main() -> None:
        backend = LiteSvmBackend.create()
        owner = await make_client(backend)
        wallet = owner.payer.pubkey()
        tree = AllocationTree([Allocation(wallet, 1 + n, n) for n in range(5000)])
        found = await make_airdrop(owner, tree)
        line = max(tree.allocations, key=lambda item: len(tree.get_proof(item)))
        assert len(tree.get_proof(line)) == 13 * 40
        assert await owner.redeem(found, tree, line) == line.amount

    trio.run(main)


def test_what_the_program_says_and_the_handle_says_agree() -> None:
    """Guarantee, freeze and what may be withdrawn: computed here, decided there."""

    async def main() -> None:
        backend = LiteSvmBackend.create()
        owner = await make_client(backend)
        tree = AllocationTree([Allocation(owner.payer.pubkey(), 100)])
        await make_airdrop(owner, tree)
        seen = []
        for seconds, freeze in ((0, None), (999, True), (500, None), (0, False), (0, None), (1, None)):
            backend.advance(seconds)
            found = await owner.fetch_airdrop(7)
            if freeze is not None:
                await owner.update_airdrop(found, claim_freeze=freeze)
                found = await owner.fetch_airdrop(7)
            allowed = found.withdrawable_amount
            with pytest.raises(ProgramError):
                await owner.withdraw_airdrop(found, allowed + 1)
            await owner.withdraw_airdrop(found, allowed)
            await owner.mint_to(found.mint.address, owner.payer.pubkey(), allowed)
            if allowed:
                await owner.fund_airdrop(found, allowed)
            seen.append((allowed, found.account.is_guaranteed(found.now)))
        assert seen == [(0, True)] * 5 + [(100, False)]

    trio.run(main)


def test_refusals_before_anything_is_sent() -> None:
    async def main() -> None:
        backend = LiteSvmBackend.create()
        owner, other = await make_client(backend), await make_client(backend)
        line = Allocation(other.payer.pubkey(), 100)
        tree = AllocationTree([line])
        with pytest.raises(AccountNotFound, match="no airdrop 7"):
            await owner.fetch_airdrop(7)
        found = await make_airdrop(owner, tree)
        slot = backend.engine.slot
        with pytest.raises(RunStateError, match="an airdrop 7 already"):
            await other.create_airdrop(7, found.mint.address, tree, guaranteed_until=0)
        with pytest.raises(RunStateError, match="no mint"):
            await other.create_airdrop(8, owner.payer.pubkey(), tree, guaranteed_until=0)
        with pytest.raises(UsageError, match="301 bytes"):
            await owner.update_airdrop(found, metadata=bytes(301))
        with pytest.raises(RunStateError, match="belongs to"):
            await other.update_airdrop(found, claim_freeze=True)
        with pytest.raises(RunStateError, match="belongs to"):
            await other.withdraw_airdrop(found, 1)
        with pytest.raises(UsageError, match="not the list"):
            await other.redeem(found, AllocationTree([Allocation(line.wallet, 99)]), line)
        with pytest.raises(RunStateError, match="100 base units"):
            await other.redeem(found, tree, line, 101)
        with pytest.raises(RunStateError, match="100 base units"):
            await other.redeem(found, tree, line, 0)
        assert backend.engine.slot == slot
        await owner.update_airdrop(found, claim_freeze=True)
        with pytest.raises(RunStateError, match="frozen"):
            await other.redeem(await other.fetch_airdrop(7), tree, line)

    trio.run(main)


def test_a_list_declared_for_another_sum_is_found_out() -> None:
    async def main() -> None:
        from psyche_py.chain.anchor import get_program

        backend = LiteSvmBackend.create()
        owner = await make_client(backend)
        tree = AllocationTree([Allocation(owner.payer.pubkey(), 100)])
        found = await make_airdrop(owner, tree, guaranteed_until=0)
        accounts = {"authority": owner.payer.pubkey(), "airdrop": found.address}
        lie = {"merkle_root": tree.merkle_root, "allocated_collateral_amount": 1}
        args = {"claim_freeze": None, "list": lie, "guaranteed_until_unix_timestamp": None, "metadata": None}
        update = get_program("distributor").encode("airdrop_update", accounts, args)
        await backend.send([update], [owner.payer])
        with pytest.raises(RunStateError, match="Nobody can redeem"):
            (await owner.fetch_airdrop(7)).check_list(tree)

    trio.run(main)


def test_lamports_at_a_claims_address_are_no_claim() -> None:
    """Anybody can send there; the claimer redeems all the same."""

    async def main() -> None:
        backend = LiteSvmBackend.create()
        owner = await make_client(backend)
        line = Allocation(owner.payer.pubkey(), 100)
        tree = AllocationTree([line])
        found = await make_airdrop(owner, tree)
        await backend.request_airdrop(find_claim(found.address, line.wallet, 0), 1_000_000)
        assert await owner.fetch_redeemable(found, line) == Redeemable(line, 100, 0)
        assert await owner.redeem(found, tree, line) == 100
        await backend.request_airdrop(find_airdrop(8), 1_000_000)
        with pytest.raises(AccountNotFound):
            await owner.fetch_airdrop(8)
        await owner.create_airdrop(8, found.mint.address, tree, guaranteed_until=0)

    trio.run(main)


def test_other_clusters_and_damaged_accounts() -> None:
    async def main() -> None:
        empty = LiteSvmBackend.create(programs={})
        with pytest.raises(WrongCluster, match="distributor"):
            await (await make_client(empty)).fetch_airdrop(7)
        backend = LiteSvmBackend.create()
        owner = await make_client(backend)
        found = await make_airdrop(owner, AllocationTree([Allocation(owner.payer.pubkey(), 1)]))
        info = await backend.get_account(found.address)
        assert info is not None
        for data in (info.data[:100], bytes(len(info.data)), info.data[:154] + b"\xff" * 304):
            with pytest.raises(ChainError):
                type(found.account).decode(type(info)(info.pubkey, 1, info.owner, data, 1))

    trio.run(main)
