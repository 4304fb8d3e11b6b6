"""Deploying where the loader takes buffers only, as in solders 0.26; tests/newest has the rest."""

from __future__ import annotations

import pytest
import trio
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from psyche_py.chain import upgradeable_loader as loader
from psyche_py.chain.artifacts import get_program_id, read_program
from psyche_py.chain.deploy import (
    Action,
    ProgramDeployer,
    ProgramPlan,
    choose_sbpf_version,
    compute_chunk_bytes,
    compute_needed_lamports,
)
from psyche_py.chain.errors import DeploymentRefused
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.chain.port import MAX_TRANSACTION_BYTES, AccountInfo
from psyche_py.chain.transaction import add_budget

KEY = Pubkey(bytes([3] * 32))


def make_info(data: bytes, owner: Pubkey = loader.LOADER) -> AccountInfo:
    return AccountInfo(KEY, 1, owner, data, 5, False)


@pytest.mark.parametrize("num_signers", [1, 2])
def test_a_full_chunk_fills_a_transaction(num_signers: int) -> None:
    payer, authority = KEY, KEY if num_signers == 1 else Pubkey(bytes([4] * 32))
    buffer, chunk = Pubkey(bytes([5] * 32)), bytes(compute_chunk_bytes(payer, authority))
    dear = add_budget([loader.write(buffer, authority, 2**31, chunk)], micro_lamports_per_unit=2**63)
    message = Message.new_with_blockhash(dear, payer, Hash.default())
    assert len(bytes(Transaction.new_unsigned(message))) == MAX_TRANSACTION_BYTES


def test_what_must_be_there_to_begin_with() -> None:
    """A buffer is paid before it comes back, and what an earlier program kept is gone by then."""

    def make_plan(rent: int, buffer: int, fee: int) -> ProgramPlan:
        return ProgramPlan(
            "x", KEY, b"", Action.DEPLOY, rent_lamports=rent, buffer_lamports=buffer, fee_lamports=fee
        )

    assert compute_needed_lamports([]) == 0
    assert compute_needed_lamports([make_plan(0, 100, 1)]) == 101
    assert compute_needed_lamports([make_plan(120, 100, 1)]) == 121
    assert compute_needed_lamports([make_plan(120, 100, 1), make_plan(0, 500, 2)]) == 120 + 1 + 2 + 500


@pytest.mark.parametrize(
    "data", [b"", bytes(36), bytes([1, 0, 0, 0, 0]) + bytes(31), bytes([3, 0, 0, 0]) + bytes(60)]
)
def test_a_buffer_is_read_with_suspicion(data: bytes) -> None:
    with pytest.raises(DeploymentRefused):
        loader.read_buffer(make_info(data))
    with pytest.raises(DeploymentRefused):
        loader.read_buffer(make_info(bytes([1, 0, 0, 0, 1]) + bytes(40), owner=KEY))


@pytest.mark.parametrize(
    "data", [b"", bytes(45), bytes([3, 0, 0, 0]) + bytes(40), bytes([1, 0, 0, 0]) + bytes(60)]
)
def test_program_data_is_read_with_suspicion(data: bytes) -> None:
    with pytest.raises(DeploymentRefused):
        loader.read_program_data(make_info(data))
    with pytest.raises(DeploymentRefused):
        loader.read_program_data(make_info(bytes([3, 0, 0, 0]) + bytes(60), owner=KEY))


def test_accounts_of_the_loader_are_read() -> None:
    header = bytes([3, 0, 0, 0]) + (77).to_bytes(8, "little")
    deployed = loader.read_program_data(make_info(header + b"\1" + bytes(KEY) + b"code\0\0"))
    assert (deployed.slot, deployed.authority, deployed.data) == (77, KEY, b"code\0\0")
    assert deployed.holds(b"code")
    assert not deployed.holds(b"cod")
    assert loader.read_program_data(make_info(header + bytes(33) + b"x")).authority is None
    buffer = loader.read_buffer(make_info(bytes([1, 0, 0, 0, 1]) + bytes(KEY) + b"code"))
    assert (buffer.authority, buffer.data) == (KEY, b"code")
    program = make_info(bytes([2, 0, 0, 0]) + bytes(32))
    assert loader.is_program(program)
    assert not loader.is_program(make_info(program.data[:35]))
    assert not loader.is_program(make_info(program.data, owner=KEY))


def test_a_loader_without_deployments_says_so_and_the_rent_comes_back() -> None:
    async def work() -> None:
        backend, payer, program = LiteSvmBackend.create(programs={}), Keypair(), Keypair()
        backend.engine.airdrop(payer.pubkey(), 10**10)
        deployer = ProgramDeployer(backend, payer)
        assert await choose_sbpf_version(backend) == 0
        elf = read_program("authorizer")
        plan = await deployer.plan("authorizer", program.pubkey(), elf)
        with pytest.raises(ValueError, match="keypair"):
            await deployer.execute(plan, Keypair())
        with pytest.raises(DeploymentRefused, match="takes no deployments"):
            await deployer.execute(plan, program)
        buffer = await backend.get_account(loader.find_buffer(payer.pubkey(), elf, payer.pubkey()))
        assert buffer is not None
        assert loader.read_buffer(buffer).data == elf
        before = await backend.get_account(payer.pubkey())
        assert await deployer.close_buffers() == buffer.lamports
        after = await backend.get_account(payer.pubkey())
        assert before is not None
        assert after is not None
        assert after.lamports == before.lamports + buffer.lamports - 5000

    trio.run(work)


def test_built_in_programs_are_up_to_date_and_cannot_be_replaced() -> None:
    async def work() -> None:
        deployer = ProgramDeployer(LiteSvmBackend.create(), Keypair())
        program_id = get_program_id("authorizer")
        plan = await deployer.plan("authorizer", program_id, read_program("authorizer"))
        assert (plan.action, plan.authority) == (Action.NOTHING, None)
        with pytest.raises(DeploymentRefused, match="not to the upgradeable loader"):
            await deployer.plan("authorizer", program_id, read_program("authorizer", 3))

    trio.run(work)
