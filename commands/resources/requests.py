"""`tollgate requests`: single calls, refusals and failures too (docs/reference/command-line.md#requests)."""

from collections.abc import Mapping
from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.group_option import group_option
from commands.lists import limit_option, print_page
from commands.output import Column, cost_text
from commands.times import TIMES, at_flag

_PATH = "/v1/gateway/requests"


@click.group()
def requests() -> None:
    """Single calls: what became of them, and which limit has refused them."""


@requests.command("list")
@click.option("--request-id", help="Only calls with this id, which the answer had as x-request-id.")
@group_option("entity", "Only of this group, by external id or id.")
@click.option("--key", "key_prefix", help="Only of the key with this prefix.")
@click.option("--slug", shell_complete=known_names.slugs, help="Only of this slug; of direct calls the model's id.")
@click.option("--status", help="Only with this status (429), or of this class (4xx).")
@click.option("--since", callback=at_flag, help=f"The start: {TIMES}.")
@click.option("--until", callback=at_flag, help="The end, exclusive, as --since.")
@limit_option
@over_api
def list_requests(connection: Connection, since: str | None, until: str | None, limit: int, **filters: Any) -> None:
    """Print the newest calls. `--json` shows the limit that has refused each, and all its figures."""
    query = {
        "request_id": filters["request_id"],
        "api_key_prefix": filters["key_prefix"],
        "slug": filters["slug"],
        "status": filters["status"],
        "start_time": since,
        "end_time": until,
        "limit": limit,
    }

    async def ask(client: Client) -> dict[str, Any]:
        entity = filters["entity"]
        external_id = None if entity is None else await names.external_id(client, entity)
        answer: dict[str, Any] = await client.call("GET", _PATH, external_entity_id=external_id, **query)
        return answer

    answer = connection.run(ask)
    print_page(connection, answer, _COLUMNS, "raise --limit, or move --until to the last TIME")
    if answer["sampled"] and not connection.as_json:
        click.echo("Some stand for several calls (WEIGHT): there were more than the list keeps a second.", err=True)


def _reason(request: Mapping[str, Any]) -> str | None:
    """The error's code, and the limit that has refused the call."""
    code: str | None = request["error_code"]
    limit = request["limit"]
    if limit is None:
        return code
    figures = (limit["threshold"], limit["type"], limit["unit"])
    return f"{code}: {' '.join(str(one) for one in figures if one is not None)}"


def _tokens(request: Mapping[str, Any]) -> str | None:
    tokens = request["tokens"]
    return None if tokens is None else f"{tokens['inputTokens']} + {tokens['outputTokens']}"


_COLUMNS = (
    Column("TIME", lambda request: request["timestamp"]),
    Column("REQUEST", lambda request: request["request_id"]),
    Column("STATUS", lambda request: request["status"]),
    Column("ENTITY", lambda request: request["external_entity_id"]),
    Column("KEY", lambda request: request["api_key_prefix"]),
    Column("SLUG", lambda request: request["slug"]),
    Column("MS", lambda request: round(request["duration_ms"])),
    Column("TOKENS", _tokens),
    Column("COST", cost_text),
    Column("REASON", _reason),
    Column("WEIGHT", lambda request: request["weight"]),
)
