"""Money: filling a run's vault, claiming what was earned, taking back what nobody has earned."""

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
from psyche_py.cli.expiry import show_time
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


def _show(facts: dict[str, int], output: str) -> None:
    if output == "json":
        print_json(facts)
    else:
        click.echo("  ".join(f"{name} {value}" for name, value in facts.items()))


@click.command()
@run_option
@click.option("--amount", type=click.IntRange(1), help="Points to claim [default: all].")
@output_option
@cluster_options
def claim_rewards(cluster: ClusterOptions, run_id: str, amount: int | None, output: str) -> None:
    """Claim what your wallet has earned in a run; one base unit a point.

    A vault that holds less pays what it has. The rest stays yours to claim when it is filled again.

    \b
    Example:
      run-manager claim-rewards -r my-run -k wallet.json
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        before = await client.fetch_claimable(run)
        await client.claim(run, amount)
        after = await client.fetch_claimable(run)
        paid = after.claimed - before.claimed
        facts = {
            "claimed": paid,
            "claimed_in_all": after.claimed,
            "earned": after.earned,
            "slashed": after.slashed,
            "left": after.num_points,
            "vault": after.vault_amount,
        }
        _show(facts, output)
        asked = before.num_points if amount is None else amount
        if output != "json" and paid < asked:
            click.echo(f"The vault was short: it paid {paid} of {asked}. The rest stays yours to claim.")

    run_with_client(cluster, work)


@click.command()
@run_option
@click.option("--amount", type=click.IntRange(1), help="Base units to withdraw [default: all of it].")
@output_option
@cluster_options
def withdraw(cluster: ClusterOptions, run_id: str, amount: int | None, output: str) -> None:
    """Take back collateral that nobody has earned, 30 days after your run has finished.

    What participants have earned and not claimed stays in the vault for as long as they like.

    \b
    Example:
      run-manager withdraw -r my-run -k owner.json
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        await _check_withdrawal_is_open(client, run)
        await client.migrate_participants(run)
        vault = await client.fetch_vault(run)
        taken = vault.unpromised if amount is None else amount
        if taken == 0:
            raise RunStateError(
                f"The vault of {run_id} holds {vault.amount} base units, and {vault.promised} are earned.",
                "There is nothing to withdraw.",
            )
        await client.withdraw(run, taken)
        after = await client.fetch_vault(run)
        facts = {"withdrawn": taken, "vault": after.amount, "promised": after.promised}
        _show(facts, output)

    run_with_client(cluster, work)


async def _check_withdrawal_is_open(client: ProgramClient, run: RunHandle) -> None:
    """The program checks it too, but cannot say until when to wait. Raises RunStateError."""
    from psyche_py.chain.treasury import WITHDRAW_DELAY_SECONDS
    from psyche_py.coordinator.layout import RunState

    if run.account.run_state is not RunState.Finished:
        return  # the program says so
    open_at = int(run.account.record["run_state_start_unix_timestamp"]) + WITHDRAW_DELAY_SECONDS
    if (await client.backend.get_chain_time()).unix_timestamp < open_at:
        raise RunStateError(
            f"Until {show_time(open_at)} the vault of {run.run_id} belongs to those who earned.",
            "Withdraw then: 30 days after the run has finished.",
        )
