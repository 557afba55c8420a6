"""`tollgate groups`: who may call which slugs, and how much (docs/reference/command-line.md#resources)."""

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, check_something, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.limits import LimitChange, changed, limits_of, parse_limits
from commands.editing.paths import path
from commands.editing.shown import details, print_answer
from commands.editing.spend_limits import SPEND_COLUMNS, changed_spend_limits, parse_spend_limits, spend_limit_text
from commands.group_tree.command import tree
from commands.lists import most_option, print_list
from commands.output import Column, json_text, table
from commands.resources.balances import balance, credit, entries

_group = click.argument("group", metavar="ID", shell_complete=known_names.groups)
_limit_option = click.option(
    "--limit",
    "limits",
    multiple=True,
    callback=parse_limits,
    metavar="SLUG:TYPE/UNIT=N",
    help="A limit, such as acme/chat:REQUEST/MINUTE=60, and access to its slug; N may be `none`. May be repeated.",
)
_spend_option = click.option(
    "--spend-limit",
    "spend_limits",
    multiple=True,
    callback=parse_spend_limits,
    metavar="UNIT=AMOUNT,CURRENCY",
    help="What calls may cost in a DAY or MONTH, such as DAY=100.00,EUR, or DAY=100.00,EUR,HARD, which is never"
    " exceeded; DAY=none removes it. May be repeated.",
)
_slug_option = click.option(
    "--slug", "slugs", multiple=True, help="Access to a slug, without a limit of its own. May be repeated."
)


def _percents(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> list[int] | None:
    """Parse percents; None if there are none, an empty list for `none`. Raises click.BadParameter."""
    if not texts:
        return None
    if texts == ("none",):
        return []
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise click.BadParameter("expected whole numbers from 1 to 100, or none alone") from None


_percent_option = click.option(
    "--alert-percent",
    "alert_percents",
    multiple=True,
    callback=_percents,
    metavar="N",
    help="A percent of DAY and MONTH limits, of spend limits and of the balance at which webhooks are told."
    " May be repeated; `none` alone: no percent.",
)


@click.group()
def groups() -> None:
    """Groups: who may call which slugs, and how much. ID is a group's id or external id."""


@groups.command("list")
@most_option
@over_api
def list_groups(connection: Connection, most: int | None) -> None:
    """Print all groups, page by page."""
    query = {} if connection.as_json else {"effective_models": "false"}
    print_list(connection, names.GROUPS, _COLUMNS, most, **query)


@groups.command()
@_group
@over_api
def get(group: str, connection: Connection) -> None:
    """Print one group, with its own limits and those that bind it."""
    _print_group(connection, connection.run(lambda client: names.group(client, group)))


@groups.command()
@click.argument("external_id", metavar="[ID]", required=False)
@click.option("--name", help="A name for people.")
@click.option("--parent", metavar="ID", help="The group above, by id or external id.")
@click.option(
    "--enforcement",
    type=click.Choice(["INDEPENDENT", "CASCADING"], case_sensitive=False),
    help="How limits of the tree are counted; the parent's, or INDEPENDENT.",
)
@_slug_option
@_limit_option
@_spend_option
@_percent_option
@file_option
@over_api
def create(external_id: str | None, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Create a group with the external id ID."""
    metadata = only(external_entity_id=external_id, name=flags["name"])
    hierarchy = only(limit_enforcement=flags["enforcement"])
    members = {name: part for name, part in (("metadata", metadata), ("hierarchy", hierarchy)) if part}
    body = body_of(file, members | only(alert_percents=flags["alert_percents"]))
    _add_models(body, body.get("models") or [], flags["slugs"], flags["limits"])
    if flags["spend_limits"]:
        body["spend_limits"] = changed_spend_limits(body.get("spend_limits") or [], flags["spend_limits"])

    async def work(client: Client) -> Any:
        if flags["parent"] is not None:
            above = await names.group_id(client, flags["parent"])
            body["hierarchy"] = {**(body.get("hierarchy") or {}), "parent_group_id": above}
        return await client.call("POST", names.GROUPS, body)

    _print_group(connection, connection.run(work))


@groups.command("set")
@_group
@click.option("--name", help="A name for people; an empty text removes it.")
@_slug_option
@_limit_option
@_spend_option
@click.option("--remove-slug", "removed", multiple=True, help="Take access to a slug away. May be repeated.")
@_percent_option
@file_option
@over_api
def set_group(group: str, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Change a group. Flags change what they name and leave the rest; a list of -f replaces the whole list."""
    members: dict[str, Any] = {} if flags["name"] is None else {"metadata": {"name": flags["name"] or None}}
    body = body_of(file, members | only(alert_percents=flags["alert_percents"]))
    changes_models = bool(flags["slugs"] or flags["limits"] or flags["removed"])
    check_something(body or only(models=changes_models or None, spend_limits=flags["spend_limits"] or None))

    async def work(client: Client) -> Any:
        item = await names.group(client, group)
        if changes_models or flags["spend_limits"]:
            item = await client.call("GET", path("gateway", "groups", item["id"]))  # the version that is changed
        if changes_models:
            present = body["models"] if body.get("models") is not None else item["models"]
            rest = _without(present, flags["removed"])
            _add_models(body, rest, flags["slugs"], flags["limits"])
            body.setdefault("models", rest)
        if flags["spend_limits"]:
            present = body["spend_limits"] if body.get("spend_limits") is not None else item.get("spend_limits", [])
            body["spend_limits"] = changed_spend_limits(present, flags["spend_limits"])
        return await client.call("PATCH", path("gateway", "groups", item["id"]), body)

    _print_group(connection, connection.run(work))


@groups.command()
@_group
@over_api
def spend(group: str, connection: Connection) -> None:
    """Print the spend limits that bind a group's calls, and how much of each is spent."""

    async def work(client: Client) -> Any:
        id = await names.group_id(client, group)
        return await client.call("GET", path("gateway", "groups", id, "spend"))

    answer = connection.run(work)
    click.echo(json_text(answer) if connection.as_json else table(SPEND_COLUMNS, answer["items"]))


@groups.command()
@_group
@click.option("--forfeit", is_flag=True, help="Also if a prepaid balance has credit left: it is lost.")
@yes_option
@over_api
def delete(group: str, forfeit: bool, is_sure: bool, connection: Connection) -> None:
    """Delete a group, all groups below it and all their keys."""
    item = connection.run(lambda client: names.group(client, group))
    external_id = item["metadata"]["external_entity_id"]
    credit = ", their keys and the credit of their balances" if forfeit else " and all their keys"
    ask_before(f"group {external_id} ({item['id']}), all groups below it{credit}", is_sure)
    query = {"forfeit": "true"} if forfeit else {}
    deleted = path("gateway", "groups", item["id"])
    print_answer(connection, connection.run(lambda client: client.call("DELETE", deleted, **query)))


def _add_models(
    body: dict[str, Any], present: Sequence[Mapping[str, Any]], slugs: Sequence[str], limits: Sequence[LimitChange]
) -> None:
    if slugs or limits:
        body["models"] = changed(present, slugs, limits)


def _without(models: Sequence[Mapping[str, Any]], removed: Sequence[str]) -> list[Mapping[str, Any]]:
    missing = set(removed) - {model["slug"] for model in models}
    if missing:
        raise click.ClickException(f"the group has no access to {', '.join(sorted(missing))}")
    return [model for model in models if model["slug"] not in removed]


def _print_group(connection: Connection, group: dict[str, Any]) -> None:
    if connection.as_json:
        click.echo(json_text(group))
        return
    bound = {model["slug"]: model for model in group["effective_models"]}
    members = {name: value for name, value in group.items() if name not in ("models", "effective_models")}
    for name in members.keys() & {"spend_limits", "effective_spend_limits"}:
        members[name] = [_spend_text(limit, group["id"]) for limit in group[name]]
    click.echo(details(members))
    click.echo()
    columns = (*_MODEL_COLUMNS, Column("EFFECTIVE LIMITS", lambda model: _limits_text(bound.get(model["slug"], {}))))
    click.echo(table(columns, group["models"]))


def _limits_text(model: Mapping[str, Any]) -> str:
    return ", ".join(limits_of(model))


def _spend_text(limit: Mapping[str, Any], group_id: str) -> str:
    source = limit.get("source_group", group_id)
    return spend_limit_text(limit) + ("" if source == group_id else f", set by {source}")


_MODEL_COLUMNS = (Column("SLUG", lambda model: model["slug"]), Column("OWN LIMITS", _limits_text))
_COLUMNS = (
    Column("EXTERNAL ID", lambda group: group["metadata"]["external_entity_id"]),
    Column("NAME", lambda group: group["metadata"]["name"]),
    Column("ID", lambda group: group["id"]),
    Column("PARENT", lambda group: group["hierarchy"]["parent_group_id"]),
    Column("ENFORCEMENT", lambda group: group["hierarchy"]["limit_enforcement"]),
    Column("SLUGS", lambda group: len(group["models"])),
    Column("UPDATED", lambda group: group["updated_at"]),
)

for command in (balance, credit, entries, tree):
    groups.add_command(command)
