"""`tollgate prices`: the operator's price list (docs/reference/command-line.md#usage-and-prices)."""

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import click

from commands.billing.price_file import PriceLine, read_prices, set_prices
from commands.billing.price_map import CURRENCY, price_of_model, read_price_map
from commands.connection import Client, Connection, over_api
from commands.editing import known_names
from commands.editing.deletion import ask_before, yes_option
from commands.lists import print_list
from commands.output import Column, json_text, table
from policy.price_wire import price_from_wire, price_to_wire
from policy.prices import parse_date

_PATH = "/v1/gateway/prices"
Pairs = tuple[tuple[str, str], ...]


def _pairs(_context: click.Context, option: click.Parameter, texts: Sequence[str]) -> Pairs:
    """The callback of options of the form NAME=VALUE. Raises click.BadParameter."""
    pairs = tuple((name, text) for name, is_split, text in (text.rpartition("=") for text in texts) if is_split)
    if len(pairs) != len(texts) or len(dict(pairs)) != len(pairs):
        raise click.BadParameter(f"expected {option.metavar}, each name once")
    return pairs


def _date(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """The callback of a date that is used before the API sees it. Raises click.BadParameter."""
    try:
        parse_date(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


_AMOUNTS = {
    "--input": "A million tokens of uncached input, such as 0.15.",
    "--output": "A million tokens of output.",
    "--cached-input": "Of cached input; by default as uncached input.",
    "--cache-write": "Of input that is written to a cache; by default as uncached input.",
    "--cache-write-1h": "Of input that is cached for an hour; by default as other cache writes.",
    "--audio-input": "Of sound in the input; by default as uncached input.",
    "--image-input": "Of pictures in the input; by default as uncached input.",
    "--audio-output": "Of sound in the output; by default as output.",
    "--image-output": "Of pictures in the output; by default as output.",
}


def _with_amounts(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag, help in reversed(_AMOUNTS.items()):
        command = click.option(flag, f"{flag[2:].replace('-', '_')}_per_million", help=help)(command)
    return command


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
@click.argument("slug", required=False, shell_complete=known_names.slugs)
@click.option(
    "-f", "--file", type=click.File("rb"), help="Prices as CSV, - for standard input, instead of SLUG and flags."
)
@click.option("--from", "valid_from", help="The UTC date from which it holds, such as 2026-11-01.")
@click.option("--currency", help="ISO 4217, such as EUR.")
@_with_amounts
@click.option("--per-call", help="Each call; by default 0.")
@click.option("--per-server-tool-call", help="Each call of a tool that the provider runs; by default 0.")
@click.option(
    *("--long-context", "long_context"),
    multiple=True,
    callback=_pairs,
    metavar="MEMBER=N",
    help="Prices of calls with much input: `above=200000`, `input=6`, `cached-input=0.6`, `cache-write=7.5`,"
    " `output=22.5`. May be repeated.",
)
@click.option(
    *("--service-tier", "service_tiers"),
    multiple=True,
    callback=_pairs,
    metavar="TIER=FACTOR",
    help="What tokens of a service tier cost, such as flex=0.5. May be repeated.",
)
@click.option("--max-input-tokens", type=int, help="What the model takes at most.")
@click.option("--max-output-tokens", type=int, help="What the model gives at most.")
@over_api
def set_price(connection: Connection, file: BinaryIO | None, **figures: Any) -> None:
    """Set the price of SLUG, or all prices of a file. A price replaces the slug's price of the same date."""
    body = {name: value for name, value in figures.items() if value not in (None, ())}
    if file is not None:
        if body:
            raise click.UsageError("--file takes no SLUG and no other price")
        _set_file(connection, file)
        return
    for name, flag in _NEEDED.items():
        if name not in body:
            raise click.UsageError(f"{flag} is needed, or --file")

    if "long_context" in body:
        body["long_context"] = _long_context(body["long_context"])
    if "service_tiers" in body:
        body["service_tiers"] = {tier: {"multiplier": factor} for tier, factor in body["service_tiers"]}

    async def ask(client: Client) -> Any:
        return await client.call("PUT", _PATH, body)

    _print(connection, connection.run(ask))


def _long_context(pairs: Pairs) -> dict[str, Any]:
    """The member that the flags describe. The API checks what is missing or unknown."""
    members: dict[str, Any] = {f"{name.replace('-', '_')}_per_million": text for name, text in pairs}
    above = members.pop("above_per_million", None)
    if above is not None:
        members["above_input_tokens"] = int(above) if above.isdecimal() else above
    return members


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


@prices.command("import")
@click.argument("file", type=click.File("rb"))
@click.option(
    *("--slug", "names"),
    multiple=True,
    required=True,
    callback=_pairs,
    metavar="SLUG=NAME",
    help="A slug, and the map's name of its model. May be repeated.",
)
@click.option(*("--from", "valid_from"), required=True, callback=_date, help="The UTC date from which the prices hold.")
@click.option("--dry-run", is_flag=True, help="Print the prices, and set none.")
@over_api
def import_prices(connection: Connection, file: BinaryIO, names: Pairs, valid_from: str, dry_run: bool) -> None:
    """Set the prices of slugs from LiteLLM's public price map in JSON; - for standard input. All of them, or none."""

    async def ask(client: Client) -> tuple[list[PriceLine], list[str], int]:
        lines, notes = _mapped(file.read(), names, valid_from)
        return lines, notes, 0 if dry_run else await set_prices(client, lines)

    lines, notes, changed = connection.run(ask)
    for note in notes:
        click.echo(note, err=True)
    items = [{"slug": line.body["slug"], **price_to_wire(price_from_wire("", line.body))} for line in lines]
    if connection.as_json:
        click.echo(json_text({"prices": items, "changed": changed}))
        return
    click.echo(table(_COLUMNS, items))
    click.echo("No price was set." if dry_run else f"{changed} of {len(lines)} prices set; the others were so already.")


def _mapped(content: bytes, names: Pairs, valid_from: str) -> tuple[list[PriceLine], list[str]]:
    """The price of each slug, and what of the map is not in it. Raises PriceMapError."""
    models = read_price_map(content)
    lines = []
    notes = []
    for slug, name in names:
        price = price_of_model(models, name)
        body = {"slug": slug, "valid_from": valid_from, "currency": CURRENCY, **price.members}
        lines.append(PriceLine(f"{slug}={name}", body))
        notes += [f"{slug}: {note}" for note in price.notes]
    return lines, notes


@prices.command("delete")
@click.argument("slug", shell_complete=known_names.slugs)
@click.option("--from", "valid_from", required=True, help="The price's date.")
@yes_option
@over_api
def delete_price(connection: Connection, slug: str, valid_from: str, is_sure: bool) -> None:
    """Delete a price of SLUG. Reports on its time then use the price before it, if there is one."""
    ask_before(f"the price of {slug} from {valid_from}", is_sure)

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
    Column("CACHE WRITE", lambda price: price.get("cache_write_per_million", "")),
    Column("OUTPUT", lambda price: price["output_per_million"]),
    Column("PER CALL", lambda price: price["per_call"]),
    Column("LONG CONTEXT", lambda price: _long_text(price.get("long_context"))),
    Column("TIERS", lambda price: _tiers_text(price.get("service_tiers"))),
)


def _long_text(long_context: dict[str, Any] | None) -> str:
    return "" if long_context is None else f"above {long_context['above_input_tokens']}"


def _tiers_text(tiers: dict[str, Any] | None) -> str:
    return ", ".join(f"{tier} ×{members['multiplier']}" for tier, members in (tiers or {}).items())
