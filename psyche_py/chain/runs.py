"""What is known of a run on chain: its addresses, its account, and its treasurer if it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.accounts import CoordinatorInstance, Run
from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.errors import AccountNotFound, WrongCluster
from psyche_py.chain.pda import find_instance
from psyche_py.chain.port import AccountInfo, ChainBackend, Memcmp, TransactionResult
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.errors import ChainError

_JOIN_AUTHORITY_OFFSET = 8 + 1 + 32
ACCOUNTS_PER_REQUEST = 10
"""Run accounts are large (80 KB); this many are read with one request."""


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run as it stood when it was fetched. ``treasurer`` is None for a run that pays nobody."""

    run_id: str
    instance: Pubkey
    coordinator_account: Pubkey
    main_authority: Pubkey
    join_authority: Pubkey
    account: CoordinatorAccount
    treasurer: Run | None = None

    @property
    def owner(self) -> Pubkey:
        """The wallet that may change the run: its main authority, or the one behind its treasurer."""
        return self.treasurer.main_authority if self.treasurer is not None else self.main_authority

    @property
    def treasurer_run(self) -> Pubkey | None:
        """Address of the treasurer's Run: it is the coordinator run's main authority."""
        return self.main_authority if self.treasurer is not None else None


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run whose account this version cannot read, and why."""

    run_id: str
    coordinator_account: Pubkey
    error: ChainError


@dataclass(frozen=True, slots=True)
class RunListing:
    """All runs of a cluster, by run id."""

    runs: tuple[RunHandle, ...]
    unreadable: tuple[UnreadableRun, ...]


class RunReader:
    """Reads runs, and sends instructions of our programs; ``payer`` signs and pays."""

    def __init__(self, backend: ChainBackend, payer: Keypair) -> None:
        self.backend = backend
        self.payer = payer

    @property
    def coordinator_program_id(self) -> Pubkey:
        """Where the coordinator program lives."""
        return get_program_id("coordinator")

    async def fetch_run(self, run_id: str) -> RunHandle:
        """The run with this id.

        Raises UsageError for an impossible id, AccountNotFound when there is no such run, WrongCluster when
        our program is not there at all, ChainError when the account is not readable.
        """
        address, instance = await self.fetch_instance(run_id)
        keys = [instance.coordinator_account, instance.main_authority]
        account, authority = await self.backend.get_multiple_accounts(keys)
        return _make_handle(address, instance, account, authority)

    async def fetch_instance(self, run_id: str) -> tuple[Pubkey, CoordinatorInstance]:
        """Where a run id leads, with its address. Raises as `fetch_run`, which also reads the account."""
        address = find_instance(run_id)
        info = await self.backend.get_account(address)
        if info is None:
            await self._check_program()
            raise AccountNotFound(
                f"There is no run {run_id!r} on this cluster.",
                "See run-manager list-runs; -u chooses the cluster.",
                pubkey=str(address),
            )
        return address, CoordinatorInstance.decode(info)

    async def list_runs(self, *, join_authority: Pubkey | None = None) -> RunListing:
        """Every run of the cluster, or those whose clients ``join_authority`` authorizes."""
        wanted = [Memcmp(0, CoordinatorInstance.get_discriminator())]
        if join_authority is not None:
            wanted.append(Memcmp(_JOIN_AUTHORITY_OFFSET, bytes(join_authority)))
        instances = [
            (info.pubkey, CoordinatorInstance.decode(info))
            for info in await self.backend.get_program_accounts(self.coordinator_program_id, memcmp=wanted)
        ]
        if not instances:
            await self._check_program()
        runs: list[RunHandle] = []
        unreadable: list[UnreadableRun] = []
        for start in range(0, len(instances), ACCOUNTS_PER_REQUEST):
            batch = instances[start : start + ACCOUNTS_PER_REQUEST]
            keys = [i.coordinator_account for _, i in batch] + [i.main_authority for _, i in batch]
            found = await self.backend.get_multiple_accounts(keys)
            accounts, authorities = found[: len(batch)], found[len(batch) :]
            for (address, instance), account, authority in zip(batch, accounts, authorities, strict=True):
                try:
                    runs.append(_make_handle(address, instance, account, authority))
                except ChainError as error:
                    unreadable.append(UnreadableRun(instance.run_id, instance.coordinator_account, error))
        return RunListing(
            tuple(sorted(runs, key=lambda run: run.run_id)),
            tuple(sorted(unreadable, key=lambda run: run.run_id)),
        )

    async def _check_program(self) -> None:
        if await self.backend.get_account(self.coordinator_program_id) is None:
            raise WrongCluster(
                f"The coordinator program {self.coordinator_program_id} is not on this cluster.",
                "Choose the run's cluster with -u, or start a local one: run-manager localnet.",
            )

    async def _send(
        self, instructions: list[Instruction], label: str, *more_signers: Keypair
    ) -> TransactionResult:
        return await self.backend.send(instructions, [self.payer, *more_signers], label=label)

    def _build(self, name: str, run: RunHandle, role: str, args: Mapping[str, Any]) -> Instruction:
        """A coordinator instruction whose accounts are signer (called ``role``), instance, account."""
        accounts = {
            role: self.payer.pubkey(),
            "instance": run.instance,
            "coordinator_account": run.coordinator_account,
        }
        return get_program("coordinator").encode(name, accounts, args)


def _make_handle(
    address: Pubkey,
    instance: CoordinatorInstance,
    account: AccountInfo | None,
    authority: AccountInfo | None,
) -> RunHandle:
    if account is None or account.owner != get_program_id("coordinator"):
        raise AccountNotFound(
            f"The account {instance.coordinator_account} of run {instance.run_id!r} is gone.",
            "The run was closed.",
            pubkey=str(instance.coordinator_account),
        )
    is_funded = authority is not None and authority.owner == get_program_id("treasurer")
    return RunHandle(
        run_id=instance.run_id,
        instance=address,
        coordinator_account=instance.coordinator_account,
        main_authority=instance.main_authority,
        join_authority=instance.join_authority,
        account=CoordinatorAccount.from_bytes(account.data),
        treasurer=Run.decode(authority) if authority is not None and is_funded else None,
    )
