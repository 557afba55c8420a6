"""Sums over billing events, by index ranges of the window. The database adds; no event leaves it.

Every sum is grouped by slug as well, because prices are per slug.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ColumnElement, FromClause, Integer, Select, func, literal, literal_column, select, text

from control.edges.sql.events.partitions import Part, part_of, partitions_of
from control.edges.sql.store import Connection
from control.resources.records import Window
from control.time_slices import each
from policy.prices import DAY_MS, Usage


class UsageSum(NamedTuple):
    """The sums of one slug's calls that share `external_entity_id` and `api_key_prefix`; "" where not grouped by."""

    external_entity_id: str
    api_key_prefix: str
    slug: str
    usage: Usage


_SUMMED = "count(*), sum(e.input_tokens), sum(e.output_tokens), sum(e.cached_input_tokens)"


async def sums_in(conn: Connection, window: Window, by_key: bool, slug: str | None = None) -> list[UsageSum]:
    """The sums of the window: of all entities together, or of the entities that it names, one by one.

    `by_key`: of each key by itself; only with entities, whose events the index finds. `slug`: only its calls.
    """
    part = await _part(conn, window)
    if part is None:
        return []
    table = part.table()
    query = _sums(window, table, by_key)
    if slug is not None:
        query = query.where(table.c.model_slug == slug)
    return [_sum(row) for row in await conn.execute(query)]


async def _part(conn: Connection, window: Window) -> Part | None:
    return part_of(await partitions_of(conn), window.start_ms, window.end_ms)


def _sums(window: Window, table: FromClause, by_key: bool) -> Select[Any]:
    entity, key = table.c.external_entity_id, table.c.api_key_prefix
    names = ([entity] if window.external_entity_ids else []) + ([key] if by_key else [])
    shown = (names[0] if window.external_entity_ids else literal(""), key if by_key else literal(""))
    query = select(*shown, table.c.model_slug, *_measures(table)).where(*_inside(window, table))
    return query.group_by(*names, table.c.model_slug)


def _measures(table: FromClause) -> list[ColumnElement[Any]]:
    tokens = (table.c[name] for name in ("input_tokens", "output_tokens", "cached_input_tokens"))
    return [func.count(), *map(func.sum, tokens)]


def _inside(window: Window, table: FromClause) -> list[ColumnElement[bool]]:
    """Which events: the workspace's in the window, of the first entity that it names."""
    inside = [
        table.c.workspace_id == window.workspace_id,
        table.c.timestamp_ms >= window.start_ms,
        table.c.timestamp_ms < window.end_ms,
    ]
    if window.external_entity_ids:
        inside.append(table.c.external_entity_id == window.external_entity_ids[0])
    return inside


class DaySum(NamedTuple):
    """The sums of one key's calls to one slug in the UTC day that begins at `day_ms`."""

    day_ms: int
    api_key_prefix: str
    slug: str
    usage: Usage


async def sums_by_day(conn: Connection, window: Window) -> list[DaySum]:
    """The sums of the one entity that the window names, by day, key and slug: one range of the index."""
    part = await _part(conn, window)
    if part is None:
        return []
    table = part.table()
    day = table.c.timestamp_ms // literal_column(str(DAY_MS), Integer)
    names = (day, table.c.api_key_prefix, table.c.model_slug)
    query = select(*names, *_measures(table)).where(*_inside(window, table)).group_by(*names)
    return await each((await conn.execute(query)).all(), _day_sum)


def _day_sum(row: Any) -> DaySum:
    day, *rest = row
    found = _sum(("", *rest))
    return DaySum(day * DAY_MS, found.api_key_prefix, found.slug, found.usage)


async def entities_after(conn: Connection, window: Window, after: str, limit: int) -> list[str]:
    """The next `limit` entities that may have events in the window, in order: one look-up in the index for each."""
    part = await _part(conn, window)
    if part is None:
        return []
    given = {"workspace": window.workspace_id, "after": after, "limit": limit, **part.bounds}
    return list((await conn.execute(text(_entities_after(part.sql)), given)).scalars())


def _entities_after(table: str) -> str:
    return (
        f"WITH RECURSIVE entities(entity, place) AS (SELECT {_next_entity(table, ':after')}, 1"  # noqa: S608 (ours)
        f" UNION ALL SELECT {_next_entity(table, 'entities.entity')}, place + 1 FROM entities"
        " WHERE entity IS NOT NULL AND place < :limit)"
        " SELECT entity FROM entities WHERE entity IS NOT NULL ORDER BY place"
    )


def _next_entity(table: str, after: str) -> str:
    return (
        f"(SELECT e.external_entity_id FROM {table} AS e WHERE e.workspace_id = :workspace"  # noqa: S608 (ours)
        f" AND e.external_entity_id > {after} ORDER BY e.external_entity_id LIMIT 1)"
    )


async def sums_of(
    conn: Connection, window: Window, entities: Sequence[str], by_key: bool, slug: str | None = None
) -> list[UsageSum]:
    """The sums of each of these entities in the window, by one range of the index for each. `slug`: only its calls."""
    part = await _part(conn, window)
    if part is None:
        return []
    query = text(_sums_of(_KNOWN[conn.dialect.name], part.sql, by_key, slug is not None))
    given = {
        "workspace": window.workspace_id,
        "entities": orjson.dumps(entities).decode(),
        "start": window.start_ms,
        "end": window.end_ms,
        **part.bounds,
        **({} if slug is None else {"slug": slug}),
    }
    return [_sum(row) for row in await conn.execute(query, given)]


def _sums_of(known: str, table: str, by_key: bool, of_slug: bool) -> str:
    key = "e.api_key_prefix" if by_key else "''"
    names = "e.external_entity_id, e.api_key_prefix" if by_key else "e.external_entity_id"
    return (
        f"SELECT e.external_entity_id, {key}, e.model_slug, {_SUMMED}"  # noqa: S608 (ours)
        f" FROM ({known}) AS known CROSS JOIN {table} AS e"
        " WHERE e.workspace_id = :workspace AND e.external_entity_id = known.entity"
        f" AND e.timestamp_ms >= :start AND e.timestamp_ms < :end{' AND e.model_slug = :slug' if of_slug else ''}"
        f" GROUP BY {names}, e.model_slug"
    )


# SQLite keeps the order of a CROSS JOIN: each entity's range is looked up. PostgreSQL chooses by its statistics.
_KNOWN = {
    "sqlite": "SELECT value AS entity FROM json_each(:entities)",
    "postgresql": "SELECT json_array_elements_text(CAST(:entities AS json)) AS entity",
}


def _sum(row: Any) -> UsageSum:
    entity, key, slug, calls, input, output, cached_input = row
    # PostgreSQL's sums are decimal numbers.
    usage = Usage(calls=calls, input=int(input), output=int(output), cached_input=int(cached_input))
    return UsageSum(entity, key, slug, usage)
