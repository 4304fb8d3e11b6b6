"""SPL token accounts and mints in the ``jsonParsed`` shapes of a node; extensions are shown unparsed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from solders.pubkey import Pubkey

from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from psyche_py.chain.token_state import (
    ACCOUNT_BYTES,
    MINT_BYTES,
    MULTISIG_BYTES,
    Mint,
    TokenAccount,
    read_mint,
    read_token_account,
)

PROGRAM_NAMES = {TOKEN_PROGRAM: "spl-token", TOKEN_2022_PROGRAM: "spl-token-2022"}


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
