"""Deleting asks on a terminal. A script, which cannot answer, says `--yes`."""

import sys

import click

from commands.output import cell_text

yes_option = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask; needed without a terminal.")


def ask_before(what: str, is_sure: bool) -> None:
    """Ask whether to delete `what`. Ends the command unless the answer is yes; nobody there to answer means no."""
    if is_sure:
        return
    if not is_terminal():
        raise click.UsageError(f"--yes is needed to delete {cell_text(what)} where nobody can be asked")
    click.confirm(f"Delete {cell_text(what)}?", abort=True, err=True)


def is_terminal() -> bool:
    """Return whether somebody is there to answer."""
    return sys.stdin.isatty()
