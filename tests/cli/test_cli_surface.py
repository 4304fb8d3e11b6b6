"""The command line is an interface: its names are kept in surface.txt, and what only reads starts light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_process import Cli

from psyche_py.cli.main import ALIASES, COMMANDS, group

SURFACE = Path(__file__).parent / "surface.txt"
HEAVY = ("torch", "libp2p", "transformers", "scipy", "tokenizers")
CLUSTER_FLAGS = (
    *("-u", "--url", "--rpc", "--ws", "--ws-rpc", "-k", "--keypair", "--wallet-private-key-path"),
    *("-C", "--config-file", "--commitment", "--priority-fee"),
)
LIGHT_COMMANDS = [
    "status -r nope",
    "list-runs",
    "pool show -p nope",
    "airdrop show --id 1",
    "wallet address none.json",
]


def _walk(name: str, command: click.Command) -> list[str]:
    context = click.Context(command)
    flags = [
        option
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        for option in parameter.opts + parameter.secondary_opts
        if option != "-h"  # click lists it only once a command has been invoked in this process
    ]
    if set(CLUSTER_FLAGS) <= set(flags):
        flags = [flag for flag in flags if flag not in CLUSTER_FLAGS] + ["CLUSTER"]
    lines = [" ".join([name, *sorted(flags)])]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            lines += _walk(f"{name} {child}", found)
    return lines


def test_names_of_commands_and_flags_are_as_recorded() -> None:
    """A flag renamed costs an operator a night. PSYCHE_UPDATE_GOLDEN=1 records an intended change."""
    lines = [f"CLUSTER = {' '.join(CLUSTER_FLAGS)}", *_walk("run-manager", group)]
    text = "\n".join(lines) + "\n"
    if os.environ.get("PSYCHE_UPDATE_GOLDEN"):
        SURFACE.write_text(text)
    assert text == SURFACE.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_explains_and_shows_an_example(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    context = click.Context(command, info_name=f"run-manager {name}")
    text = command.get_help(context)
    assert command.help
    is_group = isinstance(command, click.Group)
    assert is_group or "Example" in text, text


def test_psyches_longer_names_are_accepted() -> None:
    context = click.Context(group)
    for alias, name in ALIASES.items():
        assert group.get_command(context, alias) is group.get_command(context, name)


def test_console_script_shows_help_and_version(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.code == 0
    for name in COMMANDS:
        assert name in shown.out
    assert cli("--version").out.startswith("run-manager")


def test_unknown_command_is_answered_with_the_nearest(cli: Cli) -> None:
    done = cli("list-run")
    assert done.code == 2
    assert "'list-runs'" in done.err


@pytest.mark.parametrize("arguments", ["--help", "join --help", "create-run --help", *LIGHT_COMMANDS])
def test_what_does_not_train_loads_no_heavy_library(cli: Cli, arguments: str) -> None:
    """In a fresh interpreter; the commands fail for want of a cluster or a file, after all their imports."""
    code = (
        "import sys\n"
        "from psyche_py.cli import main\n"
        "import psyche_py.chain.rpc.backend as backend\n"
        "import dataclasses\n"
        "backend.LOCAL_OPTIONS = dataclasses.replace(backend.LOCAL_OPTIONS, deadline_seconds=0.3)\n"
        f"sys.argv = ['run-manager', *{arguments.split()!r}]\n"
        "try:\n"
        "    main.main()\n"
        "finally:\n"
        f"    print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cli.home,
        env={**cli.get_environment(), "RPC": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "This is a defect" not in done.stderr, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stderr
