"""The few SPL token instructions we need (built by solana-py's ``spl``), and reading a token account."""

from __future__ import annotations

from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_py.chain.pda import TOKEN_PROGRAM, find_token_account
from psyche_py.chain.port import AccountInfo
from psyche_py.errors import ChainError

MINT_BYTES = 82
TOKEN_ACCOUNT_BYTES = 165


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Who holds how much of which mint, in base units."""

    mint: Pubkey
    owner: Pubkey
    amount: int


def read_token_account(info: AccountInfo) -> TokenAccount:
    """Raises ChainError when the account is no SPL token account."""
    if info.owner != TOKEN_PROGRAM or len(info.data) != TOKEN_ACCOUNT_BYTES:
        raise ChainError(f"{info.pubkey} is no token account.", "Check the mint and the owner.")
    return TokenAccount(
        Pubkey(info.data[:32]), Pubkey(info.data[32:64]), int.from_bytes(info.data[64:72], "little")
    )


def create_mint(
    payer: Pubkey, mint: Pubkey, authority: Pubkey, *, decimals: int, rent_lamports: int
) -> list[Instruction]:
    """A new mint at ``mint``, whose keypair must sign; ``authority`` can mint."""
    from spl.token.instructions import InitializeMintParams, initialize_mint

    return [
        create_account(
            CreateAccountParams(
                from_pubkey=payer,
                to_pubkey=mint,
                lamports=rent_lamports,
                space=MINT_BYTES,
                owner=TOKEN_PROGRAM,
            )
        ),
        initialize_mint(
            InitializeMintParams(
                decimals=decimals, mint=mint, mint_authority=authority, program_id=TOKEN_PROGRAM
            )
        ),
    ]


def create_token_account(payer: Pubkey, owner: Pubkey, mint: Pubkey) -> Instruction:
    """The associated token account of ``owner``; does nothing when it exists."""
    from spl.token.instructions import create_idempotent_associated_token_account

    instruction: Instruction = create_idempotent_associated_token_account(payer, owner, mint)
    return instruction


def mint_to(mint: Pubkey, owner: Pubkey, authority: Pubkey, amount: int) -> Instruction:
    """New tokens into the associated token account of ``owner``."""
    from spl.token.instructions import MintToParams
    from spl.token.instructions import mint_to as build

    instruction: Instruction = build(
        MintToParams(
            amount=amount,
            dest=find_token_account(owner, mint),
            mint=mint,
            mint_authority=authority,
            program_id=TOKEN_PROGRAM,
        )
    )
    return instruction


def transfer_tokens(source: Pubkey, destination: Pubkey, owner: Pubkey, amount: int) -> Instruction:
    """``amount`` base units between two token accounts of one mint; ``owner`` of the source signs."""
    from spl.token.instructions import TransferParams, transfer

    instruction: Instruction = transfer(
        TransferParams(amount=amount, dest=destination, owner=owner, program_id=TOKEN_PROGRAM, source=source)
    )
    return instruction
