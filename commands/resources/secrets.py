"""`tollgate secrets`: stored upstream credentials (docs/reference/command-line.md#resources).

A value comes from a file, from standard input or from a hidden prompt. There is no flag for it: others can read a
command line.
"""

import sys
from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import names
from commands.editing.deletion import ask_before, yes_option
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.output import Column
from commands.resources.lists import items_of, print_list

value_option = click.option(
    "--value-file",
    type=click.File(encoding="utf-8"),
    help="A file with the value, or - for standard input; without it, a terminal asks. Line ends at its end are cut.",
)


@click.group()
def secrets() -> None:
    """Stored upstream credentials. No command prints their values."""


@secrets.command("list")
@over_api
def list_secrets(connection: Connection) -> None:
    """Print the names of all secrets."""
    print_list(connection, names.SECRETS, _COLUMNS)


@secrets.command()
@click.argument("name")
@over_api
def get(name: str, connection: Connection) -> None:
    """Print a secret's name, id and times."""
    print_answer(connection, connection.run(lambda client: names.secret(client, name)))


@secrets.command()
@click.argument("name")
@value_option
@over_api
def create(name: str, value_file: TextIO | None, connection: Connection) -> None:
    """Store a new secret. One that is there is refused: `set` replaces it."""
    _put(connection, name, value_file, is_new=True)


@secrets.command("set")
@click.argument("name")
@value_option
@over_api
def set_secret(name: str, value_file: TextIO | None, connection: Connection) -> None:
    """Replace a secret's value. It keeps its id, so endpoints use the new value at once."""
    _put(connection, name, value_file, is_new=False)


@secrets.command()
@click.argument("name")
@yes_option
@over_api
def delete(name: str, is_sure: bool, connection: Connection) -> None:
    """Delete a secret that no endpoint uses."""
    ask_before(f"secret {name}", is_sure)
    call_and_print(connection, "DELETE", path("secrets", name))


def _put(connection: Connection, name: str, value_file: TextIO | None, is_new: bool) -> None:
    value = _value(value_file)

    async def work(client: Client) -> Any:
        is_there = name in [item["name"] async for item in items_of(client, names.SECRETS)]
        if is_there and is_new:
            raise click.ClickException(f"there is a secret {name!r} already; `tollgate secrets set` replaces its value")
        if not is_there and not is_new:
            raise click.ClickException(f"there is no secret {name!r}; `tollgate secrets create` stores it")
        return await client.call("POST", names.SECRETS, {"name": name, "value": value})

    print_answer(connection, connection.run(work))


def _value(file: TextIO | None) -> str:
    if file is None and sys.stdin.isatty():
        return str(click.prompt("Value", hide_input=True, confirmation_prompt=True, err=True))
    try:
        value = (file or sys.stdin).read().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.BadParameter("the value is not UTF-8 text", param_hint="--value-file") from None
    if not value:
        raise click.UsageError("the value is empty: give --value-file, or the value on standard input")
    return value


_COLUMNS = (
    Column("NAME", lambda secret: secret["name"]),
    Column("ID", lambda secret: secret["id"]),
    Column("UPDATED", lambda secret: secret.get("updated_at")),
)
