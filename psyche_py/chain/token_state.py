"""Mints and token accounts of SPL Token and Token-2022: bytes to fields.

Layouts: spl-token ``state.rs`` (Mint 82 bytes, Account 165, Multisig 355); Token-2022 keeps them and puts
extensions after byte 165, which are not read here: our programs judge them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.pubkey import Pubkey

from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM

TOKEN_PROGRAMS = (TOKEN_PROGRAM, TOKEN_2022_PROGRAM)

MINT_BYTES = 82
ACCOUNT_BYTES = 165
MULTISIG_BYTES = 355
ACCOUNT_TYPE_MINT, ACCOUNT_TYPE_ACCOUNT = 1, 2
ACCOUNT_STATES = ("uninitialized", "initialized", "frozen")

_ACCOUNT = struct.Struct("<32s32sQI32sBIQQI32s")
_MINT = struct.Struct("<I32sQBBI32s")


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """An initialised token account. ``amount`` in base units; ``native_reserve`` (wrapped SOL): lamports."""

    mint: Pubkey
    owner: Pubkey
    amount: int
    delegate: Pubkey | None
    state: str
    native_reserve: int | None
    delegated_amount: int
    close_authority: Pubkey | None


@dataclass(frozen=True, slots=True)
class Mint:
    """An initialised mint. ``supply`` in base units."""

    mint_authority: Pubkey | None
    supply: int
    decimals: int
    freeze_authority: Pubkey | None


def _option(tag: int, raw: bytes) -> Pubkey | None:
    return Pubkey(raw) if tag else None


def read_token_account(owner: Pubkey, data: bytes) -> TokenAccount | None:
    """The token account in ``data`` of an account that program ``owner`` owns; None when it is none."""
    if owner not in TOKEN_PROGRAMS or len(data) < ACCOUNT_BYTES or len(data) == MULTISIG_BYTES:
        return None
    if len(data) > ACCOUNT_BYTES and data[ACCOUNT_BYTES] != ACCOUNT_TYPE_ACCOUNT:
        return None
    mint, holder, amount, has_delegate, delegate, state, is_native, reserve, delegated, has_close, close = (
        _ACCOUNT.unpack_from(data)
    )
    if not 1 <= state <= 2:
        return None
    return TokenAccount(
        mint=Pubkey(mint),
        owner=Pubkey(holder),
        amount=amount,
        delegate=_option(has_delegate, delegate),
        state=ACCOUNT_STATES[state],
        native_reserve=reserve if is_native else None,
        delegated_amount=delegated,
        close_authority=_option(has_close, close),
    )


def read_mint(owner: Pubkey, data: bytes) -> Mint | None:
    """The mint in ``data`` of an account that program ``owner`` owns; None when it is none."""
    is_plain = len(data) == MINT_BYTES
    is_extended = len(data) > ACCOUNT_BYTES and data[ACCOUNT_BYTES] == ACCOUNT_TYPE_MINT
    if owner not in TOKEN_PROGRAMS or len(data) == MULTISIG_BYTES or not (is_plain or is_extended):
        return None
    has_authority, authority, supply, decimals, is_initialized, has_freeze, freeze = _MINT.unpack_from(data)
    if not is_initialized:
        return None
    return Mint(_option(has_authority, authority), supply, decimals, _option(has_freeze, freeze))
