"""Deleting asks on a terminal. A script that has none is not asked: it cannot answer."""

import sys

import click

from commands.output import cell_text

yes_option = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")


def ask_before(what: str, is_sure: bool) -> None:
    """Ask whether to delete `what`, if somebody is there to answer. Ends the command with status 1 unless it is yes."""
    if not is_sure and is_terminal():
        click.confirm(f"Delete {cell_text(what)}?", abort=True, err=True)


def is_terminal() -> bool:
    """Return whether somebody is there to answer."""
    return sys.stdin.isatty()
