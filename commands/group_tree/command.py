"""`tollgate groups tree`: reads groups with their usage, a thousand at a time, and prints the tree."""

from collections.abc import Sequence
from typing import Any

import click

from commands.collector import collector_paused
from commands.connection import Client, Connection, over_api
from commands.editing import names
from commands.errors import AwayError
from commands.group_tree.tree import Group, has_usage_limit, roots_of, tree_json, tree_text
from commands.lists import Told, all_items
from commands.output import json_text
from commands.progress import reading


@click.command("tree")
@click.argument("group", metavar="[ID]", required=False)
@click.option("--no-usage", is_flag=True, help="Limits alone.")
@over_api
@collector_paused()
def tree(group: str | None, no_usage: bool, connection: Connection) -> None:
    """Draw the groups, or the group ID and all below it, with their limits and today's usage."""

    async def work(client: Client) -> Sequence[Group]:
        query: dict[str, Any] = {} if connection.as_json else {"effective_models": "false"}
        if group is not None:
            query["top_group_id"] = await names.group_id(client, group)
        return await _groups(client, query, no_usage, report)

    with reading("groups") as report:
        groups = connection.run(work)
    if connection.as_json:
        click.echo(json_text(tree_json(roots_of(groups))))
    else:
        click.echo(tree_text(roots_of(groups)) or "There are no groups.")


async def _groups(client: Client, query: dict[str, Any], no_usage: bool, report: Told) -> Sequence[Group]:
    """The groups, each with `usage`: None where it has usage limits and Redis is away, so that control cannot tell."""
    if no_usage:
        return [group | {"usage": []} for group in await all_items(client, names.GROUPS, report, **query)]
    try:
        return await all_items(client, names.GROUPS, report, **query, usage="true")
    except AwayError:
        groups = await all_items(client, names.GROUPS, report, **query | {"effective_models": "true"})
        return [group | {"usage": None if has_usage_limit(group) else []} for group in groups]
