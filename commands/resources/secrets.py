"""`tollgate secrets`: stored upstream credentials (docs/reference/command-line.md#resources).

A value comes from a file, from standard input, from the API's JSON or from a hidden prompt. There is no flag for it:
others can read a command line.
"""

from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.hidden_values import hidden_value
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.lists import items_of, print_list
from commands.output import Column

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
@click.argument("name", shell_complete=known_names.secrets)
@over_api
def get(name: str, connection: Connection) -> None:
    """Print a secret's name, id and times."""
    print_answer(connection, connection.run(lambda client: names.secret(client, name)))


@secrets.command()
@click.argument("name", required=False)
@value_option
@file_option
@over_api
def create(name: str | None, value_file: TextIO | None, file: TextIO | None, connection: Connection) -> None:
    """Store a new secret. One that is there is refused: `set` replaces it."""
    body = _body(name, value_file, file)

    async def work(client: Client) -> Any:
        name = body.get("name")
        if name in [item["name"] async for item in items_of(client, names.SECRETS)]:
            raise click.ClickException(f"there is a secret {name!r} already; `tollgate secrets set` replaces its value")
        return await client.call("POST", names.SECRETS, body)

    print_answer(connection, connection.run(work))


@secrets.command("set")
@click.argument("name", shell_complete=known_names.secrets)
@value_option
@file_option
@over_api
def set_secret(name: str, value_file: TextIO | None, file: TextIO | None, connection: Connection) -> None:
    """Replace a secret's value. It keeps its id, so endpoints use the new value at once."""
    body = _body(name, value_file, file)

    async def work(client: Client) -> Any:
        item = await names.secret(client, name)
        return await client.call("POST", names.SECRETS, {**body, "name": item["name"]})

    print_answer(connection, connection.run(work))


@secrets.command()
@click.argument("name", shell_complete=known_names.secrets)
@yes_option
@over_api
def delete(name: str, is_sure: bool, connection: Connection) -> None:
    """Delete a secret that no endpoint uses."""
    item = connection.run(lambda client: names.secret(client, name))
    ask_before(f"secret {item['name']}", is_sure)
    call_and_print(connection, "DELETE", path("secrets", item["name"]))


def _body(name: str | None, value_file: TextIO | None, file: TextIO | None) -> dict[str, Any]:
    """The API's body. The value is read where -f gives none, and --value-file is put over it."""
    body = body_of(file, only(name=name))
    if "name" not in body:
        raise click.UsageError("give NAME, or a name by -f")
    if value_file is not None or "value" not in body:
        body["value"] = hidden_value(value_file, "value", "--value-file")
    return body


_COLUMNS = (
    Column("NAME", lambda secret: secret["name"]),
    Column("ID", lambda secret: secret["id"]),
    Column("UPDATED", lambda secret: secret.get("updated_at")),
)
