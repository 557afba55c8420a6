"""`tollgate usage`: usage limits, usage reports and statements (docs/reference/command-line.md#usage-and-prices)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from commands.billing.all_statements import StatementFiles, write_all
from commands.billing.months import StatementRequest
from commands.billing.reports import GROUPINGS, ORDERS, columns_of, csv_rows, read_report, table_rows
from commands.connection import Client, Connection, over_api
from commands.editing import names
from commands.editing.group_option import group_option
from commands.editing.paths import path
from commands.lists import all_items, print_items
from commands.output import Column, json_text, table
from commands.renamed_flags import WINDOW, RenamedFlags
from commands.times import TIMES, at_flag
from policy.statements.csv_text import csv_text
from policy.statements.statement import Statement, statement_text


@click.group()
def usage() -> None:
    """Reports of what calls used and what that costs."""


@usage.command("list")
@group_option("group", "The group, by id or external id.", required=True)
@over_api
def list_usage(connection: Connection, group: str) -> None:
    """Print a group's usage limits and how much of each is used."""

    async def work(client: Client) -> Any:
        id = await names.group_id(client, group)
        return await all_items(client, path("gateway", "groups", id, "usage"))

    print_items(connection, connection.run(work), _COLUMNS)


_COLUMNS = (
    Column("SLUG", lambda entry: entry["slug"]),
    Column("TYPE", lambda entry: entry["type"]),
    Column("UNIT", lambda entry: entry["unit"]),
    Column("USED", lambda entry: entry["current_usage"]),
    Column("LIMIT", lambda entry: entry["threshold"]),
    Column("SET BY", lambda entry: entry["source_group"]),
    Column("RESET", lambda entry: entry["reset_at"]),
)


@usage.command(cls=RenamedFlags, renamed=WINDOW)
@click.option("--since", required=True, callback=at_flag, help=f"The start: {TIMES}.")
@click.option("--until", callback=at_flag, help="The end, exclusive; by default as late as the events are final.")
@click.option("--group-by", type=click.Choice(GROUPINGS), default="day", show_default=True)
@group_option("entity", "Only of this group, by external id or id.")
@click.option("--with-groups-below", is_flag=True, help="Sum each group with all below it.")
@click.option("--order-by", type=click.Choice(ORDERS), help="The largest sum first; by default in the order of names.")
@click.option("--order", type=click.Choice(["desc", "asc"]), help="Of --order-by; by default desc.")
@click.option("--currency", help="Of --order-by cost, if costs are in several.")
@click.option("--format", "form", type=click.Choice(["table", "csv"]), default="table", show_default=True)
@over_api
def report(connection: Connection, since: str, until: str | None, group_by: str, **flags: Any) -> None:
    """Print sums of calls, tokens and exact costs over a window of at most 92 days, and their total."""
    query: dict[str, Any] = {"start": since, "end": until, "group_by": group_by}
    query |= {name: flags[name] for name in ("order_by", "order", "currency")}
    query["rollup"] = "true" if flags["with_groups_below"] else None

    async def ask(client: Client) -> dict[str, Any]:
        entity = flags["entity"]
        external_id = None if entity is None else await names.external_id(client, entity)
        return await read_report(client, external_entity_id=external_id, **query)

    answer = connection.run(ask)
    if connection.as_json:
        click.echo(json_text(answer))
    elif flags["form"] == "csv":
        click.echo(csv_text(csv_rows(group_by, answer["items"])), nl=False)
    else:
        click.echo(table(columns_of(group_by, answer["items"]), table_rows(group_by, answer)))
        window = answer["window"]
        click.echo(f"Final from {window['start_time']} to {window['end_time']}.", err=True)


@usage.command()
@click.option("--month", required=True, help="A UTC month, such as 2026-11.")
@group_option("entity", "Of this group, by external id or id.")
@click.option("--all", "of_all", is_flag=True, help="Of each entity with calls, into the directory --output.")
@click.option("--format", "form", type=click.Choice(["csv", "html"]), default="csv", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="By default standard output.")
@click.option("--draft", is_flag=True, help="Also for a month that is not over.")
@click.option("--with-groups-below", is_flag=True, help="With the calls of all groups below.")
@over_api
def statement(connection: Connection, month: str, entity: str | None, of_all: bool, **flags: Any) -> None:
    """Print an entity's monthly statement: each slug and price, exact amounts, a total for each currency.

    With --all: a file for each entity, and index.csv that names them. Run it again to complete them.
    """
    try:
        request = StatementRequest.of(month, flags["form"], flags["draft"], flags["with_groups_below"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--month") from None
    if of_all == (entity is not None):
        raise click.UsageError("either --entity or --all is needed")
    if entity is not None:
        if connection.as_json and flags["output"] is not None:
            raise click.UsageError("--json prints the report and writes no statement: leave out --output")
        _state_one(connection, request, entity, flags["output"])
    elif flags["output"] is None:
        raise click.UsageError("--all needs --output: a directory")
    else:
        _state_all(connection, request, flags["output"])


def _state_one(connection: Connection, request: StatementRequest, entity: str, output: Path | None) -> None:
    async def read(client: Client) -> tuple[str, Any, bool]:
        external_id = await names.external_id(client, entity)
        answer = await read_report(client, **request.query(external_id))
        return external_id, answer, request.is_final(answer["window"])

    external_id, answer, is_final = connection.run(read)
    lines = [line for item in answer["items"] for line in item["lines"]]
    statement_of = Statement(external_id, request.month, lines, is_final, request.with_groups_below)
    if connection.as_json:
        click.echo(json_text(answer))
        return
    _write(statement_text(statement_of, request.form), output)
    if not lines:
        click.echo(f"{external_id!r} has no calls in {request.month}. Is it the external id of a group?", err=True)
    _warn(statement_of.unpriced_calls)


def _state_all(connection: Connection, request: StatementRequest, output: Path) -> None:
    from commands.edges.statement_directory import opened_directory

    def tell(count: int) -> None:
        click.echo(f"{count} statements written", err=True)

    async def write(client: Client) -> StatementFiles:
        with opened_directory(output) as directory:
            return await write_all(client, request, directory, tell)

    result = connection.run(write)
    if connection.as_json:
        click.echo(json_text(asdict(result)))
    if result.changed:
        click.echo(f"{result.changed} of them replaced others: drafts, or prices were changed since.", err=True)
    _warn(result.unpriced_calls)


def _warn(unpriced_calls: int) -> None:
    if unpriced_calls:
        click.echo(f"{unpriced_calls} calls have no price: set one with `tollgate prices set`.", err=True)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    from commands.edges.statement_file import write_statement

    try:
        write_statement(output, text)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}. Name another --output") from None
