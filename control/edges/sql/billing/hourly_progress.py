"""Adds events to the hourly sums, each once: what is added, and how far, changes in one transaction.

Only events of hours that are final are added. So several control processes may add at the same time: whoever finds
that the progress has moved on adds nothing.

See docs/decisions/0065-hourly-sums.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import TextClause, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.billing.days import DAYS, days_text
from control.edges.sql.billing.event_figures import SERVICE_TIER, context_class, figures_of
from control.edges.sql.billing.long_context import context_bounds
from control.edges.sql.billing.tables import hourly_sum_progress, hourly_sums
from control.edges.sql.events.partitions import part_of, partitions_of
from control.edges.sql.store import Connection, WriteTx
from control.records.events import EventWindow
from policy.prices import DAY_MS

HOUR_MS = 3_600_000
_FAR_MS = 1 << 62


class WindowParts(NamedTuple):
    """A window in three parts: whole hours that have sums, and what is before and after them. Each may be empty."""

    before: EventWindow
    hours: EventWindow
    after: EventWindow


@dataclass(frozen=True, slots=True)
class SummedHours:
    """The events of a workspace that are added up: those in [start_ms, until_ms). By default, none are."""

    start_ms: int = _FAR_MS
    until_ms: int = _FAR_MS

    @property
    def is_begun(self) -> bool:
        return self.start_ms < _FAR_MS

    @property
    def end_ms(self) -> int:
        """The end of the last hour whose sums are complete."""
        return self.until_ms - self.until_ms % HOUR_MS

    def parts_of(self, window: EventWindow) -> WindowParts:
        first_ms = full_hour_from(max(window.start_ms, self.start_ms))
        last_ms = min(window.end_ms - window.end_ms % HOUR_MS, self.end_ms)
        if first_ms >= last_ms:
            first_ms = last_ms = window.end_ms
        return WindowParts(
            replace(window, end_ms=first_ms),
            replace(window, start_ms=first_ms, end_ms=last_ms),
            replace(window, start_ms=last_ms),
        )


def full_hour_from(at_ms: int) -> int:
    """The first full hour at `at_ms` or later."""
    return -(-at_ms // HOUR_MS) * HOUR_MS


async def summed_hours(conn: Connection, workspace_id: str) -> SummedHours:
    """Read how far the workspace's events are added up, as this connection sees it."""
    columns = (hourly_sum_progress.c.start_ms, hourly_sum_progress.c.until_ms)
    query = select(*columns).where(hourly_sum_progress.c.workspace_id == workspace_id)
    row = (await conn.execute(query)).one_or_none()
    return SummedHours() if row is None else SummedHours(*row)


async def begin_sums(tx: WriteTx, workspace_id: str, start_ms: int) -> None:
    """Begin sums with the hour that starts then, unless they are begun. Its events are kept from now on until added."""
    dialect = sqlite if tx.conn.dialect.name == "sqlite" else postgresql
    row = {"workspace_id": workspace_id, "start_ms": start_ms, "until_ms": start_ms}
    await tx.conn.execute(dialect.insert(hourly_sum_progress).values(row).on_conflict_do_nothing())


async def portion_end(conn: Connection, window: EventWindow, events: int) -> int | None:
    """The end of a portion of at most about that many events that begins with the window; None if there is no event.

    With an hour, if it holds a whole one: a sum that is written once costs PostgreSQL half the disk.
    """
    first_ms = await _time_of_event(conn, window, 0)
    if first_ms is None:
        return None
    last_ms = await _time_of_event(conn, window, events - 1)
    if last_ms is None:
        return window.end_ms
    hour_ms = last_ms - last_ms % HOUR_MS
    return hour_ms if hour_ms > window.start_ms else last_ms + 1


async def _time_of_event(conn: Connection, window: EventWindow, place: int) -> int | None:
    """The time of the window's event at this place, in the order of time."""
    part = part_of(await partitions_of(conn), window.start_ms, window.end_ms)
    if part is None:
        return None
    query = (
        f"SELECT e.timestamp_ms FROM {part.sql} AS e WHERE e.workspace_id = :workspace"  # noqa: S608 (ours)
        " AND e.timestamp_ms >= :start AND e.timestamp_ms < :end ORDER BY e.timestamp_ms LIMIT 1 OFFSET :place"
    )
    values = {"workspace": window.workspace_id, "start": window.start_ms, "end": window.end_ms, "place": place}
    time_ms: int | None = (await conn.execute(text(query), {**values, **part.bounds})).scalar()
    return time_ms


async def add_events(tx: WriteTx, window: EventWindow) -> bool:
    """Add the window's events. False if others have added what begins where it begins.

    Each hour that begins within the window is added anew, whatever sums it has from before `keep_apart`.
    """
    progress = hourly_sum_progress
    move = update(progress).values(until_ms=window.end_ms)
    present = (progress.c.workspace_id == window.workspace_id, progress.c.until_ms == window.start_ms)
    if (await tx.conn.execute(move.where(*present))).rowcount == 0:
        return False
    values = {"workspace": window.workspace_id, "start": window.start_ms, "end": window.end_ms}
    dialect = tx.conn.dialect.name
    await tx.conn.execute(text(_DELETE_LEFT[dialect]), {**values, "days": days_text(window)})
    part = part_of(await partitions_of(tx.conn), window.start_ms, window.end_ms)
    if part is not None:
        above = context_class(await context_bounds(tx.conn, window.workspace_id))
        add = _add(part.sql, figures_of(dialect), above)
        await tx.conn.execute(add, {**values, **part.bounds})
    return True


def _add(events: str, figures: Mapping[str, str], above: str) -> TextClause:
    """Build the one statement that adds events in the database, so that control's loop is not held up."""
    key = ", ".join(column.name for column in hourly_sums.primary_key)
    names = ", ".join(figures)
    sums = ", ".join(f"{expression} AS {name}" for name, expression in figures.items())
    added = ", ".join(f"{name} = hourly_sums.{name} + excluded.{name}" for name in figures)
    totals = ", ".join(f"sum(s.{name})" for name in figures)
    columns = "e.external_entity_id, e.api_key_prefix, e.model_slug, e.group_id, e.group_path"
    places = "s.external_entity_id, s.api_key_prefix, s.model_slug, s.hour_ms"
    rate = "s.tier, s.above_input_tokens"
    return text(
        f"INSERT INTO hourly_sums ({key}, {names})"  # noqa: S608 (ours)
        f" SELECT :workspace, s.hour_ms - s.hour_ms % {DAY_MS}, {places}, {_PATH}, {rate}, {totals}"
        f" FROM (SELECT {columns}, {_HOUR} AS hour_ms, {SERVICE_TIER} AS tier, {above} AS above_input_tokens, {sums}"
        f" FROM {events} AS e"
        " WHERE e.workspace_id = :workspace AND e.timestamp_ms >= :start AND e.timestamp_ms < :end"
        f" GROUP BY {columns}, {_HOUR}, {SERVICE_TIER}, {above}) AS s LEFT JOIN groups ON groups.id = s.group_id"
        f" WHERE true GROUP BY {places}, {_PATH}, {rate} ON CONFLICT ({key}) DO UPDATE SET {added}"
    )


_HOUR = f"(e.timestamp_ms - e.timestamp_ms % {HOUR_MS})"
_PATH = "coalesce(s.group_path, groups.path, s.group_id || '/')"
"""The path that the event records. Older events record none: that of their group, or its id if it is deleted."""
_DELETE_LEFT = {
    dialect: "DELETE FROM hourly_sums WHERE workspace_id = :workspace AND hour_ms >= :start AND hour_ms < :end"  # noqa: S608 (ours)
    f" AND day_ms IN ({days})"
    for dialect, days in DAYS.items()
}


async def oldest_not_added(conn: Connection, before_ms: int) -> Mapping[str, int]:
    """The time of the oldest event before then that a workspace's sums still lack, by workspace.

    They must not be deleted yet. An hour counts as lacking them until all its events are added.
    """
    part = part_of(await partitions_of(conn), 0, before_ms)
    if part is None:
        return {}
    query = (
        "SELECT p.workspace_id, (SELECT min(e.timestamp_ms)"  # noqa: S608 (ours)
        f" FROM {part.sql} AS e WHERE e.workspace_id = p.workspace_id AND e.timestamp_ms < :before"
        f" AND e.timestamp_ms >= p.until_ms - p.until_ms % {HOUR_MS}) FROM hourly_sum_progress AS p"
    )
    rows = await conn.execute(text(query), {"before": before_ms, **part.bounds})
    return {workspace_id: oldest_ms for workspace_id, oldest_ms in rows if oldest_ms is not None}


async def delete_sums_before(tx: WriteTx, workspace_id: str, before_ms: int, limit: int) -> int:
    """Delete at most `limit` sums of days that were over by then; returns how many."""
    key = ", ".join(column.name for column in hourly_sums.primary_key)
    statement = (
        f"DELETE FROM hourly_sums WHERE ({key}) IN (SELECT {key} FROM hourly_sums"  # noqa: S608 (ours)
        " WHERE workspace_id = :workspace AND day_ms < :day ORDER BY day_ms LIMIT :limit)"
    )
    values = {"workspace": workspace_id, "day": before_ms // DAY_MS * DAY_MS, "limit": limit}
    return (await tx.conn.execute(text(statement), values)).rowcount
