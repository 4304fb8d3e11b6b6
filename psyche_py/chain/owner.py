"""What the owner of a run does: create, configure, pause, close."""

from __future__ import annotations

import struct
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    find_instance,
    find_treasurer_run,
)
from psyche_py.chain.port import TransactionResult
from psyche_py.chain.runs import RunHandle
from psyche_py.chain.token_calls import TokenCalls
from psyche_py.coordinator.layout import ACCOUNT_SIZE
from psyche_py.coordinator.model import CoordinatorConfig, Metadata, Model
from psyche_py.coordinator.pda import compute_treasurer_index
from psyche_py.errors import RunStateError

_PROGRESS = struct.Struct("<IHHQ")


class OwnerCalls(TokenCalls):
    """Mixed into ProgramClient; the payer is the owner."""

    async def create_run(
        self,
        run_id: str,
        *,
        main_authority: Pubkey | None = None,
        join_authority: Pubkey | None = None,
        client_version: str = "",
        collateral_mint: Pubkey | None = None,
        treasurer_index: int | None = None,
    ) -> RunHandle:
        """A new run, uninitialized. With ``collateral_mint`` the treasurer owns it and pays its clients.

        Both authorities are the payer's unless given. Raises RunStateError when the run id is taken.
        """
        instance = find_instance(run_id)
        if await self.backend.get_account(instance) is not None:
            raise RunStateError(f"There is a run {run_id!r} already.", "Choose another run id.")
        payer, account = self.payer.pubkey(), Keypair()
        args: dict[str, Any] = {
            "main_authority": main_authority or payer,
            "join_authority": join_authority or payer,
            "run_id": run_id,
            "client_version": client_version,
        }
        accounts = {
            "payer": payer,
            "coordinator_account": account.pubkey(),
            "system_program": SYSTEM_PROGRAM,
        }
        if collateral_mint is None:
            program = get_program("coordinator")
            create = program.encode("init_coordinator", {**accounts, "instance": instance}, args)
        else:
            index = compute_treasurer_index(run_id) if treasurer_index is None else treasurer_index
            run = find_treasurer_run(index)
            mint = await self.fetch_mint(collateral_mint)
            accounts |= {
                "run": run,
                "run_collateral": mint.find_token_account(run),
                "collateral_mint": collateral_mint,
                "coordinator_instance": instance,
                "coordinator_program": get_program_id("coordinator"),
                "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
                "token_program": mint.token_program,
            }
            create = get_program("treasurer").encode("run_create", accounts, {**args, "index": index})
        allocate = create_account(
            CreateAccountParams(
                from_pubkey=payer,
                to_pubkey=account.pubkey(),
                lamports=await self.backend.get_minimum_balance(ACCOUNT_SIZE),
                space=ACCOUNT_SIZE,
                owner=get_program_id("coordinator"),
            )
        )
        await self._send([allocate, create], f"create run {run_id}", account)
        return await self.fetch_run(run_id)

    async def update_run(
        self,
        run: RunHandle,
        *,
        metadata: Metadata | None = None,
        config: CoordinatorConfig | None = None,
        model: Model | None = None,
        progress: tuple[int, int, int] | None = None,
        client_version: str | None = None,
        earning_rate_total_shared: int | None = None,
        slashing_rate_per_client: int | None = None,
    ) -> list[TransactionResult]:
        """Change parts of a run; what is None stays.

        ``progress`` is (step, epoch, epoch_start_data_index). config, model and progress need a halted run.
        They go in one transaction and metadata in another: together they are too long for one.
        """
        results = []
        parts: dict[str, Any] = {
            "config": config.to_bytes() if config is not None else None,
            "model": model.to_bytes() if model is not None else None,
            "progress": _PROGRESS.pack(progress[0], progress[1], 0, progress[2]) if progress else None,
        }
        if any(part is not None for part in parts.values()):
            results.append(await self._update(run, "update", {**parts, "metadata": None}))
        if metadata is not None:
            only = {**dict.fromkeys(parts), "metadata": metadata.to_bytes()}
            results.append(await self._update(run, "update", only))
        if client_version is not None:
            args = {"client_version": client_version}
            results.append(await self._update(run, "update_client_version", args))
        if earning_rate_total_shared is not None or slashing_rate_per_client is not None:
            rates = {
                "earning_rate_total_shared": earning_rate_total_shared,
                "slashing_rate_per_client": slashing_rate_per_client,
            }
            results.append(await self._update(run, "set_future_epoch_rates", rates))
        return results

    async def set_paused(self, run: RunHandle, paused: bool) -> TransactionResult:
        """Pause a run (after its epoch, if one is running), or let it go on."""
        return await self._update(run, "set_paused", {"paused": paused})

    async def settle_debt(self, run: RunHandle, *, user: Pubkey, points: int) -> TransactionResult:
        """Take ``points`` off what ``user`` was slashed beyond its earnings, in a run without treasurer.

        In a funded run its bond does that. Raises ProgramError ClaimExceedsEarned (it owes less),
        WrongAuthority.
        """
        args = {"user": user, "points": points}
        instruction = self._build("settle_debt", run, "authority", args)
        return await self._send([instruction], f"settle debt in run {run.run_id}")

    async def free_coordinator(self, run: RunHandle, *, spill: Pubkey | None = None) -> TransactionResult:
        """Close a halted run that has no treasurer; its rent goes to ``spill`` (the payer)."""
        accounts = {
            "authority": self.payer.pubkey(),
            "spill": spill or self.payer.pubkey(),
            "instance": run.instance,
            "coordinator_account": run.coordinator_account,
        }
        instruction = get_program("coordinator").encode("free_coordinator", accounts, {})
        return await self._send([instruction], f"close run {run.run_id}")

    async def _update(self, run: RunHandle, name: str, args: dict[str, Any]) -> TransactionResult:
        instruction = (
            self._build(name, run, "authority", args)
            if run.treasurer is None
            else self._build_through_treasurer(run, args)
        )
        return await self._send([instruction], f"{name} of run {run.run_id}")

    def _build_through_treasurer(self, run: RunHandle, args: dict[str, Any]) -> Instruction:
        """The same change as the treasurer's ``run_update``, which takes all of them as options."""
        program = get_program("treasurer")
        every: dict[str, Any] = dict.fromkeys(program.get_argument_names("run_update"))
        for key, value in args.items():
            every[key if key in every else f"epoch_{key}"] = value
        accounts = {
            "authority": self.payer.pubkey(),
            "run": run.main_authority,
            "coordinator_instance": run.instance,
            "coordinator_account": run.coordinator_account,
            "coordinator_program": get_program_id("coordinator"),
        }
        return program.encode("run_update", accounts, every)
