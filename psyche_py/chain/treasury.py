"""Money: claim what was earned, fill a vault."""

from __future__ import annotations

from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain import token
from psyche_py.chain.accounts import Participant
from psyche_py.chain.anchor import get_program
from psyche_py.chain.errors import InsufficientFunds
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_participant
from psyche_py.chain.port import TransactionResult
from psyche_py.chain.runs import RunHandle
from psyche_py.chain.token_calls import MintInfo, TokenCalls
from psyche_py.errors import RunStateError, UsageError


@dataclass(frozen=True, slots=True)
class Claimable:
    """Points of one wallet; a point is worth one base unit of the run's collateral.

    ``num_points`` can be claimed now; ``vault_amount`` is what the vault holds to pay it.
    """

    earned: int
    slashed: int
    claimed: int
    vault_amount: int

    @property
    def num_points(self) -> int:
        """earned - slashed - claimed, never below zero."""
        return max(self.earned - self.slashed - self.claimed, 0)


class TreasuryCalls(TokenCalls):
    """Mixed into ProgramClient."""

    async def fetch_collateral_mint(self, run: RunHandle) -> MintInfo:
        """What the run pays in. Raises RunStateError when the run has no treasurer."""
        _get_treasurer_run(run)
        assert run.treasurer is not None
        return await self.fetch_mint(run.treasurer.collateral_mint)

    async def fetch_participant(self, run: RunHandle, user: Pubkey | None = None) -> Participant | None:
        """What ``user`` (the payer) has claimed; None when it never claimed. Raises RunStateError."""
        address = find_participant(_get_treasurer_run(run), user or self.payer.pubkey())
        info = await self.backend.get_account(address)
        return Participant.decode(info) if info is not None else None

    async def fetch_claimable(self, run: RunHandle, user: Pubkey | None = None) -> Claimable:
        """What ``user`` (the payer) can claim now. Raises RunStateError when the run has no treasurer."""
        user = user or self.payer.pubkey()
        treasurer_run, mint = _get_treasurer_run(run), await self.fetch_collateral_mint(run)
        participant = await self.fetch_participant(run, user)
        now = await self.fetch_run(run.run_id)
        index = now.account.find_entry(bytes(user))
        entry = now.account.entries[index] if index is not None else None
        return Claimable(
            earned=entry.earned if entry else 0,
            slashed=entry.slashed if entry else 0,
            claimed=participant.claimed_earned_points if participant else 0,
            vault_amount=await self.fetch_token_amount(mint.find_token_account(treasurer_run)),
        )

    async def claim(self, run: RunHandle, num_points: int | None = None) -> TransactionResult:
        """Pay the payer's points out to its token account, all of them unless ``num_points`` is given.

        Token account and participant record are made when they are missing. Raises RunStateError when there
        is nothing to claim or the run has no treasurer; ProgramError InsufficientPoints, InsufficientVault.
        """
        treasurer_run, mint = _get_treasurer_run(run), await self.fetch_collateral_mint(run)
        if num_points is None:
            num_points = (await self.fetch_claimable(run)).num_points
        if num_points <= 0:
            raise RunStateError(
                f"There is nothing to claim from run {run.run_id!r}.",
                "Points come at the end of each epoch.",
            )
        user = self.payer.pubkey()
        instructions = [token.create_token_account(user, user, mint.address, mint.token_program)]
        instructions += await self._create_participant(run, treasurer_run)
        accounts = {
            "user": user,
            "user_collateral": mint.find_token_account(user),
            "run": treasurer_run,
            "run_collateral": mint.find_token_account(treasurer_run),
            "collateral_mint": mint.address,
            "coordinator_account": run.coordinator_account,
            "participant": find_participant(treasurer_run, user),
            "token_program": mint.token_program,
        }
        program = get_program("treasurer")
        instructions.append(
            program.encode("participant_claim", accounts, {"claim_earned_points": num_points})
        )
        return await self._send(instructions, f"claim from run {run.run_id}")

    async def participant_create(self, run: RunHandle) -> TransactionResult | None:
        """Make the payer's claim record; None when there is one. ``claim`` does it by itself."""
        instructions = await self._create_participant(run, _get_treasurer_run(run))
        return await self._send(instructions, "create participant") if instructions else None

    async def _create_participant(self, run: RunHandle, treasurer_run: Pubkey) -> list[Instruction]:
        if await self.fetch_participant(run) is not None:
            return []
        user = self.payer.pubkey()
        accounts = {
            "payer": user,
            "user": user,
            "run": treasurer_run,
            "participant": find_participant(treasurer_run, user),
            "system_program": SYSTEM_PROGRAM,
        }
        return [get_program("treasurer").encode("participant_create", accounts, {})]

    async def top_up(self, run: RunHandle, amount: int) -> TransactionResult:
        """Move ``amount`` base units of collateral from the payer's token account into the run's vault.

        Raises InsufficientFunds, RunStateError without a treasurer, UsageError for less than 1.
        """
        if amount <= 0:
            raise UsageError(f"{amount} cannot be paid into a vault.", "Give a number above zero.")
        treasurer_run, mint = _get_treasurer_run(run), await self.fetch_collateral_mint(run)
        payer = self.payer.pubkey()
        source = mint.find_token_account(payer)
        held = await self.fetch_token_amount(source)
        if held < amount:
            raise InsufficientFunds(
                f"Wallet {payer} holds {held} of the run's collateral, not {amount}.",
                f"Get some of mint {mint.address} first.",
            )
        instruction = token.transfer_tokens(
            source,
            mint.find_token_account(treasurer_run),
            payer,
            amount,
            mint=mint.address,
            decimals=mint.decimals,
            token_program=mint.token_program,
        )
        return await self._send([instruction], f"top up run {run.run_id}")


def _get_treasurer_run(run: RunHandle) -> Pubkey:
    if run.treasurer_run is None:
        raise RunStateError(
            f"Run {run.run_id!r} has no treasurer: it pays nobody.",
            "A run that pays is made with run-manager create-run --new-mint, or --mint.",
        )
    return run.treasurer_run
