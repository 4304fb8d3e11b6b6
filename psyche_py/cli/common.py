"""Options that commands share: the cluster, the wallet, the run; and running trio code with them."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
import trio

from psyche_py.errors import UsageError

if TYPE_CHECKING:
    from solders.keypair import Keypair
    from solders.pubkey import Pubkey

    from psyche_py.chain.client import ProgramClient
    from psyche_py.chain.clusters import Cluster
    from psyche_py.chain.rpc import RpcBackend

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True)
class ClusterOptions:
    """What the user said about cluster and wallet."""

    url: str | None
    websocket_url: str | None
    keypair: str | None
    solana_config: Path | None
    commitment: str | None
    priority_fee: int

    def load_config(self) -> dict[str, str]:
        """The Solana CLI's config."""
        from psyche_py.chain.clusters import load_solana_config

        return load_solana_config(self.solana_config)

    def get_cluster(self) -> Cluster:
        """The cluster, by flag, environment, Solana config, default."""
        from psyche_py.chain.clusters import resolve_cluster

        cluster = resolve_cluster(self.url, self.websocket_url, os.environ, self.load_config())
        return replace(cluster, commitment=self.commitment) if self.commitment else cluster

    def is_public(self) -> bool:
        """Whether clients of its runs may be anywhere: not if the validator is in a private network."""
        from psyche_py.p2p.listening import is_public_host

        return is_public_host(urlsplit(self.get_cluster().http_urls[0]).hostname or "")

    def get_listen_host(self, chosen: str | None) -> str:
        """Where the mesh listens: what the user chose, else this machine alone when the cluster is on it."""
        return chosen or ("127.0.0.1" if self.get_cluster().is_local else "0.0.0.0")

    def load_wallet(self) -> Keypair:
        """The wallet. Raises KeypairError."""
        from psyche_py.chain.clusters import resolve_keypair_path
        from psyche_py.chain.keypair import load_keypair

        path, _ = resolve_keypair_path(self.keypair, os.environ, self.load_config())
        return load_keypair(path)


def cluster_options(function: F) -> F:
    """-u, --ws, -k, -C, --commitment, --priority-fee, as one ``cluster`` argument."""
    names = ("url", "websocket_url", "keypair", "solana_config", "commitment", "priority_fee")

    def wrapped(**kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in names}
        return function(cluster=ClusterOptions(**values), **kwargs)

    wrapped.__doc__ = function.__doc__
    wrapped.__name__ = function.__name__
    if hasattr(function, "__click_params__"):
        wrapped.__click_params__ = function.__click_params__  # type: ignore[attr-defined]
    for option in reversed(_CLUSTER_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


_CLUSTER_OPTIONS = [
    click.option(
        "-u",
        "--url",
        "--rpc",
        "url",
        metavar="URL_OR_MONIKER",
        help="Cluster: localhost, devnet, testnet, mainnet-beta (l, d, t, m) or URLs, separated by commas.",
    ),
    click.option("--ws", "--ws-rpc", "websocket_url", metavar="URL", help="Websocket URL, if not derived."),
    click.option(
        "-k",
        "--keypair",
        "--wallet-private-key-path",
        "keypair",
        metavar="PATH",
        help="Wallet: a keypair file of solana-keygen or `run-manager wallet new`.",
    ),
    click.option(
        "-C",
        "--config-file",
        "solana_config",
        type=click.Path(path_type=Path),
        help="Solana CLI config [default: ~/.config/solana/cli/config.yml].",
    ),
    click.option(
        "--commitment",
        type=click.Choice(["processed", "confirmed", "finalized"]),
        help="How settled a state must be [default: confirmed; processed on this machine].",
    ),
    click.option(
        "--priority-fee",
        type=click.IntRange(0),
        default=0,
        metavar="MICROLAMPORTS",
        help="Price per compute unit on a busy cluster.",
    ),
]

run_option = click.option("-r", "--run-id", required=True, metavar="NAME", help="The run.")
output_option = click.option(
    "--output", type=click.Choice(["display", "json"]), default="display", help="For people or for programs."
)


def make_backend(cluster: ClusterOptions) -> RpcBackend:
    """The RPC adapter for the chosen cluster."""
    from psyche_py.chain.rpc import RpcBackend

    return RpcBackend(cluster.get_cluster(), priority_fee_micro_lamports=cluster.priority_fee)


def run_with_client(
    cluster: ClusterOptions,
    work: Callable[[ProgramClient], Awaitable[T]],
    *,
    wallet: Keypair | None = None,
) -> T:
    """Run ``work`` with a client of the programs, paid and signed by the user's wallet."""
    from psyche_py.chain.client import ProgramClient

    payer = wallet if wallet is not None else cluster.load_wallet()

    async def main() -> T:
        async with make_backend(cluster) as backend:
            return await work(ProgramClient(backend, payer))

    return trio.run(main)


def run_reading(cluster: ClusterOptions, work: Callable[[ProgramClient], Awaitable[T]]) -> T:
    """Run ``work`` that signs nothing; no wallet is needed."""
    from solders.keypair import Keypair

    return run_with_client(cluster, work, wallet=Keypair())


def parse_pubkey(text: str, what: str) -> Pubkey:
    """A base58 public key. Raises UsageError."""
    from solders.pubkey import Pubkey

    try:
        return Pubkey.from_string(text)
    except ValueError:
        raise UsageError(f"{text!r} is no public key ({what}).", "It is 32 bytes in base58.") from None


def print_json(value: object) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, indent=2, default=str))
