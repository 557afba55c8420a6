"""`tollgate keys`: federated keys of a group, and the workspace's own (docs/reference/command-line.md#resources)."""

from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.group_option import group_option
from commands.editing.hidden_values import hidden_value
from commands.editing.paths import path
from commands.editing.shown import print_answer
from commands.lists import all_items, print_items
from commands.output import Column
from policy.credentials import KeyKind

_WORKSPACE_KINDS = [kind.value for kind in KeyKind if kind is not KeyKind.FEDERATED]
_group_option = group_option("group", "The group, by id or external id; without it, the workspace's own keys.")


@click.group()
def keys() -> None:
    """API keys of a group, or of the workspace. One that is created is shown once; registered ones never are."""


@keys.command("list")
@_group_option
@over_api
def list_keys(group: str | None, connection: Connection) -> None:
    """Print all keys of a group, or of the workspace."""

    async def work(client: Client) -> Any:
        return await all_items(client, await _listed(client, group))

    print_items(connection, connection.run(work), _COLUMNS)


@keys.command()
@click.argument("prefix", shell_complete=known_names.key_prefixes)
@_group_option
@over_api
def get(prefix: str, group: str | None, connection: Connection) -> None:
    """Print one key, without its secret part."""

    async def work(client: Client) -> Any:
        return await client.call("GET", await _listed(client, group) + path(prefix).removeprefix("/v1"))

    print_answer(connection, connection.run(work))


@keys.command()
@_group_option
@click.option("--name", help="What the key is for.")
@click.option("--type", "kind", type=click.Choice(_WORKSPACE_KINDS), help="Of a workspace key: what it may do.")
@click.option("--only-key", is_flag=True, help="Print nothing but the key: KEY=$(tollgate keys create … --only-key).")
@file_option
@over_api
def create(group: str | None, only_key: bool, file: TextIO | None, connection: Connection, **flags: Any) -> None:
    """Create a key and print it. It is shown only here."""
    body = body_of(file, only(name=flags["name"], type=flags["kind"]))
    if (group is None) == (body.get("type") is None):
        raise click.UsageError("give --group for a group's key, or --type for a key of the workspace")
    if only_key and connection.as_json:
        raise click.UsageError("give --only-key or --json, not both")

    async def work(client: Client) -> Any:
        return await client.call("POST", await _listed(client, group), body)

    created = connection.run(work)
    if only_key:
        click.echo(created["api_key"])
    else:
        print_answer(connection, created)


@keys.command()
@group_option("group", "The group, by id or external id.", required=True)
@click.option("--name", help="What the key is for.")
@click.option(
    "--key-file",
    type=click.File(encoding="utf-8"),
    help="A file with the key, or - for standard input; without it, a terminal asks. Line ends at its end are cut.",
)
@over_api
def register(group: str, name: str | None, key_file: TextIO | None, connection: Connection) -> None:
    """Register a key of your own for a group. It is stored as a digest, and never printed."""
    body = only(key=hidden_value(key_file, "key", "--key-file"), name=name)

    async def work(client: Client) -> Any:
        return await client.call("POST", f"{await _listed(client, group)}/register", body)

    print_answer(connection, connection.run(work))


@keys.command()
@click.argument("prefix", shell_complete=known_names.key_prefixes)
@_group_option
@yes_option
@over_api
def delete(prefix: str, group: str | None, is_sure: bool, connection: Connection) -> None:
    """Revoke a key. Its calls are refused within a second."""
    ask_before(f"key {prefix}", is_sure)

    async def work(client: Client) -> Any:
        return await client.call("DELETE", await _listed(client, group) + path(prefix).removeprefix("/v1"))

    print_answer(connection, connection.run(work))


async def _listed(client: Client, group: str | None) -> str:
    """The path of the list of keys."""
    if group is None:
        return path("api_keys")
    return path("gateway", "groups", await names.group_id(client, group), "api_keys")


_COLUMNS = (
    Column("PREFIX", lambda key: key["prefix"]),
    Column("NAME", lambda key: key["name"]),
    Column("TYPE", lambda key: key.get("type", KeyKind.FEDERATED.value)),
    Column("CREATED", lambda key: key["created_at"]),
    Column("LAST USED", lambda key: key["last_used_at"]),
)
