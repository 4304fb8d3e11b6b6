"""What a run's owner does: create, configure, pause, pay, close."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from psyche_py.cli.common import ClusterOptions, cluster_options, parse_pubkey, run_option, run_with_client
from psyche_py.errors import RunStateError, UsageError

if TYPE_CHECKING:
    from psyche_py.chain.client import ProgramClient
    from psyche_py.coordinator.config import RunConfig


def read_run_config(path: Path) -> RunConfig:
    """A run configuration file. Raises UsageError or ConfigError."""
    from psyche_py.coordinator.config import load_run_config

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read the run configuration {path}: {error}.", "Check --config.") from None
    return load_run_config(text)


@click.command()
@run_option
@click.option(
    "--config",
    "config_path",
    required=True,
    type=click.Path(path_type=Path),
    help="Run configuration (TOML).",
)
@click.option("--permissionless", is_flag=True, help="Let everybody join.")
@click.option("--join-authority", metavar="PUBKEY", help="Who authorizes clients [default: your wallet].")
@click.option("--mint", metavar="PUBKEY", help="Pay clients in this token, from a vault.")
@click.option("--new-mint", is_flag=True, help="Make a new SPL token to pay in.")
@click.option("--earning-rate", type=click.IntRange(0), help="Points that an epoch's clients share.")
@click.option("--client-version", default="test", show_default=True, help="Client the run wants.")
@click.option("--name", default="", help="What people call the run.")
@click.option("--description", default="", help="What it is for.")
@click.option("--paused", is_flag=True, help="Do not start it yet.")
@cluster_options
def create_run(
    cluster: ClusterOptions,
    run_id: str,
    config_path: Path,
    permissionless: bool,
    join_authority: str | None,
    mint: str | None,
    new_mint: bool,
    earning_rate: int | None,
    client_version: str,
    name: str,
    description: str,
    paused: bool,
) -> None:
    """Create a run, configure it and start it.

    \b
    Examples:
      run-manager create-run -r my-run --config configs/tiny-cpu.toml --permissionless
      run-manager create-run -r paid --config run.toml --new-mint --earning-rate 1000000 -u devnet
    """
    if permissionless and join_authority:
        raise UsageError("--permissionless and --join-authority exclude each other.", "Give one of them.")
    if mint and new_mint:
        raise UsageError("--mint and --new-mint exclude each other.", "Give one of them.")
    if earning_rate and not (mint or new_mint):
        raise UsageError("--earning-rate pays from a vault.", "Give --mint PUBKEY or --new-mint too.")
    run_config = read_run_config(config_path)
    authority = parse_pubkey(join_authority, "--join-authority") if join_authority else None
    token = parse_pubkey(mint, "--mint") if mint else None

    async def work(client: ProgramClient) -> None:
        from psyche_py.coordinator.model import Metadata

        await _check_is_new(client, run_id)
        collateral = await client.create_mint() if new_mint else token
        run = await client.create_run(
            run_id,
            client_version=client_version,
            join_authority=authority,
            collateral_mint=collateral,
        )
        await client.update_run(
            run,
            config=run_config.config,
            model=run_config.model,
            metadata=Metadata(name=name or run_id, description=description),
            earning_rate_total_shared=earning_rate,
        )
        if permissionless:
            await client.authorization_create()
        if not paused:
            await client.set_paused(run, False)
        click.echo(f"run {run_id} created, account {run.coordinator_account}")
        if collateral is not None:
            click.echo(f"collateral mint {collateral}; fill the vault with: run-manager treasurer-top-up")

    run_with_client(cluster, work)


async def _check_is_new(client: ProgramClient, run_id: str) -> None:
    """Before anything is made for it. Raises RunStateError."""
    from psyche_py.chain.errors import AccountNotFound

    try:
        await client.fetch_run(run_id)
    except AccountNotFound:
        return
    raise RunStateError(f"There is a run {run_id!r} already.", "Choose another run id.")


@click.command()
@run_option
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Run configuration (TOML).")
@click.option("--client-version", help="Client the run wants.")
@click.option("--restart-from-step", type=click.IntRange(1), help="Set the step, keep epoch and data.")
@cluster_options
def update_config(
    cluster: ClusterOptions,
    run_id: str,
    config_path: Path | None,
    client_version: str | None,
    restart_from_step: int | None,
) -> None:
    """Change the configuration of a paused run.

    \b
    Example:
      run-manager set-paused -r my-run && run-manager update-config -r my-run --config run.toml
    """
    if config_path is None and client_version is None and restart_from_step is None:
        raise UsageError(
            "There is nothing to change.", "Give --config, --client-version or --restart-from-step."
        )
    run_config = read_run_config(config_path) if config_path is not None else None

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        progress = None
        if restart_from_step is not None:
            account = run.account
            progress = (restart_from_step, account.epoch, account.epoch_start_data_index)
        await client.update_run(
            run,
            config=run_config.config if run_config else None,
            model=run_config.model if run_config else None,
            progress=progress,
            client_version=client_version,
        )
        click.echo(f"run {run_id} updated")

    run_with_client(cluster, work)


@click.command()
@run_option
@click.option("--resume", is_flag=True, help="Let the run go on.")
@cluster_options
def set_paused(cluster: ClusterOptions, run_id: str, resume: bool) -> None:
    """Pause a run when its epoch has ended, or resume it.

    \b
    Examples:
      run-manager set-paused -r my-run
      run-manager set-paused -r my-run --resume
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        await client.set_paused(run, not resume)
        run = await client.fetch_run(run_id)
        pending = ", pauses when its epoch has ended" if run.account.is_pause_pending else ""
        click.echo(f"run {run_id}: {run.account.run_state.name}{pending}")

    run_with_client(cluster, work)


@click.command()
@run_option
@click.option("--earning-rate-total-shared", type=click.IntRange(0), help="Points an epoch's clients share.")
@click.option("--slashing-rate-per-client", type=click.IntRange(0), help="Points an ejected client loses.")
@cluster_options
def set_rates(
    cluster: ClusterOptions,
    run_id: str,
    earning_rate_total_shared: int | None,
    slashing_rate_per_client: int | None,
) -> None:
    """Set what the epochs from the next on pay.

    \b
    Example:
      run-manager set-future-epoch-rates -r my-run --earning-rate-total-shared 1000000
    """
    if earning_rate_total_shared is None and slashing_rate_per_client is None:
        raise UsageError("There is nothing to change.", "Give one of the two rates.")

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        await client.update_run(
            run,
            earning_rate_total_shared=earning_rate_total_shared,
            slashing_rate_per_client=slashing_rate_per_client,
        )
        click.echo(f"run {run_id}: rates set for the next epochs")

    run_with_client(cluster, work)


@click.command()
@run_option
@cluster_options
def close_run(cluster: ClusterOptions, run_id: str) -> None:
    """Close a run and get its rent back.

    It must be paused or finished. One that pays must be finished, and owe its clients nothing; what its
    vault still holds is withdrawn.

    \b
    Example:
      run-manager close-run -r my-run
    """

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        if run.treasurer is None:
            await client.free_coordinator(run)
        else:
            await client.migrate_participants(run)
            await client.close_paying_run(run)
        click.echo(f"run {run_id} closed")

    run_with_client(cluster, work)


@click.command()
@run_option
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--ms-interval", type=click.IntRange(0), default=1000, show_default=True)
@cluster_options
def tick(cluster: ClusterOptions, run_id: str, count: int, ms_interval: int) -> None:
    """Send ticks by hand; clients send them by themselves.

    \b
    Example:
      run-manager tick -r my-run --count 10
    """

    async def work(client: ProgramClient) -> None:
        import trio

        run = await client.fetch_run(run_id)
        for number in range(count):
            await client.tick(run)
            if number + 1 < count:
                await trio.sleep(ms_interval / 1000)
        run = await client.fetch_run(run_id)
        click.echo(f"{run.account.run_state.name}, epoch {run.account.epoch}, step {run.account.step}")

    run_with_client(cluster, work)
