"""``status``, ``list-runs``, ``json-dump-run``: reading, without a wallet, without torch or libp2p."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from psyche_py.cli.common import (
    ClusterOptions,
    cluster_options,
    output_option,
    print_json,
    run_option,
    run_reading,
)
from psyche_py.cli.dispute_view import describe_verification, show_verification

if TYPE_CHECKING:
    from psyche_py.chain.client import ProgramClient
    from psyche_py.chain.runs import RunHandle, RunListing
    from psyche_py.chain.treasury import Vault


def describe_run(run: RunHandle, now: float, vault: Vault | None = None) -> dict[str, Any]:
    """What people and scripts want to know of a run, and of its vault where that was asked for."""
    from psyche_py.coordinator.transition import compute_next_deadline

    account = run.account
    deadline = compute_next_deadline(account)
    return {
        "run_id": run.run_id,
        "name": account.metadata.name,
        "account": str(run.coordinator_account),
        "run_state": account.run_state.name,
        "pause_pending": account.is_pause_pending,
        "epoch": account.epoch,
        "step": account.step,
        "total_steps": account.config.total_steps,
        "height": account.current_round.height,
        "samples": account.current_round.data_index,
        "tokens": account.current_round.data_index * account.model.max_seq_len,
        "clients": [_describe_client(account, entry) for entry in account.entries],
        "pending": len(account.pending),
        "min_clients": account.config.min_clients,
        "init_min_clients": account.config.init_min_clients,
        "checkpoint": {
            "kind": account.model.checkpoint_kind.name,
            "place": account.model.checkpoint_repo,
        },
        "earning_rate_total_shared": account.future_rates.earning_rate_total_shared,
        "collateral_mint": str(run.treasurer.collateral_mint) if run.treasurer else None,
        "claimable": sum(entry.claimable for entry in account.entries),
        "vault": vault.amount if vault is not None else None,
        "verification": describe_verification(account),
        "seconds_to_deadline": round(deadline - now) if deadline is not None else None,
    }


def _describe_client(account: Any, entry: Any) -> dict[str, Any]:
    from solders.pubkey import Pubkey

    index = account.find_epoch_client(entry.signer)
    client = account.epoch_clients[index] if index is not None else None
    return {
        "signer": str(Pubkey(entry.signer)),
        "state": client.state.name if client is not None else "-",
        "is_pending": entry.active == account.next_active,
        "attested_rounds": client.attested_rounds if client is not None else 0,
        "earned": entry.earned,
        "refusals": client.refusals if client is not None else 0,
        "slashed": entry.slashed,
        "claimed": entry.claimed,
        "last_epoch": entry.last_epoch,
    }


def _show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    pause = ", pauses after this epoch" if facts["pause_pending"] else ""
    console.print(
        f"[bold]{facts['run_id']}[/bold]  {facts['run_state']}{pause}  epoch {facts['epoch']}  "
        f"step {facts['step']} of {facts['total_steps']}  round {facts['height']}  {facts['tokens']} tokens"
    )
    waiting = f"{facts['pending']} of {facts['init_min_clients']} clients are in for the next epoch"
    console.print(f"{waiting}; model from {facts['checkpoint']['kind']} ({facts['checkpoint']['place']})")
    if facts["vault"] is not None:
        console.print(f"the vault holds {facts['vault']}; clients may claim {facts['claimable']}")
    table = Table(box=None, pad_edge=False)
    for column in ("client", "state", "rounds", "earned", "slashed", "claimed"):
        table.add_column(column, justify="left" if column in ("client", "state") else "right", no_wrap=True)
    for client in facts["clients"]:
        table.add_row(
            client["signer"],
            client["state"] + (" +next" if client["is_pending"] else ""),
            str(client["attested_rounds"]),
            str(client["earned"]),
            str(client["slashed"]),
            str(client["claimed"]),
        )
    if facts["clients"]:
        console.print(table)
    show_verification(console, facts["verification"])


@click.command()
@run_option
@click.option("--watch", is_flag=True, help="Show it again at every change, until Ctrl-C.")
@output_option
@cluster_options
def status(cluster: ClusterOptions, run_id: str, watch: bool, output: str) -> None:
    """Show how a run stands: state, epoch, step, clients, points.

    \b
    Examples:
      run-manager status -r my-run
      run-manager status -r my-run --watch
      run-manager status -r my-run --output json
    """
    from psyche_py.coordinator.state import read_account

    shown: dict[str, Any] = {}

    def present(run: RunHandle, vault: Vault | None = None) -> None:
        facts = describe_run(run, time.time(), vault)
        # the time that is left changes by itself; a frame is for news
        if {**facts, "seconds_to_deadline": 0} == {**shown, "seconds_to_deadline": 0}:
            return
        shown.clear()
        shown.update(facts)
        if output == "json" and watch:
            click.echo(json.dumps(facts, default=str))
        elif output == "json":
            print_json(facts)
        else:
            _show(facts)

    async def work(client: ProgramClient) -> None:
        from dataclasses import replace

        run = await client.fetch_run(run_id)
        if not watch:
            present(run, await client.fetch_vault(run) if run.treasurer is not None else None)
            return
        async with client.backend.subscribe_account(run.coordinator_account) as updates:
            async for info in updates:
                present(replace(run, account=read_account(info.data)))
                if shown["run_state"] == "Finished":
                    return
                if output == "display":
                    click.echo()

    run_reading(cluster, work)


@click.command()
@output_option
@cluster_options
def list_runs(cluster: ClusterOptions, output: str) -> None:
    """List the runs on a cluster.

    \b
    Example:
      run-manager list-runs -u devnet
    """

    async def work(client: ProgramClient) -> RunListing:
        return await client.list_runs()

    listing = run_reading(cluster, work)
    for bad in listing.unreadable:
        click.echo(f"{bad.run_id}: {bad.error.what}", err=True)
    facts = [describe_run(run, time.time()) for run in listing.runs]
    if output == "json":
        return print_json(facts)
    if not facts:
        click.echo("There are no runs on this cluster.")
    for run in facts:
        clients = sum(client["state"] == "Healthy" for client in run["clients"])
        click.echo(
            f"{run['run_id']:<32}  {run['run_state']:<17}  epoch {run['epoch']:>4}  "
            f"step {run['step']:>7}/{run['total_steps']}  {clients:>3} clients"
        )
    return None


@click.command()
@run_option
@cluster_options
def json_dump_run(cluster: ClusterOptions, run_id: str) -> None:
    """Print everything that a run's account says, as JSON.

    \b
    Example:
      run-manager json-dump-run -r my-run > my-run.json
    """
    from dataclasses import asdict

    async def work(client: ProgramClient) -> RunHandle:
        return await client.fetch_run(run_id)

    run = run_reading(cluster, work)
    account = run.account
    facts = describe_run(run, time.time())
    facts["config"] = asdict(account.config)
    facts["model"] = {key: getattr(value, "name", value) for key, value in asdict(account.model).items()}
    facts["nonce"] = account.nonce
    facts["start_step"], facts["last_step"] = account.start_step, account.last_step
    print_json(facts)
