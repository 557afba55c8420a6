"""`tollgate keys`: federated keys of a group, and the workspace's own (docs/reference/command-line.md#resources)."""

from datetime import UTC, datetime
from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, check_something, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.group_option import group_option
from commands.editing.hidden_values import hidden_value
from commands.editing.key_settings import (
    SETTINGS,
    changed_lists,
    changes_lists,
    parse_overlap,
    readable,
    settings_of,
    state_text,
    with_settings,
)
from commands.editing.paths import path
from commands.editing.shown import print_answer
from commands.editing.spend_limits import SPEND_COLUMNS
from commands.errors import RefusedError
from commands.lists import all_items, items_of, print_items
from commands.output import Column, cell_text, json_text, table
from commands.times import until_text
from policy.credentials import KeyKind
from policy.keys.roles import Role

_WORKSPACE_KINDS = [kind.value for kind in KeyKind if kind is not KeyKind.FEDERATED]
_ROLES = [role.value for role in Role]
_ALL_KEYS = path("gateway", "api_keys")
_group_option = group_option("group", "The group, by id or external id; without it, the workspace's own keys.")
_owner_option = group_option("group", "The group, by id or external id; without it, its key is looked for in all.")
_prefix = click.argument("prefix", shell_complete=known_names.key_prefixes)
_federated_prefix = click.argument("prefix", shell_complete=known_names.federated_prefixes)


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

    print_items(connection, connection.run(work), _COLUMNS if group is None else _FEDERATED_COLUMNS)


@keys.command()
@_prefix
@_group_option
@over_api
def get(prefix: str, group: str | None, connection: Connection) -> None:
    """Print one key, without its secret part."""

    async def work(client: Client) -> Any:
        return await client.call("GET", await _listed(client, group) + path(prefix).removeprefix("/v1"))

    _print_key(connection, connection.run(work))


@keys.command()
@_group_option
@click.option("--name", help="What the key is for.")
@click.option("--type", "kind", type=click.Choice(_WORKSPACE_KINDS), help="Of a workspace key: what it may do.")
@click.option("--role", type=click.Choice(_ROLES), help="Of a WORKSPACE_MANAGE_ALL key; without it, admin.")
@with_settings
@click.option("--only-key", is_flag=True, help="Print nothing but the key: KEY=$(tollgate keys create … --only-key).")
@file_option
@over_api
def create(group: str | None, only_key: bool, file: TextIO | None, connection: Connection, **flags: Any) -> None:
    """Create a key and print it. It is shown only here. What is set on it is for keys of groups."""
    settings = settings_of(flags)
    body = body_of(file, only(name=flags["name"], type=flags["kind"], role=flags["role"]) | settings)
    body |= changed_lists(body, flags)
    if (group is None) == (body.get("type") is None):
        raise click.UsageError("give --group for a group's key, or --type for a key of the workspace")
    if group is None and (settings or changes_lists(flags)):
        raise click.UsageError(f"only a group's key has settings: leave out {SETTINGS}, or give --group")
    if only_key and connection.as_json:
        raise click.UsageError("give --only-key or --json, not both")

    async def work(client: Client) -> Any:
        return await client.call("POST", await _listed(client, group), body)

    created = connection.run(work)
    if only_key:
        click.echo(created["api_key"])
    else:
        _print_key(connection, created)


@keys.command()
@group_option("group", "The group, by id or external id.", required=True)
@click.option("--name", help="What the key is for.")
@with_settings
@click.option(
    "--key-file",
    type=click.File(encoding="utf-8"),
    help="A file with the key, or - for standard input; without it, a terminal asks. Line ends at its end are cut.",
)
@over_api
def register(group: str, key_file: TextIO | None, connection: Connection, **flags: Any) -> None:
    """Register a key of your own for a group. It is stored as a digest, and never printed."""
    body = only(key=hidden_value(key_file, "key", "--key-file"), name=flags["name"])
    body |= settings_of(flags) | changed_lists({}, flags)

    async def work(client: Client) -> Any:
        return await client.call("POST", f"{await _listed(client, group)}/register", body)

    print_answer(connection, connection.run(work))


@keys.command("set")
@_federated_prefix
@_owner_option
@click.option("--name", help="What the key is for; an empty text removes it.")
@with_settings
@file_option
@over_api
def set_key(prefix: str, group: str | None, file: TextIO | None, connection: Connection, **flags: Any) -> None:
    """Change what is set on a group's key.

    Flags change what they name and leave the rest: --allow-ip and --slug replace the whole list, a limit those of its
    type or unit.
    """
    members = {} if flags["name"] is None else {"name": flags["name"] or None}
    body = body_of(file, members | settings_of(flags))
    check_something(body or only(rate_limits=changes_lists(flags) or None))

    async def work(client: Client) -> Any:
        one = await _federated(client, group, prefix)
        if changes_lists(flags):
            body.update(changed_lists(await client.call("GET", one) | body, flags))
        return await client.call("PATCH", one, body)

    _print_key(connection, connection.run(work))


@keys.command()
@_federated_prefix
@_owner_option
@over_api
def spend(prefix: str, group: str | None, connection: Connection) -> None:
    """Print what is spent of the spend limits of a group's key, with the keys of its rotation."""

    async def work(client: Client) -> Any:
        return await client.call("GET", f"{await _federated(client, group, prefix)}/spend")

    answer = connection.run(work)
    click.echo(json_text(answer) if connection.as_json else table(SPEND_COLUMNS, answer["items"]))


@keys.command()
@_federated_prefix
@_owner_option
@over_api
def disable(prefix: str, group: str | None, connection: Connection) -> None:
    """Refuse calls with a group's key, within a second, until it is enabled again."""
    _set_disabled(connection, group, prefix, True)


@keys.command()
@_federated_prefix
@_owner_option
@over_api
def enable(prefix: str, group: str | None, connection: Connection) -> None:
    """Let calls with a disabled key pass again."""
    _set_disabled(connection, group, prefix, False)


@keys.command()
@_federated_prefix
@_owner_option
@click.option(
    "--overlap",
    "overlap_s",
    callback=parse_overlap,
    default="1h",
    show_default=True,
    metavar="SPAN",
    help="So long both keys work: 15m, 1h, 7d at most; 0s ends the old one at once.",
)
@over_api
def rotate(prefix: str, group: str | None, overlap_s: int, connection: Connection) -> None:
    """Put a new key in the place of a group's key and print it. It is shown only here.

    The new key has the settings of the old one and shares its limits. Nothing but the key is on standard output:
    KEY=$(tollgate keys rotate PREFIX --overlap 1h).
    """

    async def work(client: Client) -> Any:
        one = await _federated(client, group, prefix)
        return await client.call("POST", f"{one}/rotate", {"overlap_seconds": overlap_s})

    answer = connection.run(work)
    if connection.as_json:
        click.echo(json_text(answer))
        return
    click.echo(answer["api_key"])
    old = answer["replaces"]
    rest = until_text(old["expires_at"], datetime.now(UTC))
    message = f"{answer['prefix']} takes its place. {old['prefix']} ends in {rest}, at {old['expires_at']}."
    click.echo(cell_text(message), err=True)


@keys.command()
@_prefix
@_group_option
@yes_option
@over_api
def delete(prefix: str, group: str | None, is_sure: bool, connection: Connection) -> None:
    """Revoke a key. Its calls are refused within a second."""
    ask_before(f"key {prefix}", is_sure)

    async def work(client: Client) -> Any:
        return await client.call("DELETE", await _listed(client, group) + path(prefix).removeprefix("/v1"))

    print_answer(connection, connection.run(work))


keys.add_command(delete, "revoke")


def _set_disabled(connection: Connection, group: str | None, prefix: str, is_disabled: bool) -> None:
    async def work(client: Client) -> Any:
        return await client.call("PATCH", await _federated(client, group, prefix), {"disabled": is_disabled})

    _print_key(connection, connection.run(work))


def _print_key(connection: Connection, key: dict[str, Any]) -> None:
    print_answer(connection, key if connection.as_json else readable(key, datetime.now(UTC)))


async def _listed(client: Client, group: str | None) -> str:
    """The path of the list of keys."""
    if group is None:
        return path("api_keys")
    return path("gateway", "groups", await names.group_id(client, group), "api_keys")


async def _federated(client: Client, group: str | None, prefix: str) -> str:
    """The path of a group's key. `group` None: it is looked for in all groups. Raises RefusedError."""
    if group is not None:
        return await _listed(client, group) + path(prefix).removeprefix("/v1")
    async for key in items_of(client, _ALL_KEYS, q=prefix, type=KeyKind.FEDERATED.value):
        if key["prefix"] == prefix:
            return path("gateway", "groups", key["group"]["id"], "api_keys", prefix)
    raise RefusedError(f"no group of this workspace has a key {prefix!r}", 404, "NOT_FOUND")


_STATE = Column("STATE", lambda key: state_text(key, datetime.now(UTC)))
_COLUMNS = (
    Column("PREFIX", lambda key: key["prefix"]),
    Column("NAME", lambda key: key["name"]),
    Column("TYPE", lambda key: key.get("type", KeyKind.FEDERATED.value)),
    Column("ROLE", lambda key: key.get("role")),
    Column("CREATED", lambda key: key["created_at"]),
    Column("LAST USED", lambda key: key["last_used_at"]),
)
_FEDERATED_COLUMNS = (*_COLUMNS[:2], _STATE, *_COLUMNS[4:])
