"""`tollgate prices`: the operator's price list (docs/reference/command-line.md#usage-and-prices)."""

import sys
from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.output import Column, json_text, table
from commands.resources.lists import print_list

_PATH = "/v1/gateway/prices"


@click.group()
def prices() -> None:
    """What calls through a slug cost, from a date on."""


@prices.command("list")
@click.option("--slug", help="Only of this slug.")
@over_api
def list_prices(connection: Connection, slug: str | None) -> None:
    """Print all prices, by slug and date."""
    print_list(connection, _PATH, _COLUMNS, slug=slug)


@prices.command("set")
@click.argument("slug")
@click.option("--from", "valid_from", required=True, help="The UTC date from which it holds, such as 2026-11-01.")
@click.option("--currency", required=True, help="ISO 4217, such as EUR.")
@click.option("--input", "input_per_million", required=True, help="A million tokens of uncached input, such as 0.15.")
@click.option("--output", "output_per_million", required=True, help="A million tokens of output.")
@click.option("--cached-input", "cached_input_per_million", help="Of cached input; by default as uncached input.")
@click.option("--per-call", help="Each call; by default 0.")
@over_api
def set_price(connection: Connection, **given: Any) -> None:
    """Set the price of SLUG. It replaces the slug's price of the same date."""
    body = {name: value for name, value in given.items() if value is not None}

    async def ask(client: Client) -> Any:
        return await client.call("PUT", _PATH, body)

    _print(connection, connection.run(ask))


@prices.command("delete")
@click.argument("slug")
@click.option("--from", "valid_from", required=True, help="The price's date.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@over_api
def delete_price(connection: Connection, slug: str, valid_from: str, yes: bool) -> None:
    """Delete a price of SLUG. Reports on its time then use the price before it, if there is one."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete the price of {slug} from {valid_from}?", abort=True)

    async def ask(client: Client) -> Any:
        return await client.call("DELETE", _PATH, slug=slug, valid_from=valid_from)

    _print(connection, connection.run(ask))


def _print(connection: Connection, price: dict[str, Any]) -> None:
    click.echo(json_text(price) if connection.as_json else table(_COLUMNS, [price]))


_COLUMNS = (
    Column("SLUG", lambda price: price["slug"]),
    Column("FROM", lambda price: price["valid_from"]),
    Column("CURRENCY", lambda price: price["currency"]),
    Column("INPUT", lambda price: price["input_per_million"]),
    Column("CACHED INPUT", lambda price: price["cached_input_per_million"]),
    Column("OUTPUT", lambda price: price["output_per_million"]),
    Column("PER CALL", lambda price: price["per_call"]),
)
