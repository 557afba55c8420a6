"""Sums over hourly sums. Rows are in the order of workspace, day, entity and key, so every query reads ranges of days.

See docs/decisions/0065-hourly-sums.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import text

from control.edges.sql.billing.sum_records import UsageSum, sums_of
from control.edges.sql.store import Connection
from control.resources.records import Window
from policy.prices import DAY_MS

_SUMMED = "sum(h.calls), sum(h.input_tokens), sum(h.output_tokens), sum(h.cached_input_tokens)"
_INSIDE = "h.workspace_id = :workspace AND h.hour_ms >= :start AND h.hour_ms < :end"
_DAYS = {
    "sqlite": "SELECT value FROM json_each(:days)",
    "postgresql": "SELECT CAST(json_array_elements_text(CAST(:days AS json)) AS bigint)",
}
"""The days of the window, as rows: a range of the table begins with one of them. SQLite expects few rows of JSON; of a
recursion it expects a million, and then reads the whole table first, for a Bloom filter."""
_OF_ALL = f"hourly_sums AS h WHERE {_INSIDE} AND h.day_ms >= :first_day AND h.day_ms <= :last_day"
_OF_ENTITY = (
    f"days CROSS JOIN hourly_sums AS h WHERE {_INSIDE} AND h.day_ms = days.day_ms AND h.external_entity_id = :entity"
)


@dataclass(frozen=True, slots=True)
class HourlySums:
    """A `UsageSource` over a window of whole hours that are added up."""

    conn: Connection
    window: Window

    async def totals(self, by_day: bool, by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """One range of the primary key; of one entity, one for each day."""
        entity = next(iter(self.window.external_entity_ids), "")
        day = "h.day_ms" if by_day else "0"
        key = "h.api_key_prefix" if by_key else "''"
        names = ", ".join(name for name in (day, key, "h.model_slug") if name.startswith("h."))
        rows = _OF_ENTITY if entity else _OF_ALL
        query = (
            f"SELECT {day}, CAST(:entity AS text), {key}, h.model_slug, {_SUMMED}"  # noqa: S608 (ours)
            f" FROM {rows}{_of_slug(slug)} GROUP BY {names}"
        )
        return await sums_of(await self._rows(query, slug=slug, entity=entity))

    async def of_entities(self, entities: Sequence[str], by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """One range of the primary key for each day: neighbours lie side by side."""
        if not entities:
            return []
        key = "h.api_key_prefix" if by_key else "''"
        names = "h.external_entity_id, h.api_key_prefix" if by_key else "h.external_entity_id"
        query = (
            f"SELECT 0, h.external_entity_id, {key}, h.model_slug, {_SUMMED}"  # noqa: S608 (ours)
            f" FROM days CROSS JOIN hourly_sums AS h WHERE {_INSIDE} AND h.day_ms = days.day_ms"
            f" AND h.external_entity_id >= :first_entity AND h.external_entity_id <= :last_entity{_of_slug(slug)}"
            f" GROUP BY {names}, h.model_slug"
        )
        given = {"first_entity": entities[0], "last_entity": entities[-1]}
        return await sums_of(await self._rows(query, slug=slug, **given))

    async def entities_after(self, after: str, limit: int) -> Sequence[str]:
        """One look-up in the primary key for each entity and day."""
        query = (
            f", entities(entity, place) AS (SELECT {_next_entity(':after')}, 1"  # noqa: S608 (ours)
            f" UNION ALL SELECT {_next_entity('entities.entity')}, place + 1 FROM entities"
            " WHERE entity IS NOT NULL AND place < :limit)"
            " SELECT entity FROM entities WHERE entity IS NOT NULL ORDER BY place"
        )
        return [row.entity for row in await self._rows(query, after=after, limit=limit)]

    async def _rows(self, query: str, **given: Any) -> Sequence[Any]:
        """Run a query that may use `days(day_ms)`. It may begin with a comma and another table of this kind."""
        window = self.window
        first_day = _day_of(window.start_ms)
        last_day = _day_of(window.end_ms - 1)
        values = {
            "workspace": window.workspace_id,
            "start": window.start_ms,
            "end": window.end_ms,
            "first_day": first_day,
            "last_day": last_day,
            "days": orjson.dumps([*range(first_day, last_day + 1, DAY_MS)]).decode(),
        }
        statement = f"WITH RECURSIVE days(day_ms) AS ({_DAYS[self.conn.dialect.name]}) {query}"
        return (await self.conn.execute(text(statement), values | given)).all()


def _day_of(at_ms: int) -> int:
    return at_ms - at_ms % DAY_MS


def _of_slug(slug: str | None) -> str:
    return "" if slug is None else " AND h.model_slug = :slug"


def _next_entity(after: str) -> str:
    return (
        "(SELECT min(next.entity) FROM (SELECT (SELECT h.external_entity_id FROM hourly_sums AS h"  # noqa: S608 (ours)
        f" WHERE h.workspace_id = :workspace AND h.day_ms = days.day_ms AND h.external_entity_id > {after}"
        " ORDER BY h.external_entity_id LIMIT 1) AS entity FROM days) AS next)"
    )
