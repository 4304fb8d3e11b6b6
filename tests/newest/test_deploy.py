"""psyche_py.chain.deploy against the real loader: its costs, going on after a fall, what it refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from solders.account import Account
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain import upgradeable_loader as loader
from psyche_py.chain.artifacts import read_program
from psyche_py.chain.deploy import (
    Action,
    ProgramDeployer,
    ProgramPlan,
    choose_sbpf_version,
    compute_needed_lamports,
)
from psyche_py.chain.errors import (
    DeploymentRefused,
    InsufficientFunds,
    RpcUnavailable,
    TransactionExpired,
    TransactionFailed,
)
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.chain.port import TransactionResult

SMALL, LARGE = read_program("authorizer", 3), read_program("treasurer", 3)
FUNDS = 10**10


class LossyBackend(LiteSvmBackend):
    """A chain whose endpoint fails at chosen sends: ``lose`` names the error of the n-th, counted from 0."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.lose: Callable[[int], Exception | None] = lambda number: None
        self.num_sends = 0

    async def send(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair], *, label: str = ""
    ) -> TransactionResult:
        error = self.lose(self.num_sends)
        self.num_sends += 1
        if error is not None:
            raise error
        return await super().send(instructions, signers, label=label)


class World:
    """A bare chain, a payer with money, a program's keypair."""

    def __init__(self) -> None:
        self.backend = LossyBackend.create(programs={})
        self.payer, self.program = Keypair(), Keypair()
        self.deployer = self.make_deployer(self.payer)
        self.written: list[tuple[int, int]] = []

    def make_deployer(self, payer: Keypair, authority: Keypair | None = None) -> ProgramDeployer:
        """Funds the payer."""
        self.backend.engine.airdrop(payer.pubkey(), FUNDS)
        return ProgramDeployer(
            self.backend, payer, authority, tell=lambda name, done, of: self.written.append((done, of))
        )

    async def put(self, elf: bytes, deployer: ProgramDeployer | None = None) -> ProgramPlan:
        """Plan and carry out; returns the plan."""
        deployer = deployer or self.deployer
        plan = await deployer.plan("authorizer", self.program.pubkey(), elf)
        await deployer.check_funds([plan])
        await deployer.execute(plan, self.program)
        return plan

    def get_lamports(self, address: Pubkey | None = None) -> int:
        info = self.backend.engine.get_account(address or self.payer.pubkey())
        return 0 if info is None else info.lamports

    def read_deployed(self) -> loader.ProgramData:
        info = self.backend.engine.get_account(loader.find_program_data(self.program.pubkey()))
        assert info is not None
        return loader.read_program_data(info)


def run(work: Callable[[World], Awaitable[None]]) -> None:
    trio.run(work, World(), clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("version", [0, 3])
def test_first_deployment_costs_what_the_plan_says(version: int) -> None:
    async def work(world: World) -> None:
        elf, before = read_program("authorizer", version), world.get_lamports()
        plan = await world.put(elf)
        assert plan.action is Action.DEPLOY
        assert before - world.get_lamports() == plan.rent_lamports + plan.fee_lamports
        deployed = world.read_deployed()
        assert deployed.data == elf
        assert deployed.authority == world.payer.pubkey()
        assert world.written == [(i + 1, plan.num_writes) for i in range(plan.num_writes)]
        assert plan.num_writes == world.backend.num_sends - 2
        again = await world.deployer.plan("authorizer", world.program.pubkey(), elf)
        assert (again.action, compute_needed_lamports([again])) == (Action.NOTHING, 0)
        sends = world.backend.num_sends
        await world.deployer.execute(again)
        assert world.backend.num_sends == sends

    run(work)


def test_a_payer_with_exactly_what_is_needed_can_pay() -> None:
    async def work(world: World) -> None:
        plan = await world.deployer.plan("authorizer", world.program.pubkey(), SMALL)
        needed = compute_needed_lamports([plan])
        key = world.payer.pubkey()
        world.backend.engine.set_account(key, Account(needed - 1, b"", Pubkey.default()))
        with pytest.raises(InsufficientFunds, match="SOL"):
            await world.deployer.check_funds([plan])
        world.backend.engine.set_account(key, Account(needed, b"", Pubkey.default()))
        await world.put(SMALL)

    run(work)


def test_upgrades_grow_the_account_when_they_must() -> None:
    async def work(world: World) -> None:
        await world.put(SMALL)
        before = world.get_lamports()
        plan = await world.put(LARGE)
        assert plan.action is Action.UPGRADE
        assert plan.extension_bytes == len(LARGE) - len(SMALL) > loader.MIN_EXTENSION_BYTES
        assert before - world.get_lamports() == plan.rent_lamports + plan.fee_lamports
        assert world.read_deployed().data == LARGE
        back = await world.put(SMALL)
        assert (back.extension_bytes, back.rent_lamports) == (0, 0)
        assert world.read_deployed().holds(SMALL)
        assert len(world.read_deployed().data) == len(LARGE)
        longer = LARGE + bytes(8) + b"\1"  # by less than the least extension
        plan = await world.deployer.plan("authorizer", world.program.pubkey(), longer)
        assert plan.extension_bytes == loader.MIN_EXTENSION_BYTES

    run(work)


def test_what_was_cut_off_goes_on_where_it_stood() -> None:
    async def work(world: World) -> None:
        whole = await world.deployer.plan("authorizer", world.program.pubkey(), SMALL)
        world.backend.lose = lambda number: RpcUnavailable("no endpoint") if number >= 14 else None
        with pytest.raises(RpcUnavailable):
            await world.put(SMALL)
        assert world.get_lamports(loader.find_program_data(world.program.pubkey())) == 0
        world.backend.lose = lambda number: None
        plan = await world.put(SMALL)
        assert 0 < plan.num_writes < whole.num_writes  # which of those in flight land is chance
        assert plan.buffer_lamports == 0
        assert world.read_deployed().data == SMALL

    run(work)


def test_expired_transactions_are_sent_anew() -> None:
    async def work(world: World) -> None:
        def lose(number: int) -> Exception | None:
            return TransactionExpired("too old", signature="") if number % 3 == 0 else None

        world.backend.lose = lose
        await world.put(SMALL)
        assert world.read_deployed().data == SMALL

    run(work)


def test_an_endless_expiry_ends() -> None:
    async def work(world: World) -> None:
        world.backend.lose = lambda number: TransactionExpired("too old", signature="")
        with pytest.raises(TransactionExpired):
            await world.put(SMALL)
        assert world.backend.num_sends == 6

    run(work)


def test_only_the_authority_can_upgrade() -> None:
    async def work(world: World) -> None:
        await world.put(SMALL)
        stranger = world.make_deployer(Keypair())
        with pytest.raises(DeploymentRefused, match=str(world.payer.pubkey())):
            await stranger.plan("authorizer", world.program.pubkey(), LARGE)
        same = await stranger.plan("authorizer", world.program.pubkey(), SMALL)
        assert same.action is Action.NOTHING
        with pytest.raises(TransactionFailed) as caught:
            await stranger.set_authority("authorizer", world.program.pubkey(), None)
        assert caught.value.err == {"InstructionError": [1, "IncorrectAuthority"]}
        await world.deployer.set_authority("authorizer", world.program.pubkey(), None)
        assert world.read_deployed().authority is None
        with pytest.raises(DeploymentRefused, match="nobody"):
            await world.deployer.plan("authorizer", world.program.pubkey(), LARGE)

    run(work)


def test_payer_and_authority_may_be_two() -> None:
    async def work(world: World) -> None:
        authority = Keypair()
        deployer = world.make_deployer(world.payer, authority)
        before = world.get_lamports()
        plan = await world.put(SMALL, deployer)
        assert world.read_deployed().authority == authority.pubkey()
        assert before - world.get_lamports() == plan.rent_lamports + plan.fee_lamports
        await world.put(LARGE, deployer)
        assert world.read_deployed().data == LARGE
        with pytest.raises(DeploymentRefused):
            await world.put(SMALL)

    run(work)


def test_closed_buffers_give_their_rent_back() -> None:
    async def work(world: World) -> None:
        world.backend.lose = lambda number: RpcUnavailable("no endpoint") if number >= 5 else None
        for elf in (SMALL, LARGE):
            with pytest.raises(RpcUnavailable):
                await world.put(elf)
            world.backend.num_sends = 0
        world.backend.lose = lambda number: None
        buffers = [
            loader.find_buffer(world.payer.pubkey(), elf, world.payer.pubkey()) for elf in (SMALL, LARGE)
        ]
        held, before = sum(world.get_lamports(buffer) for buffer in buffers), world.get_lamports()
        assert await world.make_deployer(Keypair()).close_buffers() == 0
        assert await world.deployer.close_buffers() == held > 0
        assert world.get_lamports() == before + held - 2 * 5000
        assert [world.get_lamports(buffer) for buffer in buffers] == [0, 0]

    run(work)


def test_lamports_that_strangers_sent_are_no_obstacle() -> None:
    async def work(world: World) -> None:
        key = world.payer.pubkey()
        for address in (world.program.pubkey(), loader.find_buffer(key, SMALL, key)):
            world.backend.engine.airdrop(address, 10**6)
        await world.put(SMALL)
        assert world.read_deployed().data == SMALL

    run(work)


def test_the_format_is_what_the_cluster_takes() -> None:
    async def work(world: World) -> None:
        assert await choose_sbpf_version(world.backend) == 3
        damaged = SMALL[:-2000] + bytes([255]) * 2000
        with pytest.raises(DeploymentRefused, match="InvalidAccountData"):
            await world.put(damaged)

    run(work)
