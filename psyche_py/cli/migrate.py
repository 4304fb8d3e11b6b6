"""Bringing a run of an older release to this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from psyche_py.cli.common import ClusterOptions, cluster_options, run_option, run_with_client

if TYPE_CHECKING:
    from psyche_py.chain.client import ProgramClient


@click.command()
@run_option
@cluster_options
def migrate(cluster: ClusterOptions, run_id: str) -> None:
    """Bring a run that an older release made to this one. Anybody may; it costs a transaction fee.

    \b
    Example:
      run-manager migrate -r my-run -u devnet
    """

    async def work(client: ProgramClient) -> None:
        await client.migrate(run_id)
        run = await client.fetch_run(run_id)
        if run.treasurer is not None:
            await client.migrate_participants(run)
        click.echo(f"Run {run_id} is of version {int(run.account.record['version'])} now.")

    run_with_client(cluster, work)
