"""``run-manager pool``: mining pools, which fund whoever runs the training and pay the lenders back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from psyche_py.cli.common import (
    ClusterOptions,
    cluster_options,
    output_option,
    parse_pubkey,
    print_json,
    run_reading,
    run_with_client,
)
from psyche_py.errors import UsageError

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from psyche_py.chain.client import ProgramClient
    from psyche_py.chain.mining_pool import PoolHandle

AMOUNT = click.IntRange(1, 2**64 - 1)

pool_option = click.option(
    "-p", "--pool", "name", required=True, metavar="NAME", help="The pool's name, or its index as a number."
)
mint_first_option = click.option(
    "--mint-first", is_flag=True, help="Mint them first (for test tokens that are yours)."
)


def get_index(name: str) -> int:
    """The index that a pool's name stands for; a number stands for itself. Raises UsageError."""
    from psyche_py.coordinator.pda import compute_pool_index

    if not name:
        raise UsageError("A pool's name cannot be empty.", "Give --pool a name or a number.")
    if not (name.isascii() and name.isdigit()):
        return compute_pool_index(name)
    if len(name) > 20 or int(name) >= 2**64:
        raise UsageError(f"{name} is no pool's index.", "An index is below 2^64; a name has a letter.")
    return int(name)


async def _fetch(client: ProgramClient, name: str, user: Pubkey | None = None) -> PoolHandle:
    return await client.fetch_pool(get_index(name), user)


@click.group()
def pool() -> None:
    """Lend to whoever runs the training, and share what is repaid.

    Amounts are base units of the pool's tokens. docs/mining-pool.md says what the authority of a pool can do
    with what you lend.

    \b
    Example:
      run-manager pool create -p gpus --mint MINT --max-deposit 1000000     (authority)
      run-manager pool deposit -p gpus --amount 5000                        (lender)
      run-manager pool extract -p gpus                                      (authority)
      run-manager pool enable-claims -p gpus --mint REDEEMABLE              (authority)
      run-manager pool repay -p gpus --amount 6000                          (anybody)
      run-manager pool claim -p gpus                                        (lender)
    """


@pool.command()
@pool_option
@click.option("--mint", metavar="PUBKEY", help="The SPL token that is lent.")
@click.option("--new-mint", is_flag=True, help="Make a new SPL token to lend.")
@click.option("--max-deposit", required=True, type=AMOUNT, help="Most that the pool takes.")
@click.option("--metadata", default="", help="What it is for, up to 400 bytes [default: its name].")
@cluster_options
def create(
    cluster: ClusterOptions, name: str, mint: str | None, new_mint: bool, max_deposit: int, metadata: str
) -> None:
    """Create a pool; your wallet is its authority.

    \b
    Example:
      run-manager pool create -p gpus --mint MINT --max-deposit 1000000 --metadata "8 H200, one month"
    """
    index, token = get_index(name), _get_mint(mint, new_mint)

    async def work(client: ProgramClient) -> None:
        address = await client.pool_create(index, token, max_deposit=max_deposit, metadata=metadata or name)
        account = (await _fetch(client, name)).pool
        click.echo(f"pool {name} created, account {address}")
        click.echo(f"collateral mint {account.collateral_mint}; it takes up to {max_deposit} base units")

    run_with_client(cluster, work)


def _get_mint(mint: str | None, new_mint: bool) -> Pubkey | None:
    """The mint that was named, None for a new one. Raises UsageError unless exactly one was asked for."""
    if bool(mint) == new_mint:
        raise UsageError("Say which token.", "Give --mint PUBKEY, or --new-mint for a test token.")
    return parse_pubkey(mint, "--mint") if mint else None


def describe_pool(handle: PoolHandle) -> dict[str, Any]:
    """What people and scripts want to know of a pool. Amounts are base units."""
    from psyche_py.chain.pda import find_redeemable_authority

    account, lender = handle.pool, handle.lender
    total = account.total_deposited_collateral_amount
    return {
        "index": account.index,
        "account": str(handle.address),
        "authority": str(account.authority),
        "metadata": account.metadata_text,
        "is_frozen": account.freeze,
        "claiming_enabled": account.claiming_enabled,
        "collateral_mint": str(account.collateral_mint),
        "max_deposit": account.max_deposit_collateral_amount,
        "deposited": total,
        "extracted": account.total_extracted_collateral_amount,
        "collateral_vault": str(account.collateral_vault),
        "collateral_in_vault": handle.collateral_amount,
        "redeemable_mint": str(account.redeemable_mint) if account.claiming_enabled else None,
        "repay_to": str(find_redeemable_authority(handle.address)) if account.claiming_enabled else None,
        "repaid": handle.total_repaid,
        "claimed": account.total_claimed_redeemable_amount,
        "lender_deposited": lender.deposited_collateral_amount if lender else 0,
        "lender_claimed": lender.claimed_redeemable_amount if lender else 0,
        "lender_claimable": handle.claimable,
    }


def _show(name: str, facts: dict[str, Any], lender: str | None) -> None:
    state = "pays lenders" if facts["claiming_enabled"] else "takes deposits"
    click.echo(f"pool {name}  {state}{', frozen' if facts['is_frozen'] else ''}  index {facts['index']}")
    click.echo(f"  {_to_one_line(facts['metadata'])}")
    click.echo(f"  account    {facts['account']}")
    click.echo(f"  authority  {facts['authority']}")
    click.echo(
        f"  lent       {facts['deposited']} of at most {facts['max_deposit']} of {facts['collateral_mint']}"
    )
    click.echo(f"  taken out  {facts['extracted']}, in the vault {facts['collateral_in_vault']}")
    if facts["claiming_enabled"]:
        click.echo(
            f"  repaid     {facts['repaid']} of {facts['redeemable_mint']}, claimed {facts['claimed']}"
        )
        click.echo(f"  repayments go to {facts['repay_to']}")
    if lender is not None:
        lent, total = facts["lender_deposited"], facts["deposited"]
        share = f"{100 * lent / total:.2f} %" if total else "nothing"
        click.echo(
            f"  {lender} has lent {lent} ({share}), claimed {facts['lender_claimed']}, "
            f"can claim {facts['lender_claimable']}"
        )


def _to_one_line(text: str) -> str:
    """Metadata is a stranger's text: what is not printable could drive the terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


@pool.command()
@pool_option
@click.option("--lender", metavar="PUBKEY", help="Show what this wallet has lent and can claim.")
@output_option
@cluster_options
def show(cluster: ClusterOptions, name: str, lender: str | None, output: str) -> None:
    """Show a pool and a lender's share.

    No wallet is needed.

    \b
    Example:
      run-manager pool show -p gpus --lender WALLET
    """
    user = parse_pubkey(lender, "--lender") if lender else None

    async def work(client: ProgramClient) -> None:
        facts = describe_pool(await _fetch(client, name, user))
        if output == "json":
            print_json(facts)
        else:
            _show(name, facts, lender)

    run_reading(cluster, work)


@pool.command("list")
@output_option
@cluster_options
def list_pools(cluster: ClusterOptions, output: str) -> None:
    """List the pools on a cluster.

    \b
    Example:
      run-manager pool list -u devnet
    """

    async def work(client: ProgramClient) -> None:
        pools = await client.list_pools()
        facts = [
            {
                "index": found.index,
                "authority": str(found.authority),
                "metadata": found.metadata_text,
                "is_frozen": found.freeze,
                "claiming_enabled": found.claiming_enabled,
                "collateral_mint": str(found.collateral_mint),
                "max_deposit": found.max_deposit_collateral_amount,
                "deposited": found.total_deposited_collateral_amount,
            }
            for found in pools
        ]
        if output == "json":
            return print_json(facts)
        if not facts:
            click.echo("There are no pools on this cluster.")
        for one in facts:
            state = "pays lenders" if one["claiming_enabled"] else "takes deposits"
            click.echo(
                f"{one['index']:>20}  {state:<14}  lent {one['deposited']} of {one['max_deposit']}  "
                f"{_to_one_line(str(one['metadata']))}"
            )
        return None

    run_reading(cluster, work)


@pool.command()
@pool_option
@click.option("--amount", required=True, type=AMOUNT, help="Base units of the collateral token.")
@mint_first_option
@cluster_options
def deposit(cluster: ClusterOptions, name: str, amount: int, mint_first: bool) -> None:
    """Lend to a pool.

    There is no way to take it back: what is repaid is shared by the lenders.

    \b
    Example:
      run-manager pool deposit -p gpus --amount 5000 -k wallet.json
    """

    async def work(client: ProgramClient) -> None:
        handle = await _fetch(client, name)
        if mint_first:
            await client.mint_to(handle.pool.collateral_mint, client.payer.pubkey(), amount)
        await client.lender_deposit(handle, amount)
        facts = describe_pool(await _fetch(client, name))
        click.echo(f"{facts['lender_deposited']} of {facts['deposited']} base units in {name} are yours")

    run_with_client(cluster, work)


@pool.command()
@pool_option
@click.option("--amount", type=AMOUNT, help="Base units of collateral [default: all in the vault].")
@cluster_options
def extract(cluster: ClusterOptions, name: str, amount: int | None) -> None:
    """Take collateral out (authority).

    It goes to your wallet's token account.

    \b
    Example:
      run-manager pool extract -p gpus --amount 5000
    """

    async def work(client: ProgramClient) -> None:
        before = await _fetch(client, name)
        await client.pool_extract(before, amount)
        taken = before.collateral_amount if amount is None else amount
        click.echo(f"{taken} base units of {before.pool.collateral_mint} are yours")

    run_with_client(cluster, work)


@pool.command("enable-claims")
@pool_option
@click.option("--mint", metavar="PUBKEY", help="The SPL token that lenders are repaid in.")
@click.option("--new-mint", is_flag=True, help="Make a new SPL token for it.")
@cluster_options
def enable_claims(cluster: ClusterOptions, name: str, mint: str | None, new_mint: bool) -> None:
    """End deposits and let lenders claim.

    The shares are fixed for ever, and so is the token that repayments are made in.

    \b
    Example:
      run-manager pool enable-claims -p gpus --mint REDEEMABLE
    """
    token = _get_mint(mint, new_mint)

    async def work(client: ProgramClient) -> None:
        await client.pool_claimable(await _fetch(client, name), token)
        facts = describe_pool(await _fetch(client, name))
        click.echo(f"lenders of {name} can claim {facts['redeemable_mint']}")
        click.echo(f"repayments go to {facts['repay_to']}")

    run_with_client(cluster, work)


@pool.command()
@pool_option
@click.option("--amount", required=True, type=AMOUNT, help="Base units of the redeemable token.")
@mint_first_option
@cluster_options
def repay(cluster: ClusterOptions, name: str, amount: int, mint_first: bool) -> None:
    """Pay into a pool for its lenders.

    Anybody can, and nobody but the lenders gets it out.

    \b
    Example:
      run-manager pool repay -p gpus --amount 6000
    """

    async def work(client: ProgramClient) -> None:
        handle = await _fetch(client, name)
        if mint_first and handle.pool.claiming_enabled:
            await client.mint_to(handle.pool.redeemable_mint, client.payer.pubkey(), amount)
        await client.pool_repay(handle, amount)
        facts = describe_pool(await _fetch(client, name))
        click.echo(f"{facts['repaid']} base units were repaid to {name} in all")

    run_with_client(cluster, work)


@pool.command()
@pool_option
@click.option("--amount", type=AMOUNT, help="Base units of the redeemable token [default: all].")
@output_option
@cluster_options
def claim(cluster: ClusterOptions, name: str, amount: int | None, output: str) -> None:
    """Claim your share of what was repaid.

    \b
    Example:
      run-manager pool claim -p gpus -k wallet.json
    """

    async def work(client: ProgramClient) -> None:
        before = await _fetch(client, name)
        await client.lender_claim(before, amount)
        after = describe_pool(await _fetch(client, name))
        facts = {
            "claimed": before.claimable if amount is None else amount,
            "claimed_in_all": after["lender_claimed"],
            "left": after["lender_claimable"],
            "redeemable_mint": after["redeemable_mint"],
        }
        if output == "json":
            print_json(facts)
        else:
            click.echo("  ".join(f"{key} {value}" for key, value in facts.items()))

    run_with_client(cluster, work)


@pool.command()
@pool_option
@click.option("--unfreeze", is_flag=True, help="Let it go on.")
@cluster_options
def freeze(cluster: ClusterOptions, name: str, unfreeze: bool) -> None:
    """Stop all movement, or let it go on.

    A frozen pool takes no deposits and pays neither its authority nor its lenders. Only the authority can
    freeze and unfreeze it.

    \b
    Examples:
      run-manager pool freeze -p gpus
      run-manager pool freeze -p gpus --unfreeze
    """

    async def work(client: ProgramClient) -> None:
        await client.pool_update(await _fetch(client, name), freeze=not unfreeze)
        click.echo(f"pool {name} {'goes on' if unfreeze else 'is frozen'}")

    run_with_client(cluster, work)


@pool.command()
@pool_option
@click.option(
    "--max-deposit",
    type=click.IntRange(0, 2**64 - 1),
    help="Most that the pool takes; after the first deposit it can only be lowered.",
)
@click.option("--metadata", help="What it is for, up to 400 bytes.")
@cluster_options
def update(cluster: ClusterOptions, name: str, max_deposit: int | None, metadata: str | None) -> None:
    """Change limit or metadata (authority).

    \b
    Example:
      run-manager pool update -p gpus --max-deposit 400000
    """
    if max_deposit is None and metadata is None:
        raise UsageError("There is nothing to change.", "Give --max-deposit or --metadata.")

    async def work(client: ProgramClient) -> None:
        await client.pool_update(await _fetch(client, name), max_deposit=max_deposit, metadata=metadata)
        account = (await _fetch(client, name)).pool
        click.echo(f"pool {name} takes up to {account.max_deposit_collateral_amount} base units")

    run_with_client(cluster, work)
