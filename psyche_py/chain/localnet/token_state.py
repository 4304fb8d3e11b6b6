"""SPL token accounts and mints: bytes to fields, and fields to the ``jsonParsed`` shapes of a node.

Layouts: spl-token ``state.rs`` (Mint 82 bytes, Account 165, Multisig 355); Token-2022 keeps them and puts
extensions after byte 165. An account with extensions is shown unparsed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from solders.pubkey import Pubkey

TOKEN_PROGRAM = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022_PROGRAM = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
PROGRAM_NAMES = {TOKEN_PROGRAM: "spl-token", TOKEN_2022_PROGRAM: "spl-token-2022"}

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
    if owner not in PROGRAM_NAMES or len(data) < ACCOUNT_BYTES or len(data) == MULTISIG_BYTES:
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
    if owner not in PROGRAM_NAMES or len(data) == MULTISIG_BYTES or not (is_plain or is_extended):
        return None
    has_authority, authority, supply, decimals, is_initialized, has_freeze, freeze = _MINT.unpack_from(data)
    if not is_initialized:
        return None
    return Mint(_option(has_authority, authority), supply, decimals, _option(has_freeze, freeze))


def to_ui_amount(amount: int, decimals: int) -> dict[str, Any]:
    """UiTokenAmount: base units, a float, and the exact decimal without trailing zeros."""
    exact = Decimal(amount).scaleb(-decimals)
    text = f"{exact:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return {"amount": str(amount), "decimals": decimals, "uiAmount": float(exact), "uiAmountString": text}


def parse_token_data(owner: Pubkey, data: bytes, decimals: int | None) -> dict[str, Any] | None:
    """The ``data`` member for ``jsonParsed``, or None for what is shown unparsed.

    ``decimals`` of the account's mint; a token account whose mint is unknown is not parsed.
    """
    if len(data) not in (MINT_BYTES, ACCOUNT_BYTES, MULTISIG_BYTES) or owner not in PROGRAM_NAMES:
        return None
    kind, info = "multisig", _parse_multisig(data)
    if (mint := read_mint(owner, data)) is not None:
        kind, info = "mint", _parse_mint(mint)
    elif (account := read_token_account(owner, data)) is not None and decimals is not None:
        kind, info = "account", _parse_account(account, decimals)
    if info is None:
        return None
    return {"program": PROGRAM_NAMES[owner], "parsed": {"info": info, "type": kind}, "space": len(data)}


def _parse_mint(mint: Mint) -> dict[str, Any]:
    return {
        "mintAuthority": str(mint.mint_authority) if mint.mint_authority else None,
        "supply": str(mint.supply),
        "decimals": mint.decimals,
        "isInitialized": True,
        "freezeAuthority": str(mint.freeze_authority) if mint.freeze_authority else None,
    }


def _parse_account(account: TokenAccount, decimals: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "mint": str(account.mint),
        "owner": str(account.owner),
        "tokenAmount": to_ui_amount(account.amount, decimals),
        "state": account.state,
        "isNative": account.native_reserve is not None,
    }
    if account.delegate is not None:
        info["delegate"] = str(account.delegate)
        info["delegatedAmount"] = to_ui_amount(account.delegated_amount, decimals)
    if account.native_reserve is not None:
        info["rentExemptReserve"] = to_ui_amount(account.native_reserve, decimals)
    if account.close_authority is not None:
        info["closeAuthority"] = str(account.close_authority)
    return info


def _parse_multisig(data: bytes) -> dict[str, Any] | None:
    if len(data) != MULTISIG_BYTES or not data[2]:
        return None
    signers = [Pubkey(data[3 + 32 * i : 35 + 32 * i]) for i in range(min(data[1], 11))]
    return {
        "numRequiredSigners": data[0],
        "numValidSigners": data[1],
        "isInitialized": True,
        "signers": [str(signer) for signer in signers],
    }
