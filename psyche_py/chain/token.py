"""The few token instructions we need (built by solana-py's ``spl``), for SPL Token and Token-2022 alike.

``token_program`` is always the program that owns the mint.
"""

from __future__ import annotations

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_py.chain.pda import TOKEN_PROGRAM, find_token_account
from psyche_py.chain.token_state import MINT_BYTES


def create_mint(
    payer: Pubkey,
    mint: Pubkey,
    authority: Pubkey,
    *,
    decimals: int,
    rent_lamports: int,
    token_program: Pubkey = TOKEN_PROGRAM,
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
                owner=token_program,
            )
        ),
        initialize_mint(
            InitializeMintParams(
                decimals=decimals, mint=mint, mint_authority=authority, program_id=token_program
            )
        ),
    ]


def create_token_account(
    payer: Pubkey, owner: Pubkey, mint: Pubkey, token_program: Pubkey = TOKEN_PROGRAM
) -> Instruction:
    """The associated token account of ``owner``; does nothing when it exists."""
    from spl.token.instructions import create_idempotent_associated_token_account

    instruction: Instruction = create_idempotent_associated_token_account(payer, owner, mint, token_program)
    return instruction


def mint_to(
    mint: Pubkey, owner: Pubkey, authority: Pubkey, amount: int, token_program: Pubkey = TOKEN_PROGRAM
) -> Instruction:
    """New tokens into the associated token account of ``owner``."""
    from spl.token.instructions import MintToParams
    from spl.token.instructions import mint_to as build

    instruction: Instruction = build(
        MintToParams(
            amount=amount,
            dest=find_token_account(owner, mint, token_program),
            mint=mint,
            mint_authority=authority,
            program_id=token_program,
        )
    )
    return instruction


def transfer_tokens(
    source: Pubkey,
    destination: Pubkey,
    owner: Pubkey,
    amount: int,
    *,
    mint: Pubkey,
    decimals: int,
    token_program: Pubkey = TOKEN_PROGRAM,
) -> Instruction:
    """``amount`` base units between two token accounts of ``mint``; ``owner`` of the source signs."""
    from spl.token.instructions import TransferCheckedParams, transfer_checked

    instruction: Instruction = transfer_checked(
        TransferCheckedParams(
            amount=amount,
            decimals=decimals,
            dest=destination,
            mint=mint,
            owner=owner,
            program_id=token_program,
            source=source,
        )
    )
    return instruction
