"""`tollgate groups balance|credit|entries`: a group's prepaid balance (docs/reference/command-line.md#resources)."""

from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import only
from commands.editing.paths import path
from commands.editing.shown import print_answer
from commands.lists import limit_option, print_page
from commands.output import Column

_group = click.argument("group", metavar="ID", shell_complete=known_names.groups)


@click.command()
@_group
@over_api
def balance(group: str, connection: Connection) -> None:
    """Print a group's prepaid balance: what is credited, spent, reserved and available."""
    print_answer(connection, connection.run(lambda client: _call(client, "GET", group)))


@click.command()
@_group
@click.option("--amount", required=True, help="What is paid in, such as 100.00; below 0: what is withdrawn.")
@click.option("--currency", required=True, help="ISO 4217, such as EUR. The first credit sets the balance's.")
@click.option(
    "--reference",
    required=True,
    help="Your name for the credit, such as an invoice's number. The same again changes nothing.",
)
@click.option("--note", help="For people.")
@over_api
def credit(group: str, connection: Connection, **flags: str | None) -> None:
    """Pay into a group's prepaid balance, or withdraw from it. The first credit makes the balance."""
    print_answer(connection, connection.run(lambda client: _call(client, "POST", group, "credits", only(**flags))))


@click.command()
@_group
@limit_option
@over_api
def entries(group: str, connection: Connection, limit: int) -> None:
    """Print the last entries of a group's prepaid balance: credits, and what calls drew by slug and hour."""
    answer = connection.run(lambda client: _call(client, "GET", group, "entries", limit=limit))
    print_page(connection, answer, _ENTRIES, "raise --limit, or follow the cursor of the API")


async def _call(client: Client, method: str, group: str, below: str = "", body: Any = None, **query: Any) -> Any:
    """Ask for the balance of a group by its id or external id, or for what is `below` it."""
    id = await names.group_id(client, group)
    return await client.call(
        method, path("gateway", "groups", id, "balance", *([below] if below else [])), body, **query
    )


_ENTRIES = (
    Column("TIME", lambda entry: entry["timestamp"]),
    Column("TYPE", lambda entry: entry["type"]),
    Column("AMOUNT", lambda entry: entry["amount"]),
    Column("CURRENCY", lambda entry: entry["currency"]),
    Column("SLUG", lambda entry: entry["slug"]),
    Column("CALLS", lambda entry: entry["calls"]),
    Column("REFERENCE", lambda entry: entry["reference"]),
    Column("NOTE", lambda entry: entry["note"]),
)
