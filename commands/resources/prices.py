"""`tollgate prices`: the operator's price list (docs/reference/command-line.md#usage-and-prices)."""

import sys
from typing import Any, BinaryIO

import click

from commands.billing.price_file import read_prices, set_prices
from commands.connection import Client, Connection, over_api
from commands.lists import print_list
from commands.output import Column, json_text, table

_PATH = "/v1/gateway/prices"


@click.group()
def prices() -> None:
    """Prices of calls through a slug, from a date on."""


@prices.command("list")
@click.option("--slug", help="Only of this slug.")
@over_api
def list_prices(connection: Connection, slug: str | None) -> None:
    """Print all prices, by slug and date."""
    print_list(connection, _PATH, _COLUMNS, slug=slug)


@prices.command("set")
@click.argument("slug", required=False)
@click.option("--file", type=click.File("rb"), help="Prices as CSV, - for standard input, instead of SLUG and flags.")
@click.option("--from", "valid_from", help="The UTC date from which it holds, such as 2026-11-01.")
@click.option("--currency", help="ISO 4217, such as EUR.")
@click.option("--input", "input_per_million", help="A million tokens of uncached input, such as 0.15.")
@click.option("--output", "output_per_million", help="A million tokens of output.")
@click.option("--cached-input", "cached_input_per_million", help="Of cached input; by default as uncached input.")
@click.option("--per-call", help="Each call; by default 0.")
@over_api
def set_price(connection: Connection, file: BinaryIO | None, **figures: Any) -> None:
    """Set the price of SLUG, or all prices of a file. A price replaces the slug's price of the same date."""
    body = {name: value for name, value in figures.items() if value is not None}
    if file is not None:
        if body:
            raise click.UsageError("--file takes no SLUG and no other price")
        _set_file(connection, file)
        return
    for name, flag in _NEEDED.items():
        if name not in body:
            raise click.UsageError(f"{flag} is needed, or --file")

    async def ask(client: Client) -> Any:
        return await client.call("PUT", _PATH, body)

    _print(connection, connection.run(ask))


_NEEDED = {"slug": "SLUG", "valid_from": "--from", "currency": "--currency"}
_NEEDED |= {"input_per_million": "--input", "output_per_million": "--output"}


def _set_file(connection: Connection, file: BinaryIO) -> None:
    async def ask(client: Client) -> tuple[int, int]:
        lines = read_prices(file.read())
        return len(lines), await set_prices(client, lines)

    count, changed = connection.run(ask)
    if connection.as_json:
        click.echo(json_text({"prices": count, "changed": changed}))
    else:
        click.echo(f"{changed} of {count} prices set; the others were so already.")


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
