"""Values that no command line may show: from a file, from standard input, or from a hidden prompt.

There is no flag for them: others can read a command line.
"""

import sys
from typing import TextIO

import click


def hidden_value(file: TextIO | None, name: str, flag: str) -> str:
    """The value without line ends at its end. `name`: what it is; `flag`: the one of `file`. Raises ClickException."""
    if file is None and sys.stdin.isatty():
        return str(click.prompt(name.capitalize(), hide_input=True, confirmation_prompt=True, err=True))
    try:
        value = (file or sys.stdin).read().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.ClickException(f"the {name} is not UTF-8 text") from None
    if not value:
        raise click.ClickException(f"the {name} is empty: give {flag}, or the {name} on standard input")
    return value
