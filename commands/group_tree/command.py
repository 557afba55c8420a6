"""`tollgate groups tree`: reads groups and usage, a few calls at a time, and prints the tree."""

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.editing import names
from commands.editing.paths import path
from commands.errors import AwayError, RefusedError
from commands.group_tree.tree import (
    Group,
    Node,
    Usage,
    find,
    groups_in,
    has_daily_limit,
    roots_of,
    tree_json,
    tree_text,
)
from commands.output import json_text
from commands.resources.lists import all_items

_CALLS_AT_A_TIME = 3
"""Control works on three calls of a workspace at a time."""


@click.command("tree")
@click.argument("group", metavar="[ID]", required=False)
@click.option("--no-usage", is_flag=True, help="Limits alone: one call per thousand groups.")
@over_api
def tree(group: str | None, no_usage: bool, connection: Connection) -> None:
    """Draw the groups, or the group ID and all below it, with their limits and today's usage.

    Usage is asked for each group that has a daily limit: at most a hundred groups a second.
    """

    async def work(client: Client) -> tuple[Sequence[Node], Usage]:
        roots: Sequence[Node] = roots_of(await all_items(client, names.GROUPS))
        if group is not None:
            found = find(roots, await names.group_id(client, group))
            roots = () if found is None else (found,)
        return roots, {} if no_usage else await _usage_of(client, list(groups_in(roots)))

    roots, usage = connection.run(work)
    if connection.as_json:
        click.echo(json_text(tree_json(roots, usage)))
    else:
        click.echo(tree_text(roots, usage) or "There are no groups.")


async def _usage_of(client: Client, groups: Sequence[Group]) -> Usage:
    """Of each group with a daily limit. None where control cannot tell now, because Redis is away."""
    places = asyncio.Semaphore(_CALLS_AT_A_TIME)

    async def ask(group: Group) -> Any:
        async with places:
            try:
                return await all_items(client, path("gateway", "groups", group["id"], "usage"))
            except AwayError:
                return None
            except RefusedError as error:
                if error.status != 404:  # deleted meanwhile
                    raise
                return []

    limited = [group for group in groups if has_daily_limit(group)]
    found = await asyncio.gather(*map(ask, limited))
    return {group["id"]: usage for group, usage in zip(limited, found, strict=True)}
