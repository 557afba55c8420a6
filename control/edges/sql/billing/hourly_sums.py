"""Sums over hourly sums. Rows are in the order of workspace, day, entity and key, so every query reads ranges of days.

See docs/decisions/0065-hourly-sums.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import text

from control.edges.sql.billing.days import DAYS, days_text
from control.edges.sql.billing.sum_records import SUMMED, Apart, DaySums, Entities, days_of, in_columns
from control.edges.sql.store import Connection
from control.records.events import EventWindow

_RATE = "h.model_slug, h.above_input_tokens, h.service_tier"
_PART = {Apart.NOTHING: "''", Apart.KEY: "h.api_key_prefix", Apart.PATH: "h.group_path"}
_LISTED = {
    "sqlite": "IN (SELECT value FROM json_each(:entities))",
    "postgresql": "= ANY (ARRAY(SELECT json_array_elements_text(CAST(:entities AS json))))",
}


@dataclass(frozen=True, slots=True)
class HourlySums:
    """A `SumSource` over a window of whole hours that are added up."""

    conn: Connection
    window: EventWindow

    async def totals(self, apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """Read a range of the primary key for each day. Sums of parts are not added up, as in `of_entities`."""
        entity = next(iter(self.window.external_entity_ids), None)
        where = "" if entity is None else " AND h.external_entity_id = :entity"
        names = ("''" if entity is None else "h.external_entity_id", _PART[apart])
        conditions = {} if entity is None else {"entity": entity}
        select = _added_up if apart is Apart.NOTHING else _each
        return days_of(await self._columns(select(names, self._inside(where, slug)), slug=slug, **conditions))

    async def of_entities(self, entities: Entities, apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """Read a range of the primary key for each day: neighbours lie side by side.

        The sums are not added up: most are often of a line of their own, and the database takes longer to find out.
        """
        up_to = "" if entities.last is None else " AND h.external_entity_id <= :last"
        inside = self._inside(f" AND h.external_entity_id > :after{up_to}", slug)
        names = ("h.external_entity_id", _PART[apart])
        return days_of(await self._columns(_each(names, inside), slug=slug, after=entities.after, last=entities.last))

    async def of_listed(self, entities: Sequence[str], apart: Apart, slug: str | None = None) -> Sequence[DaySums]:
        """Read a range of the primary key for each day and entity."""
        inside = self._inside(f" AND h.external_entity_id {_LISTED[self.conn.dialect.name]}", slug)
        names = ("h.external_entity_id", _PART[apart])
        return days_of(await self._columns(_each(names, inside), slug=slug, entities=orjson.dumps(entities).decode()))

    async def last_entity(self, after: str, sums: int) -> str | None:
        """The first of the entities that have a day's sum at this place, behind `after`."""
        at_place = (
            "SELECT h.external_entity_id FROM hourly_sums AS h WHERE h.workspace_id = :workspace"
            " AND h.day_ms = days.day_ms AND h.external_entity_id > :after"
            " ORDER BY h.external_entity_id LIMIT 1 OFFSET :place"
        )
        query = (
            f"WITH days(day_ms) AS ({DAYS[self.conn.dialect.name]})"  # noqa: S608 (ours)
            f" SELECT min(found.entity) FROM (SELECT ({at_place}) AS entity FROM days) AS found"
        )
        ((last,),) = await self._rows(query, after=after, place=sums)
        return None if last is None else str(last)

    def _inside(self, where: str, slug: str | None) -> str:
        """The table, and which of its rows."""
        days = DAYS[self.conn.dialect.name]
        of_slug = "" if slug is None else " AND h.model_slug = :slug"
        window = "h.workspace_id = :workspace AND h.hour_ms >= :start AND h.hour_ms < :end"
        return f"hourly_sums AS h WHERE {window} AND h.day_ms IN ({days}){where}{of_slug}"

    async def _columns(self, sums: str, **conditions: Any) -> Sequence[Any]:
        return await self._rows(in_columns(self.conn.dialect.name, sums), **conditions)

    async def _rows(self, query: str, **conditions: Any) -> Sequence[Any]:
        """Run a query on the window, whose days are `:days`."""
        window = self.window
        values = {
            "workspace": window.workspace_id,
            "start": window.start_ms,
            "end": window.end_ms,
            "days": days_text(window),
        }
        return (await self.conn.execute(text(query), values | conditions)).all()


def _each(names: Sequence[str], inside: str) -> str:
    entity, part = names
    figures = ", ".join(f"h.{name}" for name in SUMMED)
    return (
        f"SELECT h.day_ms, {entity} AS external_entity_id, {part} AS part, {_RATE}, {figures}"  # noqa: S608 (ours)
        f" FROM {inside}"
    )


def _added_up(names: Sequence[str], inside: str) -> str:
    entity, part = names
    figures = ", ".join(f"CAST(sum(h.{name}) AS bigint) AS {name}" for name in SUMMED)
    columns = ", ".join(["h.day_ms", *(name for name in names if name.startswith("h.")), _RATE])
    return (
        f"SELECT h.day_ms, {entity} AS external_entity_id, {part} AS part, {_RATE}, {figures}"  # noqa: S608 (ours)
        f" FROM {inside} GROUP BY {columns}"
    )
