"""The flag by which commands name a group: `--group` or `--entity`, with an id or an external id."""

from collections.abc import Callable
from typing import Any

import click

from commands.editing import known_names


def group_option(name: str, help: str, **more: Any) -> Callable[[Any], Any]:
    """The flag, whose value the command gets as `name`. `more`: further attributes of a `click.option`."""
    return click.option(
        *("--group", "--entity", name), metavar="ID", shell_complete=known_names.groups, help=help, **more
    )
