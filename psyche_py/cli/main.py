"""``run-manager``: commands are imported when they are used, so that ``--help`` and ``status`` start fast."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any

import click

from psyche_py import __version__
from psyche_py.cli.errors import show_error
from psyche_py.errors import PsycheError

COMMANDS = {
    "demo": ("psyche_py.cli.demo.command:demo", "Run everything on this machine: a chain, a run, clients."),
    "localnet": ("psyche_py.cli.localnet:localnet", "Run a local Solana validator with our programs."),
    "create-run": ("psyche_py.cli.run:create_run", "Create a run and start it."),
    "update-config": ("psyche_py.cli.run:update_config", "Change a paused run's configuration."),
    "set-paused": ("psyche_py.cli.run:set_paused", "Pause a run, or resume it."),
    "set-future-epoch-rates": ("psyche_py.cli.run:set_rates", "Set what the next epochs pay."),
    "migrate": ("psyche_py.cli.migrate:migrate", "Bring a run of an older release to this one."),
    "close-run": ("psyche_py.cli.run:close_run", "Close a run and get its rent back."),
    "join": ("psyche_py.cli.join:join", "Train in a run."),
    "doctor": ("psyche_py.cli.doctor:doctor", "Find out whether this machine can take part in a run."),
    "list-runs": ("psyche_py.cli.status:list_runs", "List the runs on a cluster."),
    "status": ("psyche_py.cli.status:status", "Show how a run stands."),
    "json-dump-run": ("psyche_py.cli.status:json_dump_run", "Print a run's account as JSON."),
    "tick": ("psyche_py.cli.run:tick", "Send ticks by hand."),
    "can-join": ("psyche_py.cli.authorization:can_join", "Tell whether a wallet may join a run."),
    "join-authorization-create": ("psyche_py.cli.authorization:create", "Let a wallet join your runs."),
    "join-authorization-list": ("psyche_py.cli.authorization:list_all", "List who may join."),
    "join-authorization-read": ("psyche_py.cli.authorization:read", "Show an authorization."),
    "join-authorization-delegate": ("psyche_py.cli.authorization:delegate", "Let other wallets use yours."),
    "join-authorization-revoke": ("psyche_py.cli.authorization:revoke", "Take an authorization back."),
    "treasurer-top-up": ("psyche_py.cli.treasury:top_up", "Put collateral into a run's vault."),
    "claim-rewards": ("psyche_py.cli.treasury:claim_rewards", "Claim what a wallet has earned."),
    "bond": ("psyche_py.cli.bond:bond", "Stake collateral in a run, get it back, take what is owed."),
    "withdraw": ("psyche_py.cli.treasury:withdraw", "Take back collateral that nobody has earned."),
    "deploy-programs": ("psyche_py.cli.deploy:deploy_programs", "Put our programs on a cluster."),
    "pool": ("psyche_py.cli.pool:pool", "Lend to a mining pool, run one, be repaid."),
    "airdrop": ("psyche_py.cli.airdrop:airdrop", "Give a token to the wallets of a list, or redeem."),
    "wallet": ("psyche_py.cli.wallet:wallet", "Make and show keypair files."),
    "sim": ("psyche_py.cli.sim:sim", "Play a run in virtual time, with faults by script."),
    "data": ("psyche_py.cli.data:data", "Prepare training data."),
}
ALIASES = {
    "treasurer-top-up-rewards": "treasurer-top-up",
    "treasurer-claim-rewards": "claim-rewards",
    "claim": "claim-rewards",
    "join-authorization-delete": "join-authorization-revoke",
}
"""Psyche's names, and short ones."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        module_name, attribute = COMMANDS[name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module_name), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            close = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f" Did you mean {close[0]!r}?" if close else " See run-manager --help."
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="run-manager")
@click.option("--verbose", is_flag=True, help="Show an error's traceback and the programs' log, anywhere.")
def group(verbose: bool) -> None:
    """Train one language model with strangers' GPUs.

    \b
    Examples:
      run-manager demo
      run-manager localnet --ledger ledger/
      run-manager create-run -r my-run --config configs/tiny-cpu.toml --permissionless
      run-manager join -r my-run -k wallet.json
      run-manager status -r my-run --watch
    """


def main() -> None:
    """Console entry point. Exit codes: see psyche_py/errors.py; 1 for what nobody foresaw, 130 for Ctrl-C."""
    verbose = "--verbose" in sys.argv
    # it may stand anywhere, though it belongs to no command
    arguments = [argument for argument in sys.argv[1:] if argument != "--verbose"]
    try:
        code = group.main(arguments, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except PsycheError as error:
        sys.exit(show_error(error, verbose))
    except click.exceptions.Abort:
        click.echo("Stopped.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        sys.exit(show_error(error, verbose))


if __name__ == "__main__":
    main()
