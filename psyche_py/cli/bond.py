"""``run-manager bond``: collateral that a client stakes in a run, and loses when it is caught cheating."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from psyche_py.cli.common import (
    ClusterOptions,
    cluster_options,
    output_option,
    parse_pubkey,
    print_json,
    run_option,
    run_reading,
    run_with_client,
)
from psyche_py.errors import UsageError

if TYPE_CHECKING:
    from psyche_py.chain.bonds import BondStatus
    from psyche_py.chain.client import ProgramClient


@click.group()
def bond() -> None:
    """Stake collateral in a run, get it back, take what a cheater owes.

    A run may ask for a bond (required_bond in its configuration) so that a new wallet has something to lose.
    A client that is found guilty of cheating owes what the run slashes beyond its points, and anybody may
    move that out of its bond into the run's vault. Amounts are base units of the run's collateral.

    \b
    Examples:
      run-manager bond post -r my-run --amount 1000
      run-manager bond show -r my-run
      run-manager bond return -r my-run
      run-manager bond slash -r my-run
    """


def _show(status: BondStatus, output: str) -> None:
    facts = {
        "bond": status.amount,
        "required": status.required,
        "missing": status.missing,
        "debt": status.debt,
        "address": str(status.address),
    }
    if output == "json":
        print_json(facts)
    else:
        click.echo("  ".join(f"{name} {value}" for name, value in facts.items()))


@bond.command()
@run_option
@click.option(
    "--amount", type=click.IntRange(1), help="Base units to add [default: what the run still asks for]."
)
@output_option
@cluster_options
def post(cluster: ClusterOptions, run_id: str, amount: int | None, output: str) -> None:
    """Put collateral of your wallet behind your client.

    \b
    Example:
      run-manager bond post -r my-run --amount 1000 -k wallet.json
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        wanted = (await client.fetch_bond(run)).missing if amount is None else amount
        if wanted == 0:
            raise UsageError(
                f"Run {run_id!r} asks for no more than your bond already is.",
                "Give --amount to stake more.",
            )
        await client.post_bond(run, wanted)
        _show(await client.fetch_bond(run), output)

    run_with_client(cluster, work)


@bond.command()
@run_option
@click.option("--wallet", metavar="PUBKEY", help="Whose bond [default: your wallet's].")
@output_option
@cluster_options
def show(cluster: ClusterOptions, run_id: str, wallet: str | None, output: str) -> None:
    """Show a wallet's bond, what the run asks for, and what the wallet owes.

    \b
    Example:
      run-manager bond show -r my-run --wallet PUBKEY
    """
    user = parse_pubkey(wallet, "--wallet") if wallet is not None else None

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        _show(await client.fetch_bond(run, user), output)

    (run_reading if user is not None else run_with_client)(cluster, work)


@bond.command("return")
@run_option
@output_option
@cluster_options
def return_(cluster: ClusterOptions, run_id: str, output: str) -> None:
    """Get your bond back, less what you owe. Leave the run first and let its epoch end.

    \b
    Example:
      run-manager bond return -r my-run -k wallet.json
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        before = await client.fetch_bond(run)
        await client.return_bond(run)
        owed = min(before.debt, before.amount)
        facts = {"returned": before.amount - owed, "slashed": owed}
        if output == "json":
            print_json(facts)
        else:
            click.echo(f"returned {facts['returned']}  slashed {facts['slashed']}")

    run_with_client(cluster, work)


@bond.command()
@run_option
@output_option
@cluster_options
def slash(cluster: ClusterOptions, run_id: str, output: str) -> None:
    """Take what clients owe out of their bonds into the run's vault. Anybody may.

    \b
    Example:
      run-manager bond slash -r my-run
    """

    async def work(client: ProgramClient) -> None:
        taken = await client.slash_bonds(await client.fetch_run(run_id))
        if output == "json":
            print_json({"slashed": {str(user): amount for user, amount in taken.items()}})
            return
        for user, amount in taken.items():
            click.echo(f"{user}  {amount}")
        if not taken:
            click.echo("Nobody with a bond owes anything.")

    run_with_client(cluster, work)
