"""``run-manager airdrop``: give a token to the wallets of a list, and redeem from one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psyche_py.cli.airdrop_view import print_airdrop, show_moment
from psyche_py.cli.common import (
    ClusterOptions,
    F,
    cluster_options,
    output_option,
    parse_pubkey,
    print_json,
    run_reading,
    run_with_client,
)
from psyche_py.errors import RunStateError, UsageError

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from psyche_py.chain.allocation_tree import AllocationTree
    from psyche_py.chain.allocations import Allocation
    from psyche_py.chain.client import ProgramClient
    from psyche_py.chain.distributor import AirdropHandle, Redeemable

CLAIM_DAYS = 90
"""How long a guarantee lasts beyond the last vesting, unless --guaranteed-until says otherwise."""
_NO_GUARANTEE = 0

id_option = click.option(
    "--id", "airdrop_id", required=True, type=click.IntRange(0, 2**64 - 1), help="The airdrop's number."
)


def allocations_option(*, required: bool, text: str) -> Callable[[F], F]:
    """--allocations: the airdrop's list."""
    return click.option(
        "--allocations",
        required=required,
        metavar="CSV",
        type=click.Path(path_type=Path),
        help=f"{text} Columns wallet,nonce,start,duration,amount.",
    )


def _load_tree(path: Path) -> AllocationTree:
    from psyche_py.chain.allocation_tree import AllocationTree
    from psyche_py.chain.allocations import read_allocations

    return AllocationTree(read_allocations(path))


def _parse_moment(text: str) -> int:
    """Unix seconds of --guaranteed-until. Raises UsageError."""
    from psyche_py.chain.allocations import I64_MAX, I64_MIN, parse_unix_timestamp

    try:
        moment = parse_unix_timestamp(text)
    except (ValueError, OverflowError):
        moment = I64_MAX + 1
    if not I64_MIN <= moment <= I64_MAX:
        raise UsageError(
            f"{text!r} is no moment (--guaranteed-until).", "Give unix seconds or ISO 8601, as 2027-06-30."
        )
    return moment


@click.group()
def airdrop() -> None:
    """Give a token to the wallets of a list, as their shares vest.

    \b
    Examples:
      run-manager airdrop create --id 7 --allocations list.csv --mint MINT --fund
      run-manager airdrop show --id 7 --allocations list.csv --wallet WALLET
      run-manager airdrop redeem --id 7 --allocations list.csv -k wallet.json
    """


@airdrop.command()
@id_option
@allocations_option(required=True, text="Who gets what.")
@click.option("--mint", metavar="PUBKEY", help="The token.")
@click.option("--new-mint", is_flag=True, help="Make a test token and fund the airdrop with it.")
@click.option("--fund", is_flag=True, help="Put all that the list promises into the vault.")
@click.option(
    "--guaranteed-until",
    metavar="MOMENT",
    help="Until then you cannot take back what the list promises, nor change it: unix seconds or ISO 8601 "
    f"[default: {CLAIM_DAYS} days after all has vested].",
)
@click.option("--no-guarantee", is_flag=True, help="You can take everything back at any time.")
@click.option("--metadata", default="", metavar="TEXT", help="What it is for; up to 300 bytes.")
@output_option
@cluster_options
def create(
    cluster: ClusterOptions,
    airdrop_id: int,
    allocations: Path,
    mint: str | None,
    new_mint: bool,
    fund: bool,
    guaranteed_until: str | None,
    no_guarantee: bool,
    metadata: str,
    output: str,
) -> None:
    """Create an airdrop; its authority is your wallet.

    \b
    Examples:
      run-manager airdrop create --id 7 --allocations list.csv --mint MINT --fund -k wallet.json
      run-manager airdrop create --id 8 --allocations list.csv --new-mint --guaranteed-until 2028-01-01
    """
    if new_mint == bool(mint):
        raise UsageError("Say which token.", "Give --mint PUBKEY, or --new-mint for a test token.")
    if no_guarantee and guaranteed_until:
        raise UsageError("--no-guarantee and --guaranteed-until contradict each other.", "Give one of them.")
    given_mint = parse_pubkey(mint, "--mint") if mint else None
    moment = _parse_moment(guaranteed_until) if guaranteed_until else None
    tree = _load_tree(allocations)

    async def work(client: ProgramClient) -> AirdropHandle:
        await client.check_airdrop_id_is_free(airdrop_id)
        until = _NO_GUARANTEE if no_guarantee else moment
        if until is None:
            until = await _choose_guarantee(client, tree)
        token = given_mint
        if token is None:
            token = await client.create_mint()
            await client.mint_to(token, client.payer.pubkey(), tree.total_amount)
        return await client.create_airdrop(
            airdrop_id,
            token,
            tree,
            guaranteed_until=until,
            metadata=metadata.encode(),
            fund=fund or new_mint,
        )

    print_airdrop(run_with_client(cluster, work), output)


async def _choose_guarantee(client: ProgramClient, tree: AllocationTree) -> int:
    """Time enough to redeem after everything has vested."""
    from psyche_py.chain.allocations import I64_MAX

    now = (await client.backend.get_chain_time()).unix_timestamp
    return min(max(now, tree.last_end) + CLAIM_DAYS * 24 * 3600, I64_MAX)


@airdrop.command()
@id_option
@allocations_option(required=False, text="Check that this is its list.")
@click.option("--wallet", metavar="PUBKEY", help="Show what this wallet gets; needs --allocations.")
@output_option
@cluster_options
def show(
    cluster: ClusterOptions, airdrop_id: int, allocations: Path | None, wallet: str | None, output: str
) -> None:
    """Show an airdrop, and what a wallet has vested and redeemed.

    \b
    Examples:
      run-manager airdrop show --id 7
      run-manager airdrop show --id 7 --allocations list.csv --wallet WALLET --output json
    """
    if wallet and allocations is None:
        raise UsageError("What a wallet gets is in the list.", "Give --allocations with --wallet.")
    owner = parse_pubkey(wallet, "--wallet") if wallet else None
    tree = _load_tree(allocations) if allocations else None

    async def work(client: ProgramClient) -> tuple[AirdropHandle, list[Redeemable]]:
        found = await client.fetch_airdrop(airdrop_id)
        if tree is not None:
            found.check_list(tree)
        lines = tree.find(owner) if tree is not None and owner is not None else []
        return found, [await client.fetch_redeemable(found, line) for line in lines]

    found, lines = run_reading(cluster, work)
    if owner is not None and not lines:
        raise _make_not_listed(owner, airdrop_id)
    print_airdrop(found, output, lines)


@airdrop.command()
@id_option
@allocations_option(required=True, text="The airdrop's list, as its authority published it.")
@click.option("--nonce", type=click.IntRange(0, 2**64 - 1), help="Only this line of yours [default: all].")
@click.option("--amount", type=click.IntRange(1), help="Base units [default: all that can be redeemed].")
@output_option
@cluster_options
def redeem(
    cluster: ClusterOptions,
    airdrop_id: int,
    allocations: Path,
    nonce: int | None,
    amount: int | None,
    output: str,
) -> None:
    """Pay out what has vested for your wallet.

    \b
    Examples:
      run-manager airdrop redeem --id 7 --allocations list.csv -k wallet.json
      run-manager airdrop redeem --id 7 --allocations list.csv --nonce 2 --amount 500
    """
    tree = _load_tree(allocations)

    async def work(client: ProgramClient) -> dict[str, int]:
        found = await client.fetch_airdrop(airdrop_id)
        found.check_list(tree)
        lines = await _choose_lines(client, found, tree, nonce)
        if amount is not None and len(lines) > 1:
            raise UsageError(
                f"{client.payer.pubkey()} can redeem {len(lines)} lines of the list.", "Say which: --nonce."
            )
        paid = [await client.redeem(found, tree, line, amount) for line in lines]
        after = [await client.fetch_redeemable(found, line) for line in lines]
        claimed = sum(line.claimed for line in after)
        return {
            "redeemed": sum(paid),
            "redeemed_in_all": claimed,
            "left": sum(line.allocation.amount for line in after) - claimed,
        }

    facts = run_with_client(cluster, work)
    if output == "json":
        print_json(facts)
    else:
        click.echo("  ".join(f"{name} {value}" for name, value in facts.items()))


async def _choose_lines(
    client: ProgramClient, found: AirdropHandle, tree: AllocationTree, nonce: int | None
) -> list[Allocation]:
    """The wallet's line ``nonce``, or all of its lines that have something to redeem (one at least)."""
    wallet = client.payer.pubkey()
    lines = [line for line in tree.find(wallet) if nonce is None or line.nonce == nonce]
    if not lines:
        raise _make_not_listed(wallet, found.id, nonce)
    if nonce is not None:
        return lines
    due = [line for line in lines if (await client.fetch_redeemable(found, line)).amount]
    return due or lines[:1]


def _make_not_listed(wallet: Pubkey, airdrop_id: int, nonce: int | None = None) -> RunStateError:
    line = "" if nonce is None else f" with nonce {nonce}"
    return RunStateError(
        f"{wallet} is not in the list of airdrop {airdrop_id}{line}.", "Check the wallet (-k or --wallet)."
    )


@airdrop.command()
@id_option
@click.option("--amount", type=click.IntRange(1), help="Base units [default: all that you may take].")
@click.option("--to", metavar="WALLET", help="Who gets it [default: you].")
@cluster_options
def withdraw(cluster: ClusterOptions, airdrop_id: int, amount: int | None, to: str | None) -> None:
    """Take collateral back: what nobody was promised, and after the guarantee everything.

    \b
    Example:
      run-manager airdrop withdraw --id 7 --amount 1000 -k wallet.json
    """
    recipient = parse_pubkey(to, "--to") if to else None

    async def work(client: ProgramClient) -> int:
        found = await client.fetch_airdrop(airdrop_id)
        allowed = found.withdrawable_amount
        wanted = allowed if amount is None else amount
        if wanted > allowed or not wanted:
            raise _make_not_withdrawable(found, wanted)
        await client.withdraw_airdrop(found, wanted, recipient=recipient)
        return wanted

    click.echo(f"{run_with_client(cluster, work)} base units withdrawn")


def _make_not_withdrawable(found: AirdropHandle, wanted: int) -> RunStateError:
    account = found.account
    until = show_moment(account.guaranteed_until_unix_timestamp)
    kept = f"{account.reserved_collateral_amount} are promised until {until}"
    is_kept = account.is_guaranteed(found.now)
    return RunStateError(
        f"{found.withdrawable_amount} base units can be withdrawn from airdrop {found.id}, not "
        f"{wanted or 'any'}: its vault holds {found.vault_amount}{' and ' + kept if is_kept else ''}.",
        "Wait until its guarantee ends." if is_kept else "Ask for no more than the vault holds.",
    )


@airdrop.command()
@id_option
@click.option("--amount", required=True, type=click.IntRange(1), help="Base units of its token.")
@cluster_options
def fund(cluster: ClusterOptions, airdrop_id: int, amount: int) -> None:
    """Put collateral of yours into an airdrop's vault; anybody may.

    \b
    Example:
      run-manager airdrop fund --id 7 --amount 1000000 -k wallet.json
    """

    async def work(client: ProgramClient) -> None:
        await client.fund_airdrop(await client.fetch_airdrop(airdrop_id), amount)

    run_with_client(cluster, work)
    click.echo(f"{amount} base units are in the vault of airdrop {airdrop_id}")


@airdrop.command()
@id_option
@click.option("--thaw", is_flag=True, help="Let claims go on.")
@cluster_options
def freeze(cluster: ClusterOptions, airdrop_id: int, thaw: bool) -> None:
    """Stop all claims, or let them go on. The guarantee's clock stands still meanwhile.

    \b
    Examples:
      run-manager airdrop freeze --id 7 -k wallet.json
      run-manager airdrop freeze --id 7 --thaw -k wallet.json
    """

    async def work(client: ProgramClient) -> AirdropHandle:
        found = await client.fetch_airdrop(airdrop_id)
        await client.update_airdrop(found, claim_freeze=not thaw)
        return await client.fetch_airdrop(airdrop_id)

    account = run_with_client(cluster, work).account
    state = "frozen" if account.claim_freeze else "open"
    click.echo(f"claims of airdrop {airdrop_id} are {state}")


@airdrop.command()
@id_option
@allocations_option(required=False, text="Another list; only when no guarantee holds.")
@click.option("--guaranteed-until", metavar="MOMENT", help="A later moment than now is set.")
@click.option("--metadata", metavar="TEXT", help="What it is for; up to 300 bytes.")
@output_option
@cluster_options
def update(
    cluster: ClusterOptions,
    airdrop_id: int,
    allocations: Path | None,
    guaranteed_until: str | None,
    metadata: str | None,
    output: str,
) -> None:
    """Put another list in place, prolong the guarantee, or change what it says it is for.

    \b
    Examples:
      run-manager airdrop update --id 7 --guaranteed-until 2029-01-01
      run-manager airdrop update --id 7 --allocations second.csv --guaranteed-until 2030-01-01
    """
    if allocations is None and guaranteed_until is None and metadata is None:
        raise UsageError("There is nothing to change.", "Give --allocations, --guaranteed-until, --metadata.")
    moment = _parse_moment(guaranteed_until) if guaranteed_until else None
    tree = _load_tree(allocations) if allocations else None

    async def work(client: ProgramClient) -> AirdropHandle:
        found = await client.fetch_airdrop(airdrop_id)
        await client.update_airdrop(
            found,
            tree=tree,
            guaranteed_until=moment,
            metadata=metadata.encode() if metadata is not None else None,
        )
        return await client.fetch_airdrop(airdrop_id)

    print_airdrop(run_with_client(cluster, work), output)
