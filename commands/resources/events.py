"""`tollgate events`: billing events (docs/reference/command-line.md#events)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.editing import names
from commands.editing.group_option import group_option
from commands.exports.command import output_option, run_export, since_option
from commands.exports.exporter import Selection
from commands.exports.listing import CSV, FORMATS, Listing
from commands.lists import limit_option, print_page
from commands.output import Column, cost_text
from commands.records.billing_events import DETAILS, detail_columns
from commands.times import TIMES, time_from

_PATH = "/v1/gateway/events"
_EMPTY = (
    "No events in this window. A call's event is listed about a minute after the call has ended"
    " (TOLLGATE_EVENT_HOLDBACK_S of control); `tollgate groups tree` shows usage at once."
)
_until_option = click.option(
    "--until", help="The end, exclusive, as --since; by default as late as the events are final."
)
_entity_option = group_option("entities", "Only of this group, by external id or id; may be repeated.", multiple=True)
_details_option = click.option(
    "--details", is_flag=True, default=None, help="Also what else each call cost, and the amount."
)
_key_option = click.option(
    "--key", "key_prefixes", multiple=True, help="Only of the key with this prefix; may be repeated."
)


@click.group()
def events() -> None:
    """Billing events: one per call."""


@events.command("list")
@click.option("--since", default="1h", show_default=True, help=f"The start: {TIMES}.")
@_until_option
@_entity_option
@_key_option
@_details_option
@limit_option
@over_api
def list_events(connection: Connection, since: str, until: str | None, **flags: Any) -> None:
    """Print the first events of a window, oldest first. `export` writes all of them."""
    query = {"start_time": time_from(since, "--since"), "limit": flags["limit"]}
    query |= {"end_time": None if until is None else time_from(until, "--until")}
    query |= {"api_keys": list(flags["key_prefixes"])} | _included(flags)

    async def ask(client: Client) -> Any:
        entities = await _external_ids(client, flags["entities"])
        return await client.call("GET", _PATH, external_entity_ids=entities, **query)

    answer = connection.run(ask)
    columns = (*_COLUMNS, *_DETAIL_COLUMNS) if flags["details"] else _COLUMNS
    print_page(connection, answer, columns, "raise --limit, move --since, or use `tollgate events export`")
    if not answer["items"] and not connection.as_json:
        click.echo(_EMPTY, err=True)


@events.command("export")
@since_option
@_until_option
@_entity_option
@_key_option
@_details_option
@click.option("--format", type=click.Choice(FORMATS), default=CSV, show_default=True)
@output_option
@over_api
def export_events(connection: Connection, output: Path | None, until: str | None, **flags: Any) -> None:
    """Write billing events, oldest first.

    With --output, the same command again goes on where the last one ended, also after a crash: each event is in the
    file exactly once.
    """
    if until is not None:
        until = time_from(until, "--until")
        if flags["since"] is not None and until <= time_from(flags["since"], "--since"):
            raise click.UsageError("--until must be after --since")
    entities = connection.run(lambda client: _external_ids(client, flags["entities"]))
    flags |= {"entities": entities, "key_prefixes": list(flags["key_prefixes"])}
    filters = {"external_entity_ids": flags["entities"], "api_keys": flags["key_prefixes"], **_included(flags)}
    listing = DETAILED_EVENTS if flags["details"] else EVENTS
    run_export(connection, listing, Selection(filters, flags["format"], until), output, flags)


async def _external_ids(client: Client, entities: Sequence[str]) -> list[str]:
    return [await names.external_id(client, name) for name in entities]


def _included(flags: Mapping[str, Any]) -> dict[str, str]:
    """The member of the query that asks for details."""
    return {"include": "details"} if flags["details"] else {}


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
_DETAIL_COLUMNS = (
    Column("STATUS", lambda event: event["details"]["status"]),
    Column("CACHE WRITES", lambda event: event["details"]["cacheWriteTokens"]),
    Column("REASONING", lambda event: event["details"]["reasoningTokens"]),
    Column("TIER", lambda event: event["details"]["serviceTier"]),
    Column("SOURCE", lambda event: event["details"]["source"]),
    Column("COST", cost_text),
)
_NAMES = {
    "timestamp": "timestamp",
    "idempotency_key": "idempotencyKey",
    "request_id": "requestId",
    "model_slug": "modelSlug",
    "external_entity_id": "externalEntityId",
    "api_key_prefix": "apiKeyPrefix",
}
_TOKENS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cached_input_tokens": "cachedInputTokens",
}


def _row(event: Mapping[str, Any]) -> list[Any]:
    tokens = event["tokens"]
    return [*(event[name] for name in _NAMES.values()), *(tokens[name] for name in _TOKENS.values())]


def _detailed_row(event: Mapping[str, Any]) -> list[Any]:
    cost = event["cost"] or {}
    return [*_row(event), *detail_columns(event).values(), cost.get("amount"), cost.get("currency")]


EVENTS = Listing("events", _PATH, (*_NAMES, *_TOKENS), _row)
DETAILED_EVENTS = Listing("events", _PATH, (*EVENTS.header, *DETAILS, "cost", "currency"), _detailed_row)
