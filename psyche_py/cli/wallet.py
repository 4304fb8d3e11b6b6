"""``run-manager wallet``: keypair files, for people without the Solana tools."""

from __future__ import annotations

from pathlib import Path

import click

from psyche_py.cli.common import ClusterOptions, cluster_options, run_with_client

LAMPORTS_PER_SOL = 1_000_000_000


@click.group()
def wallet() -> None:
    """Make and show keypair files."""


@wallet.command()
@click.argument("path", type=click.Path(path_type=Path))
def new(path: Path) -> None:
    """Make a new keypair at PATH, readable by you alone.

    \b
    Example:
      run-manager wallet new wallet.json
    """
    from psyche_py.chain.keypair import new_keypair

    click.echo(str(new_keypair(path).pubkey()))


@wallet.command()
@click.argument("path", type=click.Path(path_type=Path))
def address(path: Path) -> None:
    """Print the public key of the keypair at PATH."""
    from psyche_py.chain.keypair import load_keypair

    click.echo(str(load_keypair(path).pubkey()))


@wallet.command()
@click.argument("sol", type=click.FloatRange(0, min_open=True))
@cluster_options
def airdrop(cluster: ClusterOptions, sol: float) -> None:
    """Ask a test cluster for SOL.

    \b
    Example:
      run-manager wallet airdrop 10 -u localhost -k wallet.json
    """

    async def work(client):  # type: ignore[no-untyped-def]
        await client.backend.request_airdrop(client.payer.pubkey(), round(sol * LAMPORTS_PER_SOL))

    run_with_client(cluster, work)
    click.echo(f"{sol} SOL have arrived.")
