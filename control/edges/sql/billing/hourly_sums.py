"""Sums over hourly sums. Rows are in the order of workspace, day, entity and key, so every query reads ranges of days.

See docs/decisions/0065-hourly-sums.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import text

from control.edges.sql.billing.event_sums import KNOWN_ENTITIES
from control.edges.sql.billing.sum_records import DaySum, UsageSum
from control.edges.sql.store import Connection
from control.resources.records import Window
from control.time_slices import each
from policy.prices import DAY_MS

_SUMMED = "sum(h.calls), sum(h.input_tokens), sum(h.output_tokens), sum(h.cached_input_tokens)"
_INSIDE = "h.workspace_id = :workspace AND h.hour_ms >= :start AND h.hour_ms < :end"
_DAYS = (
    "WITH RECURSIVE days(day_ms) AS (SELECT CAST(:first_day AS bigint)"  # noqa: S608 (ours)
    f" UNION ALL SELECT day_ms + {DAY_MS} FROM days WHERE day_ms < :last_day)"
)
"""The days of the window, as rows: a range of the table begins with one of them."""


@dataclass(frozen=True, slots=True)
class HourlySums:
    """A `UsageSource` over a window of whole hours that are added up."""

    conn: Connection
    window: Window

    async def totals(self, by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        if self.window.external_entity_ids:
            return await self.of_entities(self.window.external_entity_ids[:1], by_key, slug)
        query = (
            f"SELECT '', '', h.model_slug, {_SUMMED} FROM hourly_sums AS h"  # noqa: S608 (ours)
            f" WHERE {_INSIDE} AND h.day_ms >= :first_day AND h.day_ms <= :last_day{_of_slug(slug)}"
            " GROUP BY h.model_slug"
        )
        return await each(await self._rows(query, slug=slug), UsageSum.of_row)

    async def of_entities(self, entities: Sequence[str], by_key: bool, slug: str | None = None) -> Sequence[UsageSum]:
        """One range of the primary key for each day and entity."""
        known = KNOWN_ENTITIES[self.conn.dialect.name]
        key = "h.api_key_prefix" if by_key else "''"
        names = "h.external_entity_id, h.api_key_prefix" if by_key else "h.external_entity_id"
        query = (
            f"{_DAYS} SELECT h.external_entity_id, {key}, h.model_slug, {_SUMMED}"  # noqa: S608 (ours)
            f" FROM days CROSS JOIN ({known}) AS known CROSS JOIN hourly_sums AS h"
            f" WHERE {_INSIDE} AND h.day_ms = days.day_ms AND h.external_entity_id = known.entity{_of_slug(slug)}"
            f" GROUP BY {names}, h.model_slug"
        )
        given = {"entities": orjson.dumps(entities).decode()}
        return await each(await self._rows(query, slug=slug, **given), UsageSum.of_row)

    async def by_day(self) -> Sequence[DaySum]:
        """One range of the primary key for each day."""
        query = (
            f"{_DAYS} SELECT h.day_ms, h.api_key_prefix, h.model_slug, {_SUMMED}"  # noqa: S608 (ours)
            " FROM days CROSS JOIN hourly_sums AS h"
            f" WHERE {_INSIDE} AND h.day_ms = days.day_ms AND h.external_entity_id = :entity"
            " GROUP BY h.day_ms, h.api_key_prefix, h.model_slug"
        )
        return await each(await self._rows(query, entity=self.window.external_entity_ids[0]), DaySum.of_row)

    async def entities_after(self, after: str, limit: int) -> Sequence[str]:
        """One look-up in the primary key for each entity and day."""
        query = (
            f"{_DAYS}, entities(entity, place) AS (SELECT {_next_entity(':after')}, 1"  # noqa: S608 (ours)
            f" UNION ALL SELECT {_next_entity('entities.entity')}, place + 1 FROM entities"
            " WHERE entity IS NOT NULL AND place < :limit)"
            " SELECT entity FROM entities WHERE entity IS NOT NULL ORDER BY place"
        )
        return [row.entity for row in await self._rows(query, after=after, limit=limit)]

    async def _rows(self, query: str, **given: Any) -> Sequence[Any]:
        window = self.window
        bounds = {"workspace": window.workspace_id, "start": window.start_ms, "end": window.end_ms}
        days = {"first_day": _day_of(window.start_ms), "last_day": _day_of(window.end_ms - 1)}
        return (await self.conn.execute(text(query), {**bounds, **days, **given})).all()


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
