"""Who may join: authorizations of the authorizer program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from psyche_py.cli.expiry import parse_expiry, show_time
from psyche_py.errors import RunStateError, UsageError

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from psyche_py.chain.accounts import Authorization
    from psyche_py.chain.client import ProgramClient

PERMISSIONLESS = "permissionless"
"""How the grantee that stands for everybody is written."""


def _get_grantee(text: str | None, permissionless: bool) -> Pubkey | None:
    """The wallet named, or None for everybody. Raises UsageError."""
    from psyche_py.chain.authorization_calls import ANYBODY_KEY

    if permissionless == bool(text):
        raise UsageError("Say who.", "Give --authorizer PUBKEY for one wallet or --permissionless for all.")
    if permissionless:
        return None
    grantee = parse_pubkey(text or "", "--authorizer")
    if grantee == ANYBODY_KEY:
        raise UsageError("This key is nobody's wallet.", "To let everybody join, write --permissionless.")
    return grantee


def _name(grantee: Pubkey | None) -> str:
    from psyche_py.chain.authorization_calls import ANYBODY_KEY

    return PERMISSIONLESS if grantee in (None, ANYBODY_KEY) else str(grantee)


def _describe(authorization: Authorization, now: int) -> dict[str, Any]:
    """What people and scripts want to know of one."""
    expires = authorization.expires_unix_timestamp
    state = "active" if authorization.active else "off"
    if authorization.active and authorization.is_expired(now):
        state = "expired"
    return {
        "grantor": str(authorization.grantor),
        "grantee": _name(authorization.grantee),
        "scope": bytes(authorization.scope).decode("utf-8", errors="replace"),
        "state": state,
        "active": authorization.active,
        "expires": show_time(expires) if expires else "never",
        "expires_unix_timestamp": expires,
        "grantor_update_unix_timestamp": authorization.grantor_update_unix_timestamp,
        "delegates": [str(key) for key in authorization.delegates],
    }


grantee_options = (
    click.option("--authorizer", metavar="PUBKEY", help="The wallet that is authorized (the grantee)."),
    click.option("--permissionless", is_flag=True, help="Everybody."),
)


@click.command()
@grantee_options[0]
@grantee_options[1]
@click.option("--expires", default="never", show_default=True, metavar="WHEN", help="30d, 12h, 2026-12-31.")
@cluster_options
def create(cluster: ClusterOptions, authorizer: str | None, permissionless: bool, expires: str) -> None:
    """Let a wallet join the runs whose join authority you are, or change until when it may.

    \b
    Examples:
      run-manager join-authorization-create --permissionless
      run-manager join-authorization-create --authorizer 7Np41oeYqPefeNQEHSv1UDhYrehxin3NStELsSKCT4K2 \\
          --expires 30d
    """
    grantee = _get_grantee(authorizer, permissionless)
    parse_expiry(expires, 0)  # before a cluster is asked for its clock

    async def work(client: ProgramClient) -> int:
        now = (await client.backend.get_chain_time()).unix_timestamp
        moment = parse_expiry(expires, now)
        await client.authorization_create(grantee, expires_unix_timestamp=moment)
        return moment

    moment = run_with_client(cluster, work)
    until = f" until {show_time(moment)}" if moment else ""
    click.echo(f"{'everybody' if grantee is None else grantee} may join{until}")


@click.command()
@grantee_options[0]
@grantee_options[1]
@cluster_options
def revoke(cluster: ClusterOptions, authorizer: str | None, permissionless: bool) -> None:
    """Take an authorization back: who joined with it is not in the next epoch.

    What they have earned stays theirs.

    \b
    Example:
      run-manager join-authorization-revoke --permissionless
    """
    grantee = _get_grantee(authorizer, permissionless)

    async def work(client: ProgramClient) -> int:
        return await client.authorization_revoke(grantee)

    num_removed = run_with_client(cluster, work)
    click.echo(f"{_name(grantee)}: the authorization is off, {num_removed} clients taken out")


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
        authorization = await client.fetch_authorization(grantor, grantee)
        if authorization is None:
            raise RunStateError(
                f"{grantor} has not authorized {_name(grantee)}.", "Its owner can: join-authorization-create."
            )
        now = (await client.backend.get_chain_time()).unix_timestamp
        print_json(_describe(authorization, now))

    run_reading(cluster, work)


@click.command(name="list")
@click.option("--join-authority", required=True, metavar="PUBKEY", help="Who granted them.")
@output_option
@cluster_options
def list_all(cluster: ClusterOptions, join_authority: str, output: str) -> None:
    """List everybody that a join authority lets in, and until when.

    \b
    Example:
      run-manager join-authorization-list --join-authority OWNER
    """
    grantor = parse_pubkey(join_authority, "--join-authority")

    async def work(client: ProgramClient) -> list[dict[str, Any]]:
        now = (await client.backend.get_chain_time()).unix_timestamp
        found = [_describe(item, now) for item in await client.list_authorizations(grantor)]
        return sorted(found, key=lambda facts: (facts["grantee"], facts["scope"]))

    facts = run_reading(cluster, work)
    if output == "json":
        print_json(facts)
    elif not facts:
        click.echo(f"{grantor} has authorized nobody")
    else:
        _show_table(facts)


def _show_table(facts: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("grantee", "state", "expires", "delegates"):
        table.add_column(column, overflow="fold")
    for item in facts:
        table.add_row(item["grantee"], item["state"], item["expires"], str(len(item["delegates"])))
    Console(highlight=False).print(table)


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
        _, authorization = await client.find_join_authorization(run, grantee)
        expires = authorization.expires_unix_timestamp
        until = f", authorized until {show_time(expires)}" if expires else ""
        state = run.account.run_state.name
        click.echo(f"{client.payer.pubkey()} may join {run_id} ({state}){until}")

    run_with_client(cluster, work)
