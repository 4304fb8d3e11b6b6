"""Who may join: authorizations of the authorizer program."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import click

from psyche_py.cli.common import (
    ClusterOptions,
    cluster_options,
    parse_pubkey,
    print_json,
    run_option,
    run_reading,
    run_with_client,
)
from psyche_py.errors import RunStateError, UsageError

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from psyche_py.chain.client import ProgramClient


def _get_grantee(text: str | None, permissionless: bool) -> Pubkey:
    """The wallet named, or the key that stands for everybody."""
    from solders.pubkey import Pubkey

    if permissionless == bool(text):
        raise UsageError("Say who.", "Give --authorizer PUBKEY for one wallet or --permissionless for all.")
    return Pubkey(bytes(32)) if permissionless else parse_pubkey(text or "", "--authorizer")


grantee_options = (
    click.option("--authorizer", metavar="PUBKEY", help="The wallet that is authorized (the grantee)."),
    click.option("--permissionless", is_flag=True, help="Everybody."),
)


@click.command()
@grantee_options[0]
@grantee_options[1]
@cluster_options
def create(cluster: ClusterOptions, authorizer: str | None, permissionless: bool) -> None:
    """Let a wallet join the runs whose join authority you are.

    \b
    Example:
      run-manager join-authorization-create --authorizer 7Np41oeYqPefeNQEHSv1UDhYrehxin3NStELsSKCT4K2
    """
    grantee = _get_grantee(authorizer, permissionless)

    async def work(client: ProgramClient) -> None:
        await client.authorization_create(grantee)

    run_with_client(cluster, work)
    click.echo("everybody may join" if permissionless else f"{grantee} may join")


@click.command()
@grantee_options[0]
@grantee_options[1]
@cluster_options
def delete(cluster: ClusterOptions, authorizer: str | None, permissionless: bool) -> None:
    """Switch an authorization off.

    \b
    Example:
      run-manager join-authorization-delete --permissionless
    """
    grantee = _get_grantee(authorizer, permissionless)

    async def work(client: ProgramClient) -> None:
        await client.authorization_set_active(grantee, False)

    run_with_client(cluster, work)
    click.echo("the authorization is off")


@click.command()
@click.option("--join-authority", required=True, metavar="PUBKEY", help="Who granted it.")
@grantee_options[0]
@grantee_options[1]
@cluster_options
def read(cluster: ClusterOptions, join_authority: str, authorizer: str | None, permissionless: bool) -> None:
    """Show an authorization as JSON.

    \b
    Example:
      run-manager join-authorization-read --join-authority OWNER --permissionless
    """
    grantor = parse_pubkey(join_authority, "--join-authority")
    grantee = _get_grantee(authorizer, permissionless)

    async def work(client: ProgramClient) -> None:
        for authorization in await client.list_authorizations(grantor):
            if authorization.grantee == grantee:
                names = [field.name for field in fields(authorization)]
                facts = {name: getattr(authorization, name) for name in names}
                facts["delegates"] = [str(key) for key in authorization.delegates]
                facts["scope"] = bytes(authorization.scope).decode("utf-8", errors="replace")
                return print_json(facts)
        raise RunStateError(
            f"{grantor} has not authorized {grantee}.", "Its owner can: join-authorization-create."
        )

    run_reading(cluster, work)


@click.command()
@click.option("--join-authority", required=True, metavar="PUBKEY", help="Who authorized you.")
@click.option("--delegates-clear", is_flag=True, help="Forget earlier delegates first.")
@click.option(
    "--delegates-added", multiple=True, metavar="PUBKEY", help="A wallet that may use it; repeatable."
)
@cluster_options
def delegate(
    cluster: ClusterOptions, join_authority: str, delegates_clear: bool, delegates_added: tuple[str, ...]
) -> None:
    """Let other wallets join with your authorization.

    \b
    Example:
      run-manager join-authorization-delegate --join-authority OWNER --delegates-added WALLET
    """
    grantor = parse_pubkey(join_authority, "--join-authority")
    delegates = [parse_pubkey(text, "--delegates-added") for text in delegates_added]

    async def work(client: ProgramClient) -> None:
        await client.authorization_delegate(grantor, delegates, clear=delegates_clear)

    run_with_client(cluster, work)
    click.echo(f"{len(delegates)} delegates added")


@click.command()
@run_option
@click.option("--authorizer", metavar="PUBKEY", help="The grantee that has made you its delegate.")
@cluster_options
def can_join(cluster: ClusterOptions, run_id: str, authorizer: str | None) -> None:
    """Tell whether your wallet may join a run; exits 4 when it may not.

    \b
    Example:
      run-manager can-join -r my-run -k wallet.json
    """
    grantee = parse_pubkey(authorizer, "--authorizer") if authorizer else None

    async def work(client: ProgramClient) -> None:
        run = await client.fetch_run(run_id)
        await client.check_authorization(run, grantee)
        click.echo(f"{client.payer.pubkey()} may join {run_id} ({run.account.run_state.name})")

    run_with_client(cluster, work)
