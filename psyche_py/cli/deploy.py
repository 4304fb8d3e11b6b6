"""``run-manager deploy-programs``: our programs onto a cluster, without the Solana tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from psyche_py.cli.common import ClusterOptions, cluster_options, make_backend
from psyche_py.errors import UsageError

if TYPE_CHECKING:
    from solders.keypair import Keypair

    from psyche_py.chain.deploy import ProgramDeployer, ProgramPlan
    from psyche_py.chain.rpc import RpcBackend

LAMPORTS_PER_SOL = 1_000_000_000
PROGRESS_LINES = 5
"""For each program."""


@click.command()
@click.argument("names", nargs=-1, metavar="[PROGRAM]...")
@click.option(
    "--program-keypairs",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory with PROGRAM.json, the keypair of each address that is new on the cluster.",
)
@click.option("--upgrade-authority", metavar="PATH", help="Keypair that may upgrade [default: the wallet].")
@click.option(
    "--sbpf",
    type=click.Choice(["auto", "0", "3"]),
    default="auto",
    show_default=True,
    help="Format of the programs: the newest that the cluster takes, or this.",
)
@click.option("--final", is_flag=True, help="Afterwards give the right to upgrade up, for ever.")
@click.option("--close-buffers", is_flag=True, help="Instead: get the rent of unfinished deployments back.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and what it costs, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def deploy_programs(
    cluster: ClusterOptions,
    names: tuple[str, ...],
    program_keypairs: Path | None,
    upgrade_authority: str | None,
    sbpf: str,
    final: bool,
    close_buffers: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Deploy our programs to a cluster, or upgrade them there: all, or those named.

    What is up to date is left alone, and what was cut off goes on where it stood. A program runs only at the
    address it was built for: programs/build/README.md tells how to build for addresses of your own.

    \b
    Examples:
      run-manager deploy-programs -u devnet -k wallet.json --program-keypairs keys/ --dry-run
      run-manager deploy-programs -u devnet -k wallet.json --program-keypairs keys/
      run-manager deploy-programs coordinator -u devnet -k wallet.json
      run-manager deploy-programs -u devnet -k wallet.json --close-buffers
    """
    from psyche_py.chain.artifacts import PROGRAM_NAMES
    from psyche_py.chain.deploy import ProgramDeployer
    from psyche_py.chain.keypair import load_keypair

    unknown = [name for name in names if name not in PROGRAM_NAMES]
    if unknown:
        raise UsageError(f"There is no program {unknown[0]!r}.", f"There are {', '.join(PROGRAM_NAMES)}.")
    payer = cluster.load_wallet()
    authority = load_keypair(upgrade_authority) if upgrade_authority else payer

    async def main() -> None:
        async with make_backend(cluster) as backend:
            deployer = ProgramDeployer(backend, payer, authority, tell=_tell)
            if close_buffers:
                lamports = await deployer.close_buffers()
                click.echo(f"{_format_sol(lamports)} of buffers came back.")
                return
            plans = await _plan(backend, deployer, names or PROGRAM_NAMES, sbpf)
            keypairs = {
                plan.name: _load_program_keypair(plan, program_keypairs)
                for plan in plans
                if plan.action is plan.action.DEPLOY
            }
            await deployer.check_funds(plans)
            if dry_run:
                return
            if final and not yes:
                _confirm_final(plans)
            await _carry_out(deployer, plans, keypairs)
            if final:
                await _make_final(deployer, plans)

    trio.run(main)


async def _plan(
    backend: RpcBackend, deployer: ProgramDeployer, names: Sequence[str], sbpf: str
) -> list[ProgramPlan]:
    """What each program needs, told."""
    from psyche_py.chain.artifacts import get_program_id, read_program
    from psyche_py.chain.deploy import choose_sbpf_version, compute_needed_lamports

    version = await choose_sbpf_version(backend) if sbpf == "auto" else int(sbpf)
    click.echo(f"SBPF v{version}")
    plans = []
    for name in names:
        plan = await deployer.plan(name, get_program_id(name), read_program(name, version))
        plans.append(plan)
        cost = ""
        if plan.action is not plan.action.NOTHING:
            cost = (
                f": {len(plan.elf)} bytes, {plan.num_writes} writes, rent {_format_sol(plan.rent_lamports)}"
            )
        click.echo(f"  {name:12} {plan.program_id}  {plan.action.value}{cost}")
    rent, fees = sum(plan.rent_lamports for plan in plans), sum(plan.fee_lamports for plan in plans)
    needed = compute_needed_lamports(plans)
    if needed:
        click.echo(
            f"This takes {_format_sol(rent)} of rent and at most {_format_sol(fees)} of fees, and "
            f"{_format_sol(needed)} must be there to begin with."
        )
    return plans


def _load_program_keypair(plan: ProgramPlan, directory: Path | None) -> Keypair:
    """Raises UsageError, KeypairError."""
    from psyche_py.chain.keypair import load_keypair

    own = (
        f"Build for an address of your own: python programs/build/set_ids.py {directory or 'keys/'} && "
        "make programs"
    )
    if directory is None:
        raise UsageError(
            f"{plan.name} is not on this cluster yet: its address's keypair must sign once.",
            f"Name its directory with --program-keypairs. {own}",
        )
    keypair = load_keypair(directory / f"{plan.name}.json")
    if keypair.pubkey() != plan.program_id:
        raise UsageError(
            f"{directory / plan.name}.json is the keypair of {keypair.pubkey()}; {plan.name} is built for "
            f"{plan.program_id}.",
            own,
        )
    return keypair


async def _carry_out(
    deployer: ProgramDeployer, plans: Sequence[ProgramPlan], keypairs: dict[str, Keypair]
) -> None:
    for plan in plans:
        await deployer.execute(plan, keypairs.get(plan.name))
        if plan.action is not plan.action.NOTHING:
            click.echo(f"{plan.name}: {plan.action.value} done")


def _confirm_final(plans: Sequence[ProgramPlan]) -> None:
    names = ", ".join(plan.name for plan in plans)
    click.confirm(f"Give the right to upgrade {names} up? Nobody can ever mend them then", abort=True)


async def _make_final(deployer: ProgramDeployer, plans: Sequence[ProgramPlan]) -> None:
    for plan in plans:
        now = await deployer.plan(plan.name, plan.program_id, plan.elf)
        if now.authority is not None:
            await deployer.set_authority(plan.name, plan.program_id, None)
        click.echo(f"{plan.name}: nobody can upgrade it any more")


def _tell(program: str, num_written: int, num_writes: int) -> None:
    """A few lines for each program: a deployment takes minutes on a cluster."""
    step = max(num_writes // PROGRESS_LINES, 1)
    if num_written % step == 0 or num_written == num_writes:
        click.echo(f"{program}: {num_written} of {num_writes} written")


def _format_sol(lamports: int) -> str:
    return f"{lamports / LAMPORTS_PER_SOL:.6f} SOL"
