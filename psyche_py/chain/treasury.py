"""Money: claim what was earned, fill a vault, and what the owner gets back at a run's end."""

from __future__ import annotations

from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain import token
from psyche_py.chain.accounts import Participant
from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.errors import InsufficientFunds
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_participant
from psyche_py.chain.port import TransactionResult
from psyche_py.chain.runs import RunHandle
from psyche_py.chain.token_calls import MintInfo, TokenCalls
from psyche_py.errors import RunStateError, UsageError

WITHDRAW_DELAY_SECONDS = 30 * 24 * 3600
"""The treasurer's: how long after a run's end its participants have the vault to themselves."""
_ACCOUNTS_PER_REQUEST = 100
_MIGRATIONS_PER_TRANSACTION = 4


@dataclass(frozen=True, slots=True)
class Claimable:
    """Points of one wallet; a point is worth one base unit of the run's collateral.

    ``num_points`` are owed: earned, not slashed, not claimed. ``vault_amount`` is there for everybody.
    """

    earned: int
    slashed: int
    claimed: int
    num_points: int
    vault_amount: int

    @property
    def num_payable(self) -> int:
        """What a claim would pay now: a short vault pays what it has, and the rest stays owed."""
        return min(self.num_points, self.vault_amount)


@dataclass(frozen=True, slots=True)
class Vault:
    """A run's vault, in base units. ``promised`` is what participants may still claim."""

    address: Pubkey
    mint: MintInfo
    amount: int
    promised: int

    @property
    def unpromised(self) -> int:
        """What is nobody's: the owner gets it 30 days after the run's end."""
        return max(self.amount - self.promised, 0)


class TreasuryCalls(TokenCalls):
    """Mixed into ProgramClient."""

    async def fetch_collateral_mint(self, run: RunHandle) -> MintInfo:
        """What the run pays in. Raises RunStateError when the run has no treasurer."""
        get_treasurer_run(run)
        assert run.treasurer is not None
        return await self.fetch_mint(run.treasurer.collateral_mint)

    async def fetch_participant(self, run: RunHandle, user: Pubkey | None = None) -> Participant | None:
        """What ``user`` (the payer) has claimed; None when it never claimed. Raises RunStateError."""
        address = find_participant(get_treasurer_run(run), user or self.payer.pubkey())
        info = await self.backend.get_account(address)
        return Participant.decode(info) if info is not None else None

    async def fetch_claimable(self, run: RunHandle, user: Pubkey | None = None) -> Claimable:
        """What ``user`` (the payer) can claim now. Raises RunStateError when the run has no treasurer."""
        user = user or self.payer.pubkey()
        treasurer_run, mint = get_treasurer_run(run), await self.fetch_collateral_mint(run)
        now = await self.fetch_run(run.run_id)
        index = now.account.find_entry(bytes(user))
        entry = now.account.entries[index] if index is not None else None
        return Claimable(
            earned=entry.earned if entry else 0,
            slashed=entry.slashed if entry else 0,
            claimed=entry.claimed if entry else 0,
            num_points=entry.claimable if entry else 0,
            vault_amount=await self.fetch_token_amount(mint.find_token_account(treasurer_run)),
        )

    async def fetch_vault(self, run: RunHandle) -> Vault:
        """What the run's vault holds and owes now. Raises RunStateError when the run has no treasurer."""
        mint = await self.fetch_collateral_mint(run)
        address = mint.find_token_account(get_treasurer_run(run))
        now = await self.fetch_run(run.run_id)
        amount = await self.fetch_token_amount(address)
        return Vault(address, mint, amount, sum(entry.claimable for entry in now.account.entries))

    async def claim(self, run: RunHandle, num_points: int | None = None) -> TransactionResult:
        """Pay the payer's points out to its token account, all of them unless ``num_points`` is given.

        A vault that holds less pays what it has; the rest stays claimable. Token account and participant
        record are made when they are missing. Raises RunStateError when there is nothing to claim or the run
        has no treasurer; ProgramError InsufficientPoints, InsufficientVault (it is empty).
        """
        treasurer_run, mint = get_treasurer_run(run), await self.fetch_collateral_mint(run)
        if num_points is None:
            num_points = (await self.fetch_claimable(run)).num_points
        if num_points <= 0:
            raise RunStateError(
                f"There is nothing to claim from run {run.run_id!r}.",
                "Points come at the end of each epoch.",
            )
        user = self.payer.pubkey()
        accounts = {
            "user": user,
            "user_collateral": mint.find_token_account(user),
            "run": treasurer_run,
            "run_collateral": mint.find_token_account(treasurer_run),
            "collateral_mint": mint.address,
            **get_coordinator_accounts(run),
            "participant": find_participant(treasurer_run, user),
            "token_program": mint.token_program,
        }
        program = get_program("treasurer")
        instructions = [
            token.create_token_account(user, user, mint.address, mint.token_program),
            *await self._prepare_participant(run, treasurer_run),
            program.encode("participant_claim", accounts, {"claim_earned_points": num_points}),
        ]
        return await self._send(instructions, f"claim from run {run.run_id}")

    async def participant_create(self, run: RunHandle) -> TransactionResult | None:
        """Make the payer's claim record; None when there is one. ``claim`` does it by itself."""
        instructions = await self._prepare_participant(run, get_treasurer_run(run))
        return await self._send(instructions, "create participant") if instructions else None

    async def _prepare_participant(self, run: RunHandle, treasurer_run: Pubkey) -> list[Instruction]:
        """What brings the payer's claim record to the newest layout."""
        participant = await self.fetch_participant(run)
        user = self.payer.pubkey()
        if participant is not None:
            return [] if participant.is_newest else [self._encode_migration(run, user)]
        accounts = {
            "payer": user,
            "user": user,
            "run": treasurer_run,
            "participant": find_participant(treasurer_run, user),
            "system_program": SYSTEM_PROGRAM,
        }
        return [get_program("treasurer").encode("participant_create", accounts, {})]

    def _encode_migration(self, run: RunHandle, user: Pubkey) -> Instruction:
        treasurer_run = get_treasurer_run(run)
        accounts = {
            "payer": self.payer.pubkey(),
            "user": user,
            "run": treasurer_run,
            **get_coordinator_accounts(run),
            "participant": find_participant(treasurer_run, user),
            "system_program": SYSTEM_PROGRAM,
        }
        return get_program("treasurer").encode("participant_migrate", accounts, {})

    async def migrate_participants(self, run: RunHandle) -> int:
        """Bring the claim records of a run's first version up to date; returns how many there were.

        Until then the coordinator takes what they claimed for unclaimed, and so for promised.
        """
        treasurer_run = get_treasurer_run(run)
        users = [Pubkey(entry.signer) for entry in run.account.entries if entry.earned]
        old = []
        for start in range(0, len(users), _ACCOUNTS_PER_REQUEST):
            batch = users[start : start + _ACCOUNTS_PER_REQUEST]
            found = await self.backend.get_multiple_accounts(
                [find_participant(treasurer_run, user) for user in batch]
            )
            for user, info in zip(batch, found, strict=True):
                if info is not None and not Participant.decode(info).is_newest:
                    old.append(user)
        for start in range(0, len(old), _MIGRATIONS_PER_TRANSACTION):
            batch = old[start : start + _MIGRATIONS_PER_TRANSACTION]
            await self._send([self._encode_migration(run, user) for user in batch], "migrate participants")
        return len(old)

    async def top_up(self, run: RunHandle, amount: int) -> TransactionResult:
        """Move ``amount`` base units of collateral from the payer's token account into the run's vault.

        Raises InsufficientFunds, RunStateError without a treasurer, UsageError for less than 1.
        """
        if amount <= 0:
            raise UsageError(f"{amount} cannot be paid into a vault.", "Give a number above zero.")
        treasurer_run, mint = get_treasurer_run(run), await self.fetch_collateral_mint(run)
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

    # ---- the owner, at the end ------------------------------------------------------------------------

    async def withdraw(self, run: RunHandle, amount: int) -> TransactionResult:
        """Move ``amount`` base units that nobody has earned from the vault to the payer's token account.

        Raises RunStateError without a treasurer, UsageError for less than 1; ProgramError RunNotFinished,
        WithdrawDelayNotOver, CollateralIsPromised, WrongAuthority.
        """
        if amount <= 0:
            raise UsageError(f"{amount} cannot be withdrawn.", "Give a number above zero.")
        mint = await self.fetch_collateral_mint(run)
        return await self._send(self._encode_withdraw(run, mint, amount), f"withdraw from {run.run_id}")

    def _encode_withdraw(self, run: RunHandle, mint: MintInfo, amount: int) -> list[Instruction]:
        treasurer_run, payer = get_treasurer_run(run), self.payer.pubkey()
        accounts = {
            "authority": payer,
            "authority_collateral": mint.find_token_account(payer),
            "run": treasurer_run,
            "run_collateral": mint.find_token_account(treasurer_run),
            "collateral_mint": mint.address,
            "coordinator_account": run.coordinator_account,
            "token_program": mint.token_program,
        }
        return [
            token.create_token_account(payer, payer, mint.address, mint.token_program),
            get_program("treasurer").encode("run_withdraw", accounts, {"amount": amount}),
        ]

    async def close_paying_run(self, run: RunHandle, *, spill: Pubkey | None = None) -> TransactionResult:
        """Close a finished run that owes nothing; its rent goes to ``spill`` (the payer).

        What its vault still holds is withdrawn in the same transaction, so that nobody can keep the run open
        by sending it a token. Raises ProgramError RunNotFinished, PointsNotClaimed, WithdrawDelayNotOver.
        """
        vault, treasurer_run = await self.fetch_vault(run), get_treasurer_run(run)
        accounts = {
            "authority": self.payer.pubkey(),
            "spill": spill or self.payer.pubkey(),
            "run": treasurer_run,
            "run_collateral": vault.address,
            **get_coordinator_accounts(run),
            "token_program": vault.mint.token_program,
        }
        instructions = []
        if vault.amount and not vault.promised:
            instructions += self._encode_withdraw(run, vault.mint, vault.amount)
        instructions.append(get_program("treasurer").encode("run_close", accounts, {}))
        return await self._send(instructions, f"close run {run.run_id}")


def get_coordinator_accounts(run: RunHandle) -> dict[str, Pubkey]:
    """The accounts of a call that goes on to the coordinator."""
    return {
        "coordinator_instance": run.instance,
        "coordinator_account": run.coordinator_account,
        "coordinator_program": get_program_id("coordinator"),
    }


def get_treasurer_run(run: RunHandle) -> Pubkey:
    """Address of the treasurer's run. Raises RunStateError when the run pays nobody."""
    if run.treasurer_run is None:
        raise RunStateError(
            f"Run {run.run_id!r} has no treasurer: it pays nobody.",
            "A run that pays is made with run-manager create-run --new-mint, or --mint.",
        )
    return run.treasurer_run
