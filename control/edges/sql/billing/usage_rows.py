"""Sums over billing events, by index ranges of the window. The database adds; no event leaves it.

Every sum is grouped by slug as well, because prices are per slug.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Select, bindparam, func, literal, select, text

from control.edges.sql.store import Connection
from control.edges.sql.tables import events
from control.resources.records import Window
from policy.prices import Usage


class UsageSum(NamedTuple):
    """The sums of one slug's calls that share `external_entity_id` and `api_key_prefix`; "" where not grouped by."""

    external_entity_id: str
    api_key_prefix: str
    slug: str
    usage: Usage


_ENTITY, _KEY = events.c.external_entity_id, events.c.api_key_prefix
_TOKENS = (events.c.input_tokens, events.c.output_tokens, events.c.cached_input_tokens)
_SUMMED = "count(*), sum(e.input_tokens), sum(e.output_tokens), sum(e.cached_input_tokens)"


async def sums_in(conn: Connection, window: Window, by_key: bool) -> list[UsageSum]:
    """The sums of the window: of all entities together, or of the entities that it names, one by one.

    `by_key`: of each key by itself; only with entities, whose events the index finds.
    """
    return [_sum(row) for row in await conn.execute(_sums(window, by_key))]


def _sums(window: Window, by_key: bool) -> Select[Any]:
    names = ([_ENTITY] if window.external_entity_ids else []) + ([_KEY] if by_key else [])
    shown = (names[0] if window.external_entity_ids else literal(""), _KEY if by_key else literal(""))
    query = select(*shown, events.c.model_slug, func.count(), *map(func.sum, _TOKENS)).where(
        events.c.workspace_id == window.workspace_id,
        events.c.timestamp_ms >= window.start_ms,
        events.c.timestamp_ms < window.end_ms,
    )
    if window.external_entity_ids:
        query = query.where(events.c.external_entity_id == window.external_entity_ids[0])
    return query.group_by(*names, events.c.model_slug)


async def entities_after(conn: Connection, workspace_id: str, after: str, limit: int) -> list[str]:
    """The next `limit` entities that have events, in order: one look-up in the index for each."""
    given = {"workspace": workspace_id, "after": after, "limit": limit}
    return list((await conn.execute(_ENTITIES_AFTER, given)).scalars())


def _next_entity(after: str) -> str:
    return (
        "(SELECT e.external_entity_id FROM events AS e WHERE e.workspace_id = :workspace"  # noqa: S608 (ours)
        f" AND e.external_entity_id > {after} ORDER BY e.external_entity_id LIMIT 1)"
    )


_ENTITIES_AFTER = text(
    f"WITH RECURSIVE entities(entity, place) AS (SELECT {_next_entity(':after')}, 1"  # noqa: S608 (ours)
    f" UNION ALL SELECT {_next_entity('entities.entity')}, place + 1 FROM entities"
    " WHERE entity IS NOT NULL AND place < :limit)"
    " SELECT entity FROM entities WHERE entity IS NOT NULL ORDER BY place"
)


async def sums_of(conn: Connection, window: Window, entities: Sequence[str], by_key: bool) -> list[UsageSum]:
    """The sums of each of these entities in the window, by one range of the index for each."""
    query = _SUMS_OF[conn.dialect.name, by_key]
    given = {
        "workspace": window.workspace_id,
        "entities": orjson.dumps(entities).decode(),
        "start": window.start_ms,
        "end": window.end_ms,
    }
    return [_sum(row) for row in await conn.execute(query, given)]


def _sums_of(known: str, by_key: bool) -> Any:
    key = "e.api_key_prefix" if by_key else "''"
    names = "e.external_entity_id, e.api_key_prefix" if by_key else "e.external_entity_id"
    return text(
        f"SELECT e.external_entity_id, {key}, e.model_slug, {_SUMMED}"  # noqa: S608 (ours)
        f" FROM ({known}) AS known CROSS JOIN events AS e"
        " WHERE e.workspace_id = :workspace AND e.external_entity_id = known.entity"
        " AND e.timestamp_ms >= :start AND e.timestamp_ms < :end"
        f" GROUP BY {names}, e.model_slug"
    ).bindparams(bindparam("entities"))


# SQLite keeps the order of a CROSS JOIN: each entity's range is looked up. PostgreSQL chooses by its statistics.
_KNOWN = {
    "sqlite": "SELECT value AS entity FROM json_each(:entities)",
    "postgresql": "SELECT json_array_elements_text(CAST(:entities AS json)) AS entity",
}
_SUMS_OF = {(dialect, by_key): _sums_of(known, by_key) for dialect, known in _KNOWN.items() for by_key in (False, True)}


def _sum(row: Any) -> UsageSum:
    entity, key, slug, calls, input, output, cached_input = row
    # PostgreSQL's sums are decimal numbers.
    usage = Usage(calls=calls, input=int(input), output=int(output), cached_input=int(cached_input))
    return UsageSum(entity, key, slug, usage)
