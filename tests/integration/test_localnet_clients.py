"""Clients of others, and our own, against a localnet process: solana-py, anchorpy, RpcBackend."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from anchorpy import Context, Idl, Program, Provider, Wallet
from localnet_process import Localnet, running_localnet, start_localnet, stop
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed, Processed
from solana.rpc.core import RPCException
from solana.rpc.types import DataSliceOpts, MemcmpOpts, TokenAccountOpts, TxOpts
from solana.rpc.websocket_api import connect
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.config import RpcTransactionLogsFilter
from solders.rpc.responses import (
    AccountNotification,
    LogsNotification,
    SignatureNotification,
    SlotNotification,
    SubscriptionResult,
)
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import Transaction, VersionedTransaction
from solders.transaction_status import TransactionConfirmationStatus
from spl.token.async_client import AsyncToken
from spl.token.constants import TOKEN_PROGRAM_ID

from psyche_py.chain.artifacts import get_program_id, read_idl_text
from psyche_py.chain.clusters import resolve_cluster
from psyche_py.chain.errors import ProgramError
from psyche_py.chain.rpc import RpcBackend
from psyche_py.cli.demo.processes import find_free_ports

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def localnet() -> Iterator[Localnet]:
    with running_localnet() as running:
        yield running


def move(payer: Keypair, to: Pubkey, lamports: int) -> Instruction:
    return transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports))


async def send(client: AsyncClient, instructions: list[Instruction], *signers: Keypair) -> Transaction:
    blockhash = (await client.get_latest_blockhash()).value.blockhash
    transaction = Transaction.new_signed_with_payer(
        instructions, signers[0].pubkey(), list(signers), blockhash
    )
    options = TxOpts(skip_confirmation=True, preflight_commitment=Processed)
    signature = (await client.send_transaction(transaction, options)).value
    assert signature == transaction.signatures[0]
    return transaction


# ---- solana-py ---------------------------------------------------------------------------------------


async def use_solana_py(client: AsyncClient) -> None:
    """Every read that solana-py offers and a localnet answers; works in any event loop httpx works in."""
    assert await client.is_connected()
    assert (await client.get_version()).value.solana_core
    assert (await client.get_genesis_hash()).value
    assert (await client.get_slot(Processed)).value >= (await client.get_block_height()).value
    assert (await client.get_epoch_info()).value.slots_in_epoch > 0
    assert (await client.get_epoch_schedule()).value.slots_per_epoch > 0
    assert (await client.get_identity()).value.identity
    assert (await client.get_slot_leader()).value
    assert (await client.get_first_available_block()).value >= 0
    assert (await client.get_vote_accounts()).value.current == []
    assert (await client.get_minimum_balance_for_rent_exemption(10)).value > 0

    payer, to, owner, data = Keypair(), Keypair().pubkey(), Keypair().pubkey(), Keypair()
    assert (await client.request_airdrop(payer.pubkey(), 10**10)).value
    assert (await client.get_balance(payer.pubkey(), Processed)).value == 10**10
    latest = (await client.get_latest_blockhash()).value
    assert latest.last_valid_block_height > 0
    made = create_account(
        CreateAccountParams(
            from_pubkey=payer.pubkey(), to_pubkey=data.pubkey(), lamports=10**9, space=100, owner=owner
        )
    )
    sent = await send(client, [move(payer, to, 10**6), made], payer, data)
    signature = sent.signatures[0]
    (status,) = (await client.get_signature_statuses([signature])).value
    assert status is not None
    assert status.confirmation_status == TransactionConfirmationStatus.Processed
    assert (await client.get_fee_for_message(sent.message)).value == 10_000
    simulated = await client.simulate_transaction(sent)
    assert str(simulated.value.err) == "TransactionErrorFieldless.AlreadyProcessed"

    account = (await client.get_account_info(data.pubkey(), Processed)).value
    assert account is not None
    assert (account.owner, account.data) == (owner, bytes(100))
    several = (await client.get_multiple_accounts([data.pubkey(), Keypair().pubkey()])).value
    assert several[0] is not None
    assert several[1] is None
    filters = [100, MemcmpOpts(offset=4, bytes="1111")]
    found = (
        await client.get_program_accounts(
            owner, Processed, "base64", filters=filters, data_slice=DataSliceOpts(offset=0, length=8)
        )
    ).value
    assert [(keyed.pubkey, len(keyed.account.data)) for keyed in found] == [(data.pubkey(), 8)]
    with pytest.raises(RPCException) as caught:
        await send(client, [move(payer, to, 10**15)], payer)
    assert "custom program error: 0x1" in str(caught.value)

    for _ in range(40):  # until it is confirmed
        landed = (
            await client.get_transaction(signature, "json", Confirmed, max_supported_transaction_version=0)
        ).value
        if landed is not None:
            break
        await _sleep(0.05)
    assert landed is not None
    assert landed.transaction.meta is not None
    assert landed.transaction.meta.fee == 10_000
    listed = (await client.get_signatures_for_address(to, commitment=Confirmed)).value
    assert [entry.signature for entry in listed] == [signature]
    assert (await client.get_block_time(landed.slot)).value


async def _sleep(seconds: float) -> None:
    try:
        await trio.sleep(seconds)
    except RuntimeError:  # not in a trio loop
        await asyncio.sleep(seconds)


def test_solana_py_under_trio(localnet: Localnet) -> None:
    async def run() -> None:
        async with AsyncClient(localnet.rpc_url) as client:
            with trio.fail_after(120):
                await use_solana_py(client)

    trio.run(run)


def test_solana_py_under_asyncio(localnet: Localnet) -> None:
    async def run() -> None:
        async with AsyncClient(localnet.rpc_url, Confirmed) as client:
            await use_solana_py(client)
            # these sleep with asyncio inside the library
            payer = Keypair()
            airdrop = (await client.request_airdrop(payer.pubkey(), 10**10)).value
            await client.confirm_transaction(airdrop, Confirmed, sleep_seconds=0.1)
            blockhash = (await client.get_latest_blockhash()).value.blockhash
            message = MessageV0.try_compile(
                payer.pubkey(), [move(payer, Keypair().pubkey(), 10**6)], [], blockhash
            )
            signed = VersionedTransaction(message, [payer])
            answer = await client.send_transaction(signed, TxOpts(preflight_commitment=Confirmed))
            assert answer.value == signed.signatures[0]

    asyncio.run(run())


def test_solana_py_websocket(localnet: Localnet) -> None:
    async def run() -> None:
        payer, to = Keypair(), Keypair().pubkey()
        async with AsyncClient(localnet.rpc_url) as client, connect(localnet.ws_url) as websocket:
            await client.request_airdrop(payer.pubkey(), 10**10)
            blockhash = (await client.get_latest_blockhash()).value.blockhash
            signed = Transaction.new_signed_with_payer(
                [move(payer, to, 10**6)], payer.pubkey(), [payer], blockhash
            )
            await websocket.account_subscribe(to, Processed, "base64")
            await websocket.signature_subscribe(signed.signatures[0], Confirmed)
            await websocket.logs_subscribe(RpcTransactionLogsFilter.All, Processed)
            await websocket.slot_subscribe()
            num_confirmed = 0
            while num_confirmed < 4:  # only then is nothing missed
                num_confirmed += sum(isinstance(m, SubscriptionResult) for m in await websocket.recv())
            await client.send_transaction(signed, TxOpts(skip_confirmation=True))
            wanted = {AccountNotification, SignatureNotification, LogsNotification, SlotNotification}
            async with asyncio.timeout(10):
                while wanted:
                    for message in await websocket.recv():
                        wanted.discard(type(message))

    asyncio.run(run())


def test_spl_token_client(localnet: Localnet) -> None:
    async def run() -> None:
        payer, friend = Keypair(), Keypair().pubkey()
        async with AsyncClient(localnet.rpc_url, Confirmed) as client:
            airdrop = (await client.request_airdrop(payer.pubkey(), 10**10)).value
            await client.confirm_transaction(airdrop, Confirmed, sleep_seconds=0.1)
            token = await AsyncToken.create_mint(client, payer, payer.pubkey(), 6, TOKEN_PROGRAM_ID)
            account = await token.create_account(friend)
            await token.mint_to(account, payer, 1_500_000, opts=TxOpts(skip_confirmation=False))
            assert (await token.get_balance(account)).value.ui_amount == 1.5
            by_owner = await client.get_token_accounts_by_owner_json_parsed(
                friend, TokenAccountOpts(mint=token.pubkey)
            )
            assert by_owner.value[0].account.data.parsed["info"]["tokenAmount"]["amount"] == "1500000"
            assert (await client.get_token_supply(token.pubkey)).value.amount == "1500000"

    asyncio.run(run())


# ---- anchorpy ----------------------------------------------------------------------------------------


def test_anchorpy_drives_our_programs_and_reads_their_errors(localnet: Localnet) -> None:
    """An authorization is created, fetched, listed and switched, all from the IDL."""

    async def run() -> None:
        payer, grantee, scope = Keypair(), Keypair().pubkey(), b"CoordinatorJoinRun"
        async with AsyncClient(localnet.rpc_url, Confirmed) as client:
            airdrop = (await client.request_airdrop(payer.pubkey(), 10**10)).value
            await client.confirm_transaction(airdrop, Confirmed, sleep_seconds=0.1)
            provider = Provider(client, Wallet(payer), TxOpts(preflight_commitment=Confirmed))
            program = Program(
                Idl.from_json(read_idl_text("authorizer")), get_program_id("authorizer"), provider
            )
            seeds = [b"Authorization", bytes(payer.pubkey()), bytes(grantee), scope]
            address, _ = Pubkey.find_program_address(seeds, program.program_id)
            accounts = {
                "payer": payer.pubkey(),
                "grantor": payer.pubkey(),
                "authorization": address,
                "system_program": Pubkey.default(),
            }
            signature = await program.rpc["authorization_create"](
                grantee, scope, ctx=Context(accounts=accounts)
            )
            assert signature
            fetched = await program.account["Authorization"].fetch(address)
            assert (fetched.grantor, fetched.grantee, bool(fetched.active)) == (
                payer.pubkey(),
                grantee,
                False,
            )
            update = {"grantor": payer.pubkey(), "authorization": address}
            await program.rpc["authorization_grantor_update"](True, 0, ctx=Context(accounts=update))
            listed = await program.account["Authorization"].all()
            assert [(entry.public_key, bool(entry.account.active)) for entry in listed] == [(address, True)]

    asyncio.run(run())


# ---- our own backend ---------------------------------------------------------------------------------


def test_rpc_backend(localnet: Localnet) -> None:
    async def run() -> None:
        payer, to = Keypair(), Keypair().pubkey()
        cluster = resolve_cluster(localnet.rpc_url, None, {}, {})
        with trio.fail_after(120):
            async with RpcBackend(cluster) as backend:
                await backend.request_airdrop(payer.pubkey(), 10**10)
                await backend.send([move(payer, to, 10**6)], [payer])
                async with backend.subscribe_account(to) as accounts:
                    assert (await accounts.receive()).lamports == 10**6
                    start = time.monotonic()
                    result = await backend.send([move(payer, to, 10**6)], [payer])
                    changed = await accounts.receive()
                    assert changed.lamports == 2 * 10**6
                    assert changed.slot >= result.slot
                    assert time.monotonic() - start < 5
                assert abs((await backend.get_chain_time()).unix_timestamp - time.time()) < 3
                bad = Instruction(get_program_id("coordinator"), bytes(8), [])
                with pytest.raises(ProgramError) as caught:
                    await backend.send([bad], [payer])
                assert (caught.value.program, caught.value.code) == ("coordinator", 6100)

    trio.run(run)


def test_rpc_backend_rides_through_a_restart(tmp_path: Path) -> None:
    """SIGKILL and restart under a live subscription and a sender: nothing is lost, no slot goes back."""
    port, _ = find_free_ports()
    localnet = start_localnet("--rpc-port", str(port), "--ledger", str(tmp_path))

    async def run() -> None:
        nonlocal localnet
        payer, to = Keypair(), Keypair().pubkey()
        cluster = resolve_cluster(localnet.rpc_url, None, {}, {})
        with trio.fail_after(120):
            async with RpcBackend(cluster) as backend:
                await backend.request_airdrop(payer.pubkey(), 10**10)
                await backend.send([move(payer, to, 10**6)], [payer])
                async with backend.subscribe_account(to) as accounts:
                    before = await accounts.receive()
                    stop(localnet, kill=True)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(backend.send, [move(payer, to, 10**6)], [payer])
                        await trio.sleep(0.5)
                        localnet = start_localnet("--rpc-port", str(port), "--ledger", str(tmp_path))
                    while (after := await accounts.receive()).lamports != 2 * 10**6:
                        assert after.slot >= before.slot
                    assert after.slot > before.slot

    try:
        trio.run(run)
    finally:
        stop(localnet)
