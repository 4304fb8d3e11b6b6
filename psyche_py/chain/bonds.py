"""Bonds: collateral that a client stakes in a run, and loses when it is caught cheating (docs/money.md)."""

from __future__ import annotations

from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain import token
from psyche_py.chain.accounts import Bond
from psyche_py.chain.anchor import get_program
from psyche_py.chain.errors import InsufficientFunds
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_bond
from psyche_py.chain.port import TransactionResult
from psyche_py.chain.runs import RunHandle
from psyche_py.chain.token_calls import MintInfo
from psyche_py.chain.treasury import TreasuryCalls, get_coordinator_accounts, get_treasurer_run
from psyche_py.errors import RunStateError, UsageError

_ACCOUNTS_PER_REQUEST = 100


@dataclass(frozen=True, slots=True)
class BondStatus:
    """A wallet's bond in a run, in base units of its collateral.

    ``required`` is what the run asks for to join. ``debt`` are slashed points that its points did not
    pay for; anybody may have them taken out of the bond.
    """

    address: Pubkey
    amount: int
    required: int
    debt: int

    @property
    def missing(self) -> int:
        """What is still to be posted before the wallet may join; what pays a debt is not at stake."""
        return max(self.required + self.debt - self.amount, 0) if self.required else 0


class BondCalls(TreasuryCalls):
    """Mixed into ProgramClient. All raise RunStateError when the run has no treasurer."""

    async def fetch_bond(self, run: RunHandle, user: Pubkey | None = None) -> BondStatus:
        """The bond of ``user`` (the payer); an amount of 0 when it has none."""
        user = user or self.payer.pubkey()
        address = find_bond(get_treasurer_run(run), user)
        info = await self.backend.get_account(address)
        now = await self.fetch_run(run.run_id)
        index = now.account.find_entry(bytes(user))
        return BondStatus(
            address=address,
            amount=Bond.decode(info).amount if info is not None else 0,
            required=now.account.config.required_bond,
            debt=now.account.entries[index].debt if index is not None else 0,
        )

    async def check_bond(self, run: RunHandle) -> None:
        """Raises RunStateError when the run asks for a bond that the payer has not posted."""
        if run.account.config.required_bond == 0:
            return
        status = await self.fetch_bond(run)
        if status.missing:
            raise RunStateError(
                f"Run {run.run_id!r} asks for a bond of {status.required} base units of collateral; wallet "
                f"{self.payer.pubkey()} has posted {status.amount} and owes {status.debt}.",
                f"Post the rest: run-manager bond post -r {run.run_id} --amount {status.missing}",
            )

    async def post_bond(self, run: RunHandle, amount: int) -> TransactionResult:
        """Move ``amount`` base units from the payer's token account into its bond, which is made if missing.

        Raises InsufficientFunds; UsageError for less than 1.
        """
        if amount <= 0:
            raise UsageError(f"{amount} cannot be posted as a bond.", "Give a number above zero.")
        mint, user = await self.fetch_collateral_mint(run), self.payer.pubkey()
        held = await self.fetch_token_amount(mint.find_token_account(user))
        if held < amount:
            raise InsufficientFunds(
                f"Wallet {user} holds {held} of the run's collateral, not {amount}.",
                f"Get some of mint {mint.address} first.",
            )
        accounts = self._get_bond_accounts(run, mint, user)
        accounts |= {"run": get_treasurer_run(run), "system_program": SYSTEM_PROGRAM}
        instructions = [
            token.create_token_account(user, accounts["bond"], mint.address, mint.token_program),
            get_program("treasurer").encode("bond_post", accounts, {"amount": amount}),
        ]
        return await self._send(instructions, f"post a bond in run {run.run_id}")

    async def return_bond(self, run: RunHandle) -> TransactionResult:
        """Get the payer's bond back, less what it owes, and the rent of its accounts.

        Raises RunStateError when there is none; ProgramError BondInUse while the payer takes part or has
        joined.
        """
        mint, user = await self.fetch_collateral_mint(run), self.payer.pubkey()
        status = await self.fetch_bond(run)
        accounts = self._get_bond_accounts(run, mint, user)
        if await self.backend.get_account(status.address) is None:
            raise RunStateError(
                f"Wallet {user} has no bond in run {run.run_id!r}.", "There is nothing to return."
            )
        accounts["coordinator_account"] = run.coordinator_account
        instructions = [token.create_token_account(user, user, mint.address, mint.token_program)]
        if status.debt and status.amount:
            instructions.append(self._encode_slash(run, mint, user))
        instructions.append(get_program("treasurer").encode("bond_return", accounts, {}))
        return await self._send(instructions, f"return the bond in run {run.run_id}")

    async def slash_bond(self, run: RunHandle, user: Pubkey) -> TransactionResult:
        """Take what ``user`` owes out of its bond into the run's vault; anybody may.

        Raises ProgramError NothingToSlash when it owes nothing or its bond is empty.
        """
        mint = await self.fetch_collateral_mint(run)
        return await self._send([self._encode_slash(run, mint, user)], f"slash a bond in run {run.run_id}")

    async def slash_bonds(self, run: RunHandle) -> dict[Pubkey, int]:
        """Take what every client owes out of its bond; returns what was taken, by wallet."""
        treasurer_run, now = get_treasurer_run(run), await self.fetch_run(run.run_id)
        debtors = [(Pubkey(entry.signer), entry.debt) for entry in now.account.entries if entry.debt]
        taken: dict[Pubkey, int] = {}
        for start in range(0, len(debtors), _ACCOUNTS_PER_REQUEST):
            batch = debtors[start : start + _ACCOUNTS_PER_REQUEST]
            found = await self.backend.get_multiple_accounts(
                [find_bond(treasurer_run, user) for user, _ in batch]
            )
            for (user, debt), info in zip(batch, found, strict=True):
                amount = Bond.decode(info).amount if info is not None else 0
                if amount:
                    await self.slash_bond(run, user)
                    taken[user] = min(debt, amount)
        return taken

    def _get_bond_accounts(self, run: RunHandle, mint: MintInfo, user: Pubkey) -> dict[str, Pubkey]:
        bond = find_bond(get_treasurer_run(run), user)
        return {
            "user": user,
            "user_collateral": mint.find_token_account(user),
            "collateral_mint": mint.address,
            "bond": bond,
            "bond_collateral": mint.find_token_account(bond),
            "token_program": mint.token_program,
        }

    def _encode_slash(self, run: RunHandle, mint: MintInfo, user: Pubkey) -> Instruction:
        treasurer_run = get_treasurer_run(run)
        bond = find_bond(treasurer_run, user)
        accounts = {
            "run": treasurer_run,
            "run_collateral": mint.find_token_account(treasurer_run),
            "collateral_mint": mint.address,
            "bond": bond,
            "bond_collateral": mint.find_token_account(bond),
            **get_coordinator_accounts(run),
            "token_program": mint.token_program,
        }
        return get_program("treasurer").encode("bond_slash", accounts, {})
