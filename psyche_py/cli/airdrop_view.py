"""An airdrop as ``run-manager airdrop`` shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from psyche_py.cli.common import print_json

if TYPE_CHECKING:
    from psyche_py.chain.distributor import AirdropHandle, Redeemable


def show_moment(moment: int) -> str:
    """A unix second for people; one that no calendar has, as a number."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(moment)


def print_airdrop(found: AirdropHandle, output: str, lines: list[Redeemable] | None = None) -> None:
    """Everything that is known of an airdrop, and lines of its list."""
    account = found.account
    facts: dict[str, object] = {
        "id": found.id,
        "address": str(found.address),
        "authority": str(account.authority),
        "mint": str(account.collateral_mint),
        "metadata": account.metadata.decode("utf-8", errors="replace"),
        "merkle_root": account.merkle_root.hex(),
        "allocated": account.allocated_collateral_amount,
        "redeemed": account.total_claimed_collateral_amount,
        "still_promised": account.reserved_collateral_amount,
        "vault": str(found.vault),
        "vault_amount": found.vault_amount,
        "withdrawable": found.withdrawable_amount,
        "claims_frozen": account.claim_freeze,
        "guaranteed": account.is_guaranteed(found.now),
        "guaranteed_until_unix_timestamp": account.guaranteed_until_unix_timestamp,
    }
    rows = [
        {
            "nonce": line.allocation.nonce,
            "start": line.allocation.start,
            "duration": line.allocation.duration,
            "amount": line.allocation.amount,
            "vested": line.vested,
            "redeemed": line.claimed,
            "redeemable": line.amount,
        }
        for line in lines or ()
    ]
    if output == "json":
        print_json({**facts, "lines": rows} if lines is not None else facts)
        return
    facts["guaranteed_until"] = show_moment(account.guaranteed_until_unix_timestamp)
    del facts["guaranteed_until_unix_timestamp"]
    for name, value in facts.items():
        # the authority wrote the metadata: no control character of its reaches the terminal
        text = "".join(c if c.isprintable() else "?" for c in str(value))
        click.echo(f"{name.replace('_', ' '):16} {text}")
    for row in rows:
        click.echo("line  " + "  ".join(f"{name} {value}" for name, value in row.items()))
