"""Sums over billing events, by index ranges of the window. The database adds; no event leaves it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import text

from control.edges.sql.billing.event_figures import EVENT_GROUP, EVENT_PATH, SERVICE_TIER, context_class, figures_of
from control.edges.sql.billing.sum_records import SUMMED, Apart, DaySums, Entities, days_of, in_columns
from control.edges.sql.events.partitions import PartitionedWindow, part_of, partitions_of
from control.edges.sql.store import Connection
from control.records.events import EventWindow
from policy.prices import DAY_MS

_KNOWN_ENTITIES = {
    "sqlite": "SELECT value AS entity FROM json_each(:entities)",
    "postgresql": "SELECT json_array_elements_text(CAST(:entities AS json)) AS entity",
}
"""The entities of a JSON array, as rows."""
_ENTITIES = 101
"""The number of entities whose events are read at once. One more than a page's default: it tells that more follow."""
_INSIDE = "e.workspace_id = :workspace AND e.timestamp_ms >= :start AND e.timestamp_ms < :end"
_PART = {Apart.NOTHING: "''", Apart.KEY: "e.api_key_prefix", Apart.PATH: EVENT_PATH}
_DAY = f"e.timestamp_ms - e.timestamp_ms % {DAY_MS}"


@dataclass(frozen=True, slots=True)
class EventSums:
    """A `SumSource` over the events of a window, as long as they are kept. `bounds`: of long context."""

    conn: Connection
    window: EventWindow
    bounds: Collection[int]

    async def totals(self, apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """Read the sums from one range of the index."""
        entity = next(iter(self.window.external_entity_ids), None)
        names = ("''" if entity is None else "e.external_entity_id", _PART[apart])
        if entity is None:
            return await self._columns(names, "{events}", slug=slug)
        return await self._columns(names, "{events}", slug=slug, entity=entity)

    async def of_entities(self, entities: Entities, apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        after, last = entities
        ids = [entity for entity in await self._entities(after, _ENTITIES) if last is None or entity <= last]
        return await self.of_listed(ids, apart, slug)

    async def of_listed(self, entities: Sequence[str], apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """Read the sums of entities from one range of the index each.

        SQLite keeps the order of a CROSS JOIN: each entity's range is looked up. PostgreSQL chooses by statistics.
        """
        names = ("e.external_entity_id", _PART[apart])
        tables = f"({_KNOWN_ENTITIES[self.conn.dialect.name]}) AS known CROSS JOIN {{events}}"
        return await self._columns(names, tables, slug=slug, entities=orjson.dumps(entities).decode())

    async def last_entity(self, after: str, sums: int) -> str | None:
        """The last of the next `sums` entities, whatever the number of their events."""
        most = min(sums, _ENTITIES)
        ids = await self._entities(after, most)
        return ids[-1] if len(ids) == most else None

    async def _entities(self, after: str, limit: int) -> Sequence[str]:
        """List entities by one look-up in the index each, whether or not they have events in the window."""
        part = await self._partitioned_window()
        if part is None:
            return []
        values = {"workspace": self.window.workspace_id, "after": after, "limit": limit, **part.bounds}
        return list((await self.conn.execute(text(_entities_after(part.sql)), values)).scalars())

    async def _columns(self, names: Sequence[str], tables: str, **conditions: Any) -> Sequence[DaySums]:
        """The sums of what `tables` has in the window. `conditions`: further ones."""
        part = await self._partitioned_window()
        if part is None:
            return []
        values = {"workspace": self.window.workspace_id, "start": self.window.start_ms, "end": self.window.end_ms}
        where = "".join(_WHERE[name] for name, value in conditions.items() if value is not None)
        sums = self._added_up(names, tables.format(events=f"{part.sql} AS e"), where)
        query = text(in_columns(self.conn.dialect.name, sums))
        return days_of((await self.conn.execute(query, values | part.bounds | conditions)).all())

    def _added_up(self, names: Sequence[str], tables: str, where: str) -> str:
        entity, part = names
        expressions = figures_of(self.conn.dialect.name)
        figures = ", ".join(f"CAST({expressions[name]} AS bigint) AS {name}" for name in SUMMED)
        grouped = ", ".join([_DAY, *(name for name in names if name != "''"), "e.model_slug"])
        groups = f" LEFT JOIN groups ON {EVENT_GROUP}" if part == EVENT_PATH else ""
        return (
            f"SELECT {_DAY} AS day_ms, {entity} AS external_entity_id, {part} AS part, e.model_slug,"  # noqa: S608 (ours)
            f" {context_class(self.bounds)} AS above_input_tokens, {SERVICE_TIER} AS service_tier, {figures}"
            f" FROM {tables}{groups} WHERE {_INSIDE}{where} GROUP BY {grouped}, above_input_tokens, {SERVICE_TIER}"
        )

    async def _partitioned_window(self) -> PartitionedWindow | None:
        return part_of(await partitions_of(self.conn), self.window.start_ms, self.window.end_ms)


_WHERE = {
    "slug": " AND e.model_slug = :slug",
    "entity": " AND e.external_entity_id = :entity",
    "entities": " AND e.external_entity_id = known.entity",
}


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
