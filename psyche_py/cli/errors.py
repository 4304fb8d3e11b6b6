"""How an error ends: what happened, what to do, an exit code by cause."""

from __future__ import annotations

import tempfile
import traceback

import click

from psyche_py.errors import PsycheError


def find_cause(error: BaseException) -> BaseException:
    """The first real error in (nested) groups, ours before others."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [find_cause(inner) for inner in error.exceptions]
    ours = [cause for cause in causes if isinstance(cause, PsycheError)]
    return (ours or causes)[0]


def show_error(error: BaseException, verbose: bool) -> int:
    """Print an error for people and return the exit code."""
    cause = find_cause(error)
    if verbose:
        traceback.print_exception(error)
        for line in getattr(cause, "logs", ()):
            click.echo(f"  log: {line}", err=True)
    if isinstance(cause, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return 130
    if isinstance(cause, PsycheError):
        click.echo(f"Error: {cause.what}", err=True)
        if cause.remedy:
            click.echo(f"  {cause.remedy}", err=True)
        return cause.exit_code
    with tempfile.NamedTemporaryFile("w", prefix="psyche-py-", suffix=".traceback", delete=False) as file:
        traceback.print_exception(error, file=file)
    click.echo(f"Error: {type(cause).__name__}: {cause}", err=True)
    click.echo(f"  This is a defect of psyche-py. The traceback is in {file.name}", err=True)
    return 1
