"""`tollgate events`: billing events (docs/reference/command-line.md#events)."""

from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.event_export.command import export_events
from commands.output import Column, json_text, table
from commands.times import time_from

_PATH = "/v1/gateway/events"
_MOST_PER_PAGE = 1000


@click.group()
def events() -> None:
    """Billing events: one per call."""


@events.command("list")
@click.option("--since", default="1h", show_default=True, help="ISO 8601, or so long ago (24h, 7d).")
@click.option("--until", help="The end, exclusive; by default as late as the events are final.")
@click.option("--entity", "entities", multiple=True, help="Only of the group with this external id; may be repeated.")
@click.option("--key", "key_prefixes", multiple=True, help="Only of the key with this prefix; may be repeated.")
@click.option(
    "--limit", type=click.IntRange(1, _MOST_PER_PAGE), default=100, show_default=True, help="At most so many."
)
@over_api
def list_events(connection: Connection, since: str, until: str | None, **given: Any) -> None:
    """Print the first events of a window, oldest first. `export` writes all of them."""
    query = {"start_time": time_from(since, "--since"), "limit": given["limit"]}
    query |= {"end_time": None if until is None else time_from(until, "--until")}
    query |= {"external_entity_ids": list(given["entities"]), "api_keys": list(given["key_prefixes"])}

    async def ask(client: Client) -> Any:
        return await client.call("GET", _PATH, **query)

    answer = connection.run(ask)
    if connection.as_json:
        click.echo(json_text(answer))
        return
    click.echo(table(_COLUMNS, answer["items"]))
    if answer["pagination"]["has_more"]:
        click.echo("There are more: raise --limit, move --since, or use `tollgate events export`.", err=True)


_COLUMNS = (
    Column("TIME", lambda event: event["timestamp"]),
    Column("SLUG", lambda event: event["modelSlug"]),
    Column("ENTITY", lambda event: event["externalEntityId"]),
    Column("KEY", lambda event: event["apiKeyPrefix"]),
    Column("INPUT", lambda event: event["tokens"]["inputTokens"]),
    Column("CACHED", lambda event: event["tokens"]["cachedInputTokens"]),
    Column("OUTPUT", lambda event: event["tokens"]["outputTokens"]),
    Column("REQUEST", lambda event: event["requestId"]),
)

events.add_command(export_events)
