"""All pages of a list of the management API, and how a command prints them."""

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import click

from commands.connection import Client, Connection
from commands.output import Column, Table, json_text, table

PAGE_ITEMS = 1000
Told = Callable[[int], None]
limit_option = click.option(
    "--limit", type=click.IntRange(1, PAGE_ITEMS), default=100, show_default=True, help="At most so many."
)

most_option = click.option(
    "--limit", "most", type=click.IntRange(1), help="At most so many, the oldest first; all without it."
)


async def items_of(client: Client, path: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Every item of the list, page by page."""
    async for items, _ in _pages_of(client, path, query):
        for item in items:
            yield item


async def all_items(
    client: Client, path: str, report: Told | None = None, most: int | None = None, **query: Any
) -> list[dict[str, Any]]:
    """The items of all pages, at most so many. `report` gets the number of those read, while more follow."""
    all_of_them: list[dict[str, Any]] = []
    async for items, has_more in _pages_of(client, path, query, most):
        all_of_them += items
        if report is not None and has_more:
            report(len(all_of_them))
    return all_of_them


async def _pages_of(
    client: Client, path: str, query: dict[str, Any], most: int | None = None
) -> AsyncIterator[tuple[list[dict[str, Any]], bool]]:
    """The items of each page, together at most so many, and whether there are more."""
    rest = sys.maxsize if most is None else most
    page = await client.call("GET", path, limit=min(rest, PAGE_ITEMS), **query)
    while True:
        cursor = page["pagination"]["cursor"]
        items = page["items"][:rest]
        rest -= len(items)
        yield items, cursor is not None or len(items) < len(page["items"])
        if cursor is None or rest == 0:
            return
        page = await client.call("GET", path, cursor=cursor)


def print_list(
    connection: Connection, path: str, columns: Sequence[Column], most: int | None = None, **query: Any
) -> None:
    """Print the list, or its first items: as a table, each page once it is there, or as JSON, as on one page."""
    whole = Table(columns)

    async def work(client: Client) -> tuple[list[dict[str, Any]], bool]:
        read: list[dict[str, Any]] = []
        is_cut = False
        async for items, is_cut in _pages_of(client, path, query, most):  # noqa: B007 (the last page's is returned)
            if connection.as_json:
                read += items
            else:
                click.echo(whole.rows(items))
        return read, is_cut

    read, is_cut = connection.run(work)
    if connection.as_json:
        click.echo(json_text({"items": read, "pagination": {"has_more": is_cut, "cursor": None}}))
    elif is_cut:
        click.echo("There are more: raise --limit, or leave it out.", err=True)


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
