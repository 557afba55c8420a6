"""All pages of a list of the management API, and how a command prints them."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import click

from commands.connection import Client, Connection
from commands.output import Column, json_text, table

PAGE_ITEMS = 1000


async def items_of(client: Client, path: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Every item of the list, page by page."""
    answer = await client.call("GET", path, limit=PAGE_ITEMS, **query)
    while True:
        for item in answer["items"]:
            yield item
        cursor = answer["pagination"]["cursor"]
        if cursor is None:
            return
        answer = await client.call("GET", path, cursor=cursor)


async def all_items(client: Client, path: str, **query: Any) -> list[dict[str, Any]]:
    return [item async for item in items_of(client, path, **query)]


def print_list(connection: Connection, path: str, columns: Sequence[Column], **query: Any) -> None:
    """Print the whole list: as a table, or as JSON with `items` and `pagination`, as the API would on one page."""
    items = connection.run(lambda client: all_items(client, path, **query))
    print_items(connection, items, columns)


def print_items(connection: Connection, items: Sequence[dict[str, Any]], columns: Sequence[Column]) -> None:
    """Print these items in the same form."""
    if connection.as_json:
        click.echo(json_text({"items": items, "pagination": {"has_more": False, "cursor": None}}))
    else:
        click.echo(table(columns, items))
