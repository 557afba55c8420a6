"""Queries on `training_metrics`: insert points, read them in order of time, find and delete the oldest.

A point's place is (timestamp, id).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import and_, delete, exists, func, insert, or_, select

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import training_jobs, training_metrics
from control.records.times import LAST_MS, Millisecond
from policy.training.reports import MetricPoint

Place = tuple[int, int]
"""(timestamp in milliseconds, id) of a point."""
_points = training_metrics.c
_NEWEST_FIRST = (_points.timestamp_ms.desc(), _points.id.desc())
_OLDEST_FIRST = (_points.timestamp_ms, _points.id)


@dataclass(frozen=True, slots=True)
class PointFilter:
    """The selection of a job's points: those of one metric, from a time on, up to and with another one."""

    name: str | None
    since_ms: int
    until_ms: int = LAST_MS


async def insert_points(tx: WriteTx, job_id: str, points: Sequence[MetricPoint]) -> None:
    if points:
        rows = [
            {"job_id": job_id, **{name: getattr(point, name) for name in MetricPoint.__dataclass_fields__}}
            for point in points
        ]
        await tx.conn.execute(insert(training_metrics), rows)


async def metric_names(conn: Connection, job_id: str) -> set[str]:
    """The names of a job's metrics. One look-up in the index for each name, not for each point."""
    first = select(func.min(_points.name)).where(_points.job_id == job_id)
    names = select(first.scalar_subquery().label("name")).cte("found", recursive=True)
    after = select(func.min(_points.name)).where(_points.job_id == job_id, _points.name > names.c.name)
    names = names.union_all(select(after.scalar_subquery()).where(names.c.name.is_not(None)))
    return set((await conn.execute(select(names.c.name).where(names.c.name.is_not(None)))).scalars())


async def count_points(conn: Connection, milliseconds: Collection[Millisecond]) -> dict[Millisecond, int]:
    """The number of points in each of these milliseconds of one job, which are near each other."""
    first = min(milliseconds)
    last = max(milliseconds)
    query = select(_points.timestamp_ms, func.count()).where(_points.job_id == first[0])
    query = query.where(_points.timestamp_ms.between(first[1], last[1])).group_by(_points.timestamp_ms)
    counts = {(first[0], ms): points for ms, points in await conn.execute(query)}
    return {one: counts.get(one, 0) for one in milliseconds}


async def read_page(conn: Connection, job_id: str, selection: PointFilter, limit: int) -> Sequence[MetricPoint]:
    """The oldest points, at least `limit` if there are as many. All of each millisecond that it shows, and of at least
    two: a reader goes on at the last one's time."""
    points = await _read_points(conn, job_id, selection, limit)
    if len(points) < limit:
        return points
    last_ms = points[-1].timestamp_ms
    before = [point for point in points if point.timestamp_ms != last_ms]
    if not before and (following := await _read_points(conn, job_id, replace(selection, since_ms=last_ms + 1), 1)):
        last_ms = following[0].timestamp_ms
    since_ms = points[len(before)].timestamp_ms
    return before + await _read_points(conn, job_id, replace(selection, since_ms=since_ms, until_ms=last_ms))


async def _read_points(
    conn: Connection, job_id: str, selection: PointFilter, limit: int | None = None
) -> list[MetricPoint]:
    query = select(_points.name, _points.timestamp_ms, _points.step, _points.value).where(_points.job_id == job_id)
    query = query.where(_points.timestamp_ms.between(selection.since_ms, selection.until_ms))
    if selection.name is not None:
        query = query.where(_points.name == selection.name)
    return [MetricPoint(*row) for row in await conn.execute(query.order_by(*_OLDEST_FIRST).limit(limit))]


async def job_after(conn: Connection, job_id: str) -> str | None:
    """The next job's id, in order, that has points. One look-up in the index."""
    query = select(_points.job_id).where(_points.job_id > job_id)
    return (await conn.execute(query.order_by(_points.job_id).limit(1))).scalar()


async def newest_beyond(conn: Connection, job_id: str, most: int) -> Place | None:
    """The newest point beyond the `most` newest ones; the newest one of a job that is gone. None if there is none."""
    is_there = (await conn.execute(select(exists().where(training_jobs.c.id == job_id)))).scalar()
    query = select(_points.timestamp_ms, _points.id).where(_points.job_id == job_id).order_by(*_NEWEST_FIRST)
    row = (await conn.execute(query.offset(most if is_there else 0).limit(1))).one_or_none()
    return (row.timestamp_ms, row.id) if row else None


async def delete_up_to(tx: WriteTx, job_id: str, last: Place, limit: int) -> int:
    """Delete at most `limit` points, oldest first, up to and with the one at `last`; returns how many."""
    at_ms, id = last
    old: Any = or_(_points.timestamp_ms < at_ms, and_(_points.timestamp_ms == at_ms, _points.id <= id))
    oldest = select(_points.id).where(_points.job_id == job_id, old).order_by(*_OLDEST_FIRST).limit(limit)
    return (await tx.conn.execute(delete(training_metrics).where(_points.id.in_(oldest)))).rowcount
