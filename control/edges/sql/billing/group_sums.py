"""Sums of groups' calls by slug: hourly sums of what is added up, events of the rest. The database adds.

Calls are found by the external id, which has an index, and counted by the path that they record: those of an earlier
group with that external id do not count.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import text

from control.edges.sql.billing.days import DAYS, days_text
from control.edges.sql.billing.hourly_progress import summed_hours
from control.edges.sql.events.partitions import part_of, partitions_of
from control.edges.sql.store import Connection
from control.records.events import EventWindow


class GroupSum(NamedTuple):
    """Calls of a group through a slug. A group may have several of one slug: add them up."""

    group_id: str
    slug: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int


class PathRange(NamedTuple):
    """The groups whose paths are in this range, which is of one workspace. `has_deleted`: also those that were."""

    first: str
    last: str
    has_deleted: bool


async def group_sums(
    conn: Connection, window: EventWindow, paths: PathRange, slugs: Iterable[str]
) -> Sequence[GroupSum]:
    """The sums of these groups in the window, of these slugs."""
    parts = (await summed_hours(conn, window.workspace_id)).parts_of(window)
    names = orjson.dumps([*slugs]).decode()
    values = {"first_path": paths.first, "last_path": paths.last, "slugs": names}
    rows: list[Any] = []
    if parts.hours.start_ms < parts.hours.end_ms:
        rows += await _hours(conn, parts.hours, paths, values)
    for part in (parts.before, parts.after):
        if part.start_ms < part.end_ms:
            rows += await _events(conn, part, paths, values)
    return [GroupSum(path.split("/")[-2], *sums) for path, *sums in rows]


_TEXTS = {
    "sqlite": "SELECT value FROM json_each(:{})",
    "postgresql": "SELECT json_array_elements_text(CAST(:{} AS json))",
}
"""The texts of a JSON array, as rows."""


def _groups(paths: PathRange) -> str:
    """The groups of the range, as rows."""
    tables = ("groups", "deleted_groups") if paths.has_deleted else ("groups",)
    of_range = "path >= :first_path AND path <= :last_path AND workspace_id = :workspace"
    rows = (f"SELECT path, external_entity_id FROM {table} WHERE {of_range}" for table in tables)  # noqa: S608 (ours)
    return f"({' UNION ALL '.join(rows)}) AS g"


async def _hours(conn: Connection, window: EventWindow, paths: PathRange, values: dict[str, Any]) -> Sequence[Any]:
    """A range of the primary key for each group and day. SQLite keeps the order of a CROSS JOIN."""
    dialect = conn.dialect.name
    query = (
        f"SELECT g.path, h.model_slug, {_sums('h', 'sum(h.calls)')}"  # noqa: S608 (ours)
        f" FROM {_groups(paths)} CROSS JOIN hourly_sums AS h WHERE h.workspace_id = :workspace"
        f" AND h.day_ms IN ({DAYS[dialect]}) AND h.external_entity_id = g.external_entity_id"
        " AND h.group_path = g.path AND h.hour_ms >= :start AND h.hour_ms < :end"
        f" AND h.model_slug IN ({_TEXTS[dialect].format('slugs')}) GROUP BY g.path, h.model_slug"
    )
    return await _rows(conn, window, query, {**values, "days": days_text(window)})


async def _events(conn: Connection, window: EventWindow, paths: PathRange, values: dict[str, Any]) -> Sequence[Any]:
    """A range of the index for each group."""
    part = part_of(await partitions_of(conn), window.start_ms, window.end_ms)
    if part is None:
        return []
    query = (
        f"SELECT g.path, e.model_slug, {_sums('e', 'count(*)')}"  # noqa: S608 (ours)
        f" FROM {_groups(paths)} CROSS JOIN {part.sql} AS e WHERE e.workspace_id = :workspace"
        f" AND e.external_entity_id = g.external_entity_id AND {_IS_OF_GROUP}"
        " AND e.timestamp_ms >= :start AND e.timestamp_ms < :end"
        f" AND e.model_slug IN ({_TEXTS[conn.dialect.name].format('slugs')}) GROUP BY g.path, e.model_slug"
    )
    return await _rows(conn, window, query, {**values, **part.bounds})


_IS_OF_GROUP = "(e.group_path = g.path OR (e.group_path IS NULL AND g.path LIKE '%' || e.group_id || '/'))"
"""Older events record no path."""


async def _rows(conn: Connection, window: EventWindow, query: str, values: dict[str, Any]) -> Sequence[Any]:
    window_values = {"workspace": window.workspace_id, "start": window.start_ms, "end": window.end_ms}
    return (await conn.execute(text(query), {**values, **window_values})).all()


def _sums(table: str, calls: str) -> str:
    names = ("input_tokens", "output_tokens", "cached_input_tokens")
    figures = [calls, *(f"sum({table}.{name})" for name in names)]
    return ", ".join(f"CAST({figure} AS bigint)" for figure in figures)
