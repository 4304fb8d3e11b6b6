"""Money: filling a run's vault, claiming what was earned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from psyche_py.cli.common import (
    ClusterOptions,
    cluster_options,
    output_option,
    print_json,
    run_option,
    run_with_client,
)
from psyche_py.errors import RunStateError

if TYPE_CHECKING:
    from psyche_py.chain.client import ProgramClient
    from psyche_py.chain.runs import RunHandle


@click.command()
@run_option
@click.option("--amount", required=True, type=click.IntRange(1), help="Base units of the collateral token.")
@click.option("--mint-first", is_flag=True, help="Mint them first (for test tokens that are yours).")
@cluster_options
def top_up(cluster: ClusterOptions, run_id: str, amount: int, mint_first: bool) -> None:
    """Put collateral into a run's vault, from which clients are paid.

    \b
    Example:
      run-manager treasurer-top-up -r my-run --amount 1000000
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        if mint_first and run.treasurer is not None:
            await client.mint_to(run.treasurer.collateral_mint, client.payer.pubkey(), amount)
        await _check_has_tokens(client, run, amount)
        await client.top_up(run, amount)
        click.echo(f"{amount} base units are in the vault of {run_id}")

    run_with_client(cluster, work)


async def _check_has_tokens(client: ProgramClient, run: RunHandle, amount: int) -> None:
    """Raises RunStateError when the wallet holds less than ``amount``."""
    mint = await client.fetch_collateral_mint(run)
    held = await client.fetch_token_amount(mint.find_token_account(client.payer.pubkey()))
    if held < amount:
        raise RunStateError(
            f"{client.payer.pubkey()} holds {held} base units of {mint.address}, not {amount}.",
            "Send it some; of a test token that is yours, --mint-first makes them.",
        )


@click.command()
@run_option
@click.option("--amount", type=click.IntRange(1), help="Points to claim [default: all].")
@output_option
@cluster_options
def claim_rewards(cluster: ClusterOptions, run_id: str, amount: int | None, output: str) -> None:
    """Claim what your wallet has earned in a run; one base unit a point.

    \b
    Example:
      run-manager claim-rewards -r my-run -k wallet.json
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        before = await client.fetch_claimable(run)
        await client.claim(run, amount)
        after = await client.fetch_claimable(run)
        facts = {
            "claimed": after.claimed - before.claimed,
            "claimed_in_all": after.claimed,
            "earned": after.earned,
            "slashed": after.slashed,
            "left": after.num_points,
        }
        if output == "json":
            print_json(facts)
        else:
            click.echo("  ".join(f"{name} {value}" for name, value in facts.items()))

    run_with_client(cluster, work)
