"""``run-manager localnet``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--rpc-port", type=click.IntRange(0, 65535), default=8899, show_default=True)
@click.option("--ws-port", type=click.IntRange(0, 65535), help="[default: the RPC port plus one]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--ledger",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the chain in this directory, to go on after a restart.",
)
@click.option("--reset", is_flag=True, help="Forget what --ledger holds and begin anew.")
def localnet(rpc_port: int, ws_port: int | None, host: str, ledger: Path | None, reset: bool) -> None:
    """Run a local Solana validator with our programs at their ids.

    It speaks Solana's JSON-RPC and websocket, so that solana-py, anchorpy, web3.js and the Solana CLI work
    against it. Airdrops are free.

    \b
    Examples:
      run-manager localnet
      run-manager localnet --ledger ledger/ --reset
      solana -u localhost airdrop 10
    """
    from psyche_py.chain.localnet import LocalnetConfig, LocalnetInfo, serve

    def on_ready(info: LocalnetInfo) -> None:
        click.echo(f"JSON-RPC  {info.rpc_url}")
        click.echo(f"websocket {info.ws_url}")
        click.echo(
            f"genesis   {info.genesis_hash}, slot {info.slot}{' (restored)' if info.is_restored else ''}"
        )

    serve(LocalnetConfig(host, rpc_port, ws_port, ledger, reset), on_ready)
