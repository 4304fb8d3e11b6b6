"""Puts programs on a cluster through the upgradeable loader, and upgrades them.

Everything is read from the chain and nothing is kept here: a deployment that was cut off goes on where it
stood when it is started again by the same payer, because a build always travels in the same buffer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import trio
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from psyche_py.chain import upgradeable_loader as loader
from psyche_py.chain.errors import (
    DeploymentRefused,
    InsufficientFunds,
    TransactionExpired,
    TransactionFailed,
)
from psyche_py.chain.port import MAX_TRANSACTION_BYTES, ChainBackend, Memcmp
from psyche_py.chain.transaction import add_budget

SBPF_V3_FEATURE = Pubkey.from_string("5cC3foj77CWun58pC51ebHFUWavHWKarWyR5UUik7dnC")
MAX_SENDS = 6
"""Times that a transaction is sent anew after its blockhash has expired."""

MAX_PASSES = 4
"""Times that the buffer is read and what is missing in it is written."""

LAMPORTS_PER_SIGNATURE = 5000
SLOT_SECONDS = 0.4
WAIT_SLOTS = 50
_REMEDIES = {
    "InvalidInstructionData": "It takes no deployments at all, as a local validator on solders 0.26: "
    "programs/build/README.md tells how to rehearse one.",
    "InvalidAccountData": "It does not take programs of this SBPF version: choose the other with --sbpf.",
}
"""What the loader's own errors mean when our buffer is whole."""


class Action(Enum):
    """What a program needs."""

    DEPLOY = "deploy"
    UPGRADE = "upgrade"
    NOTHING = "is up to date"


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """One program, what it needs, and what that costs.

    ``authority`` may upgrade what is deployed now; None: nothing is, or nobody may. ``rent_lamports`` stay in
    the program's accounts, ``buffer_lamports`` come back when the build is in place, and ``fee_lamports`` is
    the most that signatures cost, without a priority fee.
    """

    name: str
    program_id: Pubkey
    elf: bytes
    action: Action
    authority: Pubkey | None = None
    num_writes: int = 0
    extension_bytes: int = 0
    rent_lamports: int = 0
    buffer_lamports: int = 0
    fee_lamports: int = 0


def compute_needed_lamports(plans: Sequence[ProgramPlan]) -> int:
    """What the payer must hold before the first of ``plans`` is carried out, one behind the other."""
    spent = most = 0
    for plan in plans:
        spent += plan.fee_lamports
        most = max(most, spent + plan.buffer_lamports)
        spent += plan.rent_lamports
        most = max(most, spent)
    return most


def compute_chunk_bytes(payer: Pubkey, authority: Pubkey) -> int:
    """Bytes of a build that one transaction carries, whatever it pays for priority."""
    buffer = loader.find_buffer(payer, b"", authority)
    empty = add_budget([loader.write(buffer, authority, 0, b"")], micro_lamports_per_unit=1)
    message = Message.new_with_blockhash(empty, payer, Hash.default())
    # the length of the instruction's data takes a second byte as soon as there is a chunk in it
    return MAX_TRANSACTION_BYTES - len(bytes(Transaction.new_unsigned(message))) - 1


async def choose_sbpf_version(backend: ChainBackend) -> int:
    """3 where the cluster has activated SBPF v3, else 0."""
    feature = await backend.get_account(SBPF_V3_FEATURE)
    return 3 if feature is not None and feature.data[:1] == b"\1" else 0


class ProgramDeployer:
    """See the module. ``payer`` pays, ``authority`` (the payer's, unless given) may upgrade later on.

    ``tell(program, num_written, num_writes)`` hears of progress. ``num_in_flight`` transactions at a time.
    Every method raises what ``ChainBackend.send`` does.
    """

    def __init__(
        self,
        backend: ChainBackend,
        payer: Keypair,
        authority: Keypair | None = None,
        *,
        tell: Callable[[str, int, int], None] | None = None,
        num_in_flight: int = 8,
    ) -> None:
        self._backend = backend
        self._payer = payer
        self._authority = authority or payer
        self._tell = tell or (lambda program, num_written, num_writes: None)
        self._num_in_flight = num_in_flight
        self._chunk_bytes = compute_chunk_bytes(payer.pubkey(), self._authority.pubkey())

    # ---- looking ------------------------------------------------------------------------------------

    async def plan(self, name: str, program_id: Pubkey, elf: bytes) -> ProgramPlan:
        """What is to be done for ``elf`` to run at ``program_id``.

        Raises DeploymentRefused when the program there is not upgradeable, or not by our authority.
        """
        deployed = await self._read_program(name, program_id, elf)
        if deployed is not None and deployed.holds(elf):
            return ProgramPlan(name, program_id, elf, Action.NOTHING, deployed.authority)
        capacity = len(elf) if deployed is None else max(len(deployed.data), len(elf))
        extension = 0
        if deployed is not None and len(elf) > len(deployed.data):
            extension = max(len(elf) - len(deployed.data), loader.MIN_EXTENSION_BYTES)
            capacity = len(deployed.data) + extension
        missing, held = await self._read_buffer(elf)
        rent = await self._get_rent(loader.PROGRAM_DATA_HEADER_BYTES + capacity)
        if deployed is None:
            rent += await self._get_rent(loader.PROGRAM_ACCOUNT_BYTES)
        else:
            rent -= await self._get_rent(loader.PROGRAM_DATA_HEADER_BYTES + len(deployed.data))
        num_signers = 2 if self._authority != self._payer else 1
        # opening the buffer, every write, what puts it in place; the program's own key, or the extension
        num_signatures = 1 + num_signers * (len(missing) + 1) + (deployed is None or extension > 0)
        return ProgramPlan(
            name,
            program_id,
            elf,
            Action.DEPLOY if deployed is None else Action.UPGRADE,
            None if deployed is None else deployed.authority,
            num_writes=len(missing),
            extension_bytes=extension,
            rent_lamports=rent,
            buffer_lamports=max(await self._get_rent(loader.BUFFER_HEADER_BYTES + len(elf)) - held, 0),
            fee_lamports=num_signatures * LAMPORTS_PER_SIGNATURE,
        )

    async def check_funds(self, plans: Sequence[ProgramPlan]) -> None:
        """Raises InsufficientFunds when the payer cannot pay for ``plans``."""
        needed = compute_needed_lamports(plans)
        info = await self._backend.get_account(self._payer.pubkey())
        held = info.lamports if info is not None else 0
        if held < needed:
            raise InsufficientFunds(
                f"{self._payer.pubkey()} holds {held / 1e9:.4f} SOL; this takes {needed / 1e9:.4f} SOL "
                "for a moment, the buffer's rent included.",
                "Send it the rest (on a test cluster: run-manager wallet airdrop), or deploy fewer programs "
                "at a time.",
            )

    async def _read_program(self, name: str, program_id: Pubkey, elf: bytes) -> loader.ProgramData | None:
        """What is deployed at ``program_id``; None when nothing is."""
        info = await self._backend.get_account(program_id)
        if info is None or (not info.data and not info.executable):
            return None  # lamports that somebody sent are no program
        if not loader.is_program(info):
            if info.executable and info.data == elf:
                return loader.ProgramData(0, None, elf)  # built into a local validator
            raise DeploymentRefused(
                f"{name}: {program_id} belongs to {info.owner}, not to the upgradeable loader.",
                "Programs that a local validator has built in cannot be replaced; on other clusters choose "
                "another address.",
            )
        data = await self._backend.get_account(loader.find_program_data(program_id))
        if data is None:
            raise DeploymentRefused(
                f"{name}: the program {program_id} was closed.",
                "A closed program's address is lost: build with another.",
            )
        deployed = loader.read_program_data(data)
        if deployed.authority != self._authority.pubkey() and not deployed.holds(elf):
            whose = f"only {deployed.authority} may" if deployed.authority else "nobody may any more"
            raise DeploymentRefused(
                f"{name}: {program_id} holds another build, and {whose} upgrade it.",
                "Name its keypair with --upgrade-authority, or build for an address of your own.",
            )
        return deployed

    async def _read_buffer(self, elf: bytes) -> tuple[list[int], int]:
        """(offsets of chunks that the buffer lacks, its lamports)."""
        address = self._find_buffer(elf)
        info = await self._backend.get_account(address)
        offsets = range(0, len(elf), self._chunk_bytes)
        if info is None:
            return list(offsets), 0
        if info.owner != loader.LOADER:
            return list(offsets), info.lamports  # lamports that somebody sent
        buffer = loader.read_buffer(info)
        if buffer.authority != self._authority.pubkey() or len(buffer.data) != len(elf):
            raise DeploymentRefused(f"The buffer {address} was changed by its authority.", "Close it first.")
        size = self._chunk_bytes
        return [at for at in offsets if buffer.data[at : at + size] != elf[at : at + size]], info.lamports

    # ---- doing --------------------------------------------------------------------------------------

    async def execute(self, plan: ProgramPlan, program: Keypair | None = None) -> None:
        """Carry ``plan`` out and check that the cluster has the build. A first deployment needs ``program``.

        Raises DeploymentRefused; ValueError when ``program`` is missing or another's.
        """
        if plan.action is Action.NOTHING:
            return
        if plan.action is Action.DEPLOY and (program is None or program.pubkey() != plan.program_id):
            raise ValueError(f"{plan.name}: the keypair of {plan.program_id} must sign its first deployment")
        await self._fill_buffer(plan)
        if plan.extension_bytes:
            await self._extend(plan)
        await self._put_in_place(plan, program)
        await self._wait_for(lambda: self._is_deployed(plan), f"{plan.name}: its new code")

    async def set_authority(self, name: str, program_id: Pubkey, new: Pubkey | None) -> None:
        """Hand the right to upgrade over; None gives it up for ever."""
        instruction = loader.set_upgrade_authority(program_id, self._authority.pubkey(), new)
        await self._send([instruction], f"set the upgrade authority of {name}", self._authority)

    async def close_buffers(self) -> int:
        """Close every buffer of our authority, whoever paid for it; the lamports that came back."""
        header = bytes([1, 0, 0, 0, 1]) + bytes(self._authority.pubkey())
        buffers = await self._backend.get_program_accounts(loader.LOADER, memcmp=[Memcmp(0, header)])
        for info in buffers:
            close = loader.close_buffer(info.pubkey, self._authority.pubkey(), self._payer.pubkey())
            await self._send([close], "close a buffer", self._authority)
        return sum(info.lamports for info in buffers)

    async def _fill_buffer(self, plan: ProgramPlan) -> None:
        address, authority = self._find_buffer(plan.elf), self._authority.pubkey()
        info = await self._backend.get_account(address)
        if info is None or info.owner != loader.LOADER:
            opened = loader.open_buffer(self._payer.pubkey(), plan.elf, authority, plan.buffer_lamports)
            await self._send(opened, f"open a buffer for {plan.name}")
        for _ in range(MAX_PASSES):
            missing, _ = await self._read_buffer(plan.elf)
            if not missing:
                return
            await self._write_chunks(plan, address, missing)
        raise DeploymentRefused(
            f"{plan.name}: the buffer {address} does not keep what is written into it.",
            "Start again; with another endpoint if it happens again.",
        )

    async def _write_chunks(self, plan: ProgramPlan, address: Pubkey, missing: list[int]) -> None:
        """Several at a time: each waits for its confirmation, and they are independent of one another."""
        queue, num_written = list(reversed(missing)), 0

        async def work() -> None:
            nonlocal num_written
            while queue:
                at = queue.pop()
                chunk = plan.elf[at : at + self._chunk_bytes]
                instruction = loader.write(address, self._authority.pubkey(), at, chunk)
                await self._send([instruction], f"write {plan.name}", self._authority)
                num_written += 1
                self._tell(plan.name, num_written, len(missing))

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self._num_in_flight):
                    nursery.start_soon(work)
        except BaseExceptionGroup as group:
            raise _get_first(group) from group

    async def _put_in_place(self, plan: ProgramPlan, program: Keypair | None) -> None:
        """Deploy or upgrade out of the full buffer."""
        payer, buffer, authority = self._payer.pubkey(), self._find_buffer(plan.elf), self._authority.pubkey()
        signers = [self._authority]
        if plan.action is Action.DEPLOY and program is not None:
            rent = await self._get_rent(loader.PROGRAM_ACCOUNT_BYTES)
            instructions = loader.deploy(payer, plan.program_id, buffer, authority, len(plan.elf), rent)
            signers.append(program)
        else:
            instructions = [loader.upgrade(plan.program_id, buffer, authority, payer)]
        try:
            await self._send(instructions, f"{plan.action.value} {plan.name}", *signers)
        except TransactionFailed as error:
            detail = error.err.get("InstructionError") if isinstance(error.err, dict) else None
            remedy = _REMEDIES.get(str(detail[1])) if detail is not None else None
            if detail is None or remedy is None:
                raise
            raise DeploymentRefused(
                f"{plan.name}: the cluster's loader refused the {plan.action.value}: {detail[1]}.",
                f"{remedy} Its code stays in a buffer; --close-buffers brings the rent back.",
            ) from error

    async def _extend(self, plan: ProgramPlan) -> None:
        instruction = loader.extend(plan.program_id, self._payer.pubkey(), plan.extension_bytes)
        slot = await self._send([instruction], f"extend {plan.name}")

        async def is_later() -> bool:
            return (await self._backend.get_chain_time()).slot > slot

        # the loader refuses an upgrade in the slot of the extension
        await self._wait_for(is_later, f"{plan.name}: a slot after {slot}")

    async def _is_deployed(self, plan: ProgramPlan) -> bool:
        deployed = await self._read_program(plan.name, plan.program_id, plan.elf)
        return deployed is not None and deployed.holds(plan.elf)

    async def _wait_for(self, is_there: Callable[[], Awaitable[bool]], what: str) -> None:
        """What we sent has landed; another endpoint may show it a little later."""
        for _ in range(WAIT_SLOTS):
            if await is_there():
                return
            await trio.sleep(SLOT_SECONDS)
        raise DeploymentRefused(
            f"{what} does not appear on the cluster.",
            "Somebody else with the same authority may be deploying: look, and start again.",
        )

    async def _send(self, instructions: Sequence[Instruction], label: str, *signers: Keypair) -> int:
        """The slot it landed in. An expired transaction has not landed and is sent anew."""
        unique = list(dict.fromkeys((self._payer, *signers)))
        for attempt in range(MAX_SENDS):
            try:
                return (await self._backend.send(instructions, unique, label=label)).slot
            except TransactionExpired:
                if attempt == MAX_SENDS - 1:
                    raise
        raise AssertionError("unreachable")

    def _find_buffer(self, elf: bytes) -> Pubkey:
        return loader.find_buffer(self._payer.pubkey(), elf, self._authority.pubkey())

    async def _get_rent(self, num_bytes: int) -> int:
        return await self._backend.get_minimum_balance(num_bytes)


def _get_first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
