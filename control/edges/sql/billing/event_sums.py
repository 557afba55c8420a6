"""Sums over billing events, by index ranges of the window. The database adds; no event leaves it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import BigInteger, BindParameter, ColumnElement, FromClause, func, literal, literal_column, select, text

from control.edges.sql.billing.sum_records import UsageSum, sums_of
from control.edges.sql.events.partitions import Part, part_of, partitions_of
from control.edges.sql.store import Connection
from control.resources.records import Window
from policy.prices import DAY_MS

_KNOWN_ENTITIES = {
    "sqlite": "SELECT value AS entity FROM json_each(:entities)",
    "postgresql": "SELECT json_array_elements_text(CAST(:entities AS json)) AS entity",
}
"""The entities of a JSON array, as rows."""
_SUMMED = "count(*), sum(e.input_tokens), sum(e.output_tokens), sum(e.cached_input_tokens)"


@dataclass(frozen=True, slots=True)
class EventSums:
    """A `UsageSource` over the events of a window, as long as they are kept."""

    conn: Connection
    window: Window

    async def totals(self, by_day: bool, by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """One range of the index."""
        part = await self._part()
        if part is None:
            return []
        table = part.table()
        day = _day_of(table) if by_day else literal(0)
        entity = table.c.external_entity_id if self.window.external_entity_ids else literal("")
        key = table.c.api_key_prefix if by_key else literal("")
        names = (day, entity, key, table.c.model_slug)
        query = select(*names, *_measures(table)).where(*_inside(self.window, table))
        if slug is not None:
            query = query.where(table.c.model_slug == slug)
        query = query.group_by(*(name for name in names if not isinstance(name, BindParameter)))
        return await sums_of((await self.conn.execute(query)).all())

    async def of_entities(self, entities: Sequence[str], by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """One range of the index for each entity."""
        part = await self._part()
        if part is None:
            return []
        query = text(_of_entities(_KNOWN_ENTITIES[self.conn.dialect.name], part.sql, by_key, slug is not None))
        given = {
            "workspace": self.window.workspace_id,
            "entities": orjson.dumps(entities).decode(),
            "start": self.window.start_ms,
            "end": self.window.end_ms,
            **part.bounds,
            **({} if slug is None else {"slug": slug}),
        }
        return await sums_of((await self.conn.execute(query, given)).all())

    async def entities_after(self, after: str, limit: int) -> Sequence[str]:
        """One look-up in the index for each entity, whether or not it has events in the window."""
        part = await self._part()
        if part is None:
            return []
        given = {"workspace": self.window.workspace_id, "after": after, "limit": limit, **part.bounds}
        return list((await self.conn.execute(text(_entities_after(part.sql)), given)).scalars())

    async def _part(self) -> Part | None:
        return part_of(await partitions_of(self.conn), self.window.start_ms, self.window.end_ms)


def _day_of(table: FromClause) -> ColumnElement[int]:
    day_ms = literal_column(str(DAY_MS), BigInteger)
    at_ms: ColumnElement[int] = table.c.timestamp_ms
    return at_ms - at_ms % day_ms


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


def _of_entities(known: str, table: str, by_key: bool, of_slug: bool) -> str:
    """SQLite keeps the order of a CROSS JOIN: each entity's range is looked up. PostgreSQL chooses by statistics."""
    key = "e.api_key_prefix" if by_key else "''"
    names = "e.external_entity_id, e.api_key_prefix" if by_key else "e.external_entity_id"
    return (
        f"SELECT 0, e.external_entity_id, {key}, e.model_slug, {_SUMMED}"  # noqa: S608 (ours)
        f" FROM ({known}) AS known CROSS JOIN {table} AS e"
        " WHERE e.workspace_id = :workspace AND e.external_entity_id = known.entity"
        f" AND e.timestamp_ms >= :start AND e.timestamp_ms < :end{' AND e.model_slug = :slug' if of_slug else ''}"
        f" GROUP BY {names}, e.model_slug"
    )


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
