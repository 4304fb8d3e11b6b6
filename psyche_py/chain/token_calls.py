"""Mints and token accounts on chain: reading them, and the token set-up of a demo."""

from __future__ import annotations

from dataclasses import dataclass

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain import token
from psyche_py.chain.pda import TOKEN_PROGRAM, find_token_account
from psyche_py.chain.port import TransactionResult
from psyche_py.chain.runs import RunReader
from psyche_py.chain.token_state import MINT_BYTES, read_mint, read_token_account
from psyche_py.errors import RunStateError


@dataclass(frozen=True, slots=True)
class MintInfo:
    """A mint on chain. ``token_program`` owns it: SPL Token or Token-2022. ``supply`` is in base units."""

    address: Pubkey
    token_program: Pubkey
    decimals: int
    supply: int

    def find_token_account(self, owner: Pubkey) -> Pubkey:
        """The associated token account of ``owner``."""
        return find_token_account(owner, self.address, self.token_program)


class TokenCalls(RunReader):
    """Mixed into ProgramClient."""

    async def fetch_mint(self, mint: Pubkey) -> MintInfo:
        """The mint, of whichever token program it is. Raises RunStateError when there is none."""
        info = await self.backend.get_account(mint)
        found = read_mint(info.owner, info.data) if info is not None else None
        if info is None or found is None:
            raise RunStateError(
                f"{mint} is no mint on this cluster.", "Check the address; -u chooses the cluster."
            )
        return MintInfo(mint, info.owner, found.decimals, found.supply)

    async def fetch_token_amount(self, token_account: Pubkey) -> int:
        """Base units in a token account; 0 when there is no such account. Raises RunStateError."""
        info = await self.backend.get_account(token_account)
        if info is None:
            return 0
        found = read_token_account(info.owner, info.data)
        if found is None:
            raise RunStateError(f"{token_account} is no token account.", "Check the mint and the owner.")
        return found.amount

    async def create_mint(self, *, decimals: int = 0, token_program: Pubkey = TOKEN_PROGRAM) -> Pubkey:
        """A new token that the payer can mint, without extensions; for demos and tests."""
        mint, payer = Keypair(), self.payer.pubkey()
        instructions = token.create_mint(
            payer,
            mint.pubkey(),
            payer,
            decimals=decimals,
            rent_lamports=await self.backend.get_minimum_balance(MINT_BYTES),
            token_program=token_program,
        )
        await self._send(instructions, "create mint", mint)
        return mint.pubkey()

    async def mint_to(self, mint: Pubkey, owner: Pubkey, amount: int) -> TransactionResult:
        """New tokens for ``owner``, whose token account is made when it is missing."""
        payer, program = self.payer.pubkey(), (await self.fetch_mint(mint)).token_program
        instructions = [
            token.create_token_account(payer, owner, mint, program),
            token.mint_to(mint, owner, payer, amount, program),
        ]
        return await self._send(instructions, "mint tokens")
