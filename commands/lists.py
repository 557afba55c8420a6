"""All pages of a list of the management API, and how a command prints them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import click

from commands.connection import Client, Connection
from commands.output import Column, json_text, table

PAGE_ITEMS = 1000
Told = Callable[[int], None]
limit_option = click.option(
    "--limit", type=click.IntRange(1, PAGE_ITEMS), default=100, show_default=True, help="At most so many."
)


async def items_of(client: Client, path: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Every item of the list, page by page."""
    async for page in _pages_of(client, path, query):
        for item in page["items"]:
            yield item


async def all_items(client: Client, path: str, report: Told | None = None, **query: Any) -> list[dict[str, Any]]:
    """The items of all pages. `report` gets the number of those read, while more follow."""
    items: list[dict[str, Any]] = []
    async for page in _pages_of(client, path, query):
        items += page["items"]
        if report is not None and page["pagination"]["cursor"] is not None:
            report(len(items))
    return items


async def _pages_of(client: Client, path: str, query: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    page = await client.call("GET", path, limit=PAGE_ITEMS, **query)
    yield page
    while (cursor := page["pagination"]["cursor"]) is not None:
        page = await client.call("GET", path, cursor=cursor)
        yield page


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


def print_page(connection: Connection, answer: Mapping[str, Any], columns: Sequence[Column], remedy: str) -> None:
    """Print the one page of a list that was asked for; if more follow, how to see them."""
    if connection.as_json:
        click.echo(json_text(answer))
        return
    click.echo(table(columns, answer["items"]))
    if answer["pagination"]["has_more"]:
        click.echo(f"There are more: {remedy}.", err=True)
