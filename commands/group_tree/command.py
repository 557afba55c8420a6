"""`tollgate groups tree`: reads groups with their usage, a thousand at a time, and prints the tree."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from commands.billing.reports import read_report
from commands.collector import collector_paused
from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.errors import AwayError
from commands.group_tree.tree import Group, has_usage_limit, roots_of, tree_json, tree_text
from commands.lists import Told, all_items, most_option
from commands.output import json_text
from commands.progress import reading
from commands.times import time_from


@click.command("tree")
@click.argument("group", metavar="[ID]", required=False, shell_complete=known_names.groups)
@click.option("--no-usage", is_flag=True, help="Limits alone: no usage, calls or costs.")
@most_option
@over_api
@collector_paused()
def tree(group: str | None, no_usage: bool, most: int | None, connection: Connection) -> None:
    """Draw the groups, or the group ID and all below it, with their limits, today's usage, calls and costs.

    Calls and costs are those of the UTC day as far as events are final, of each group and with all groups below.
    """

    async def work(client: Client) -> Sequence[Group]:
        query: dict[str, Any] = {"most": most}
        query |= {} if connection.as_json else {"effective_models": "false"}
        if group is not None:
            query["top_group_id"] = await names.group_id(client, group)
        groups = await _groups(client, query, no_usage, report)
        return groups if no_usage else await _with_today(client, groups)

    with reading("groups") as report:
        groups = connection.run(work)
    if connection.as_json:
        click.echo(json_text(tree_json(roots_of(groups))))
    else:
        click.echo(tree_text(roots_of(groups)) or "There are no groups.")
    if len(groups) == most:
        click.echo(f"These are the {most} oldest groups; there may be more: raise --limit, or leave it out.", err=True)


async def _with_today(client: Client, groups: Sequence[Group]) -> Sequence[Group]:
    """The groups, each with `today`: its item of the usage report with groups below; None without calls."""
    start = datetime.now(UTC).date().isoformat()
    report = await read_report(client, start=time_from(start, "start"), group_by="entity", rollup="true")
    items = {item["group_id"]: item for item in report["items"]}
    return [{**group, "today": items.get(group["id"])} for group in groups]


async def _groups(client: Client, query: dict[str, Any], no_usage: bool, report: Told) -> Sequence[Group]:
    """The groups, each with `usage`: None where it has usage limits and Redis is away, so that control cannot tell."""
    if no_usage:
        return [group | {"usage": []} for group in await all_items(client, names.GROUPS, report, **query)]
    try:
        return await all_items(client, names.GROUPS, report, **query, usage="true")
    except AwayError:
        groups = await all_items(client, names.GROUPS, report, **query | {"effective_models": "true"})
        return [group | {"usage": None if has_usage_limit(group) else []} for group in groups]
