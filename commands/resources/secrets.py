"""`tollgate secrets`: stored upstream credentials (docs/reference/command-line.md#resources)."""

import click

from commands.connection import Connection, over_api
from commands.output import Column
from commands.resources.lists import print_list

_PATH = "/v1/secrets"


@click.group()
def secrets() -> None:
    """Stored upstream credentials. No command prints their values."""


@secrets.command("list")
@over_api
def list_secrets(connection: Connection) -> None:
    """Print the names of all secrets."""
    print_list(connection, _PATH, _COLUMNS)


_COLUMNS = (
    Column("NAME", lambda secret: secret["name"]),
    Column("ID", lambda secret: secret["id"]),
    Column("UPDATED", lambda secret: secret.get("updated_at")),
)
