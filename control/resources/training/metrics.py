"""The metrics that jobs print. Bounded per job in names and points: further names are dropped, the oldest points go.

See docs/reference/training.md#logs-and-metrics.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from control.edges.sql.store import Store, WriteTx, in_batches
from control.edges.sql.training import metric_rows as rows
from control.edges.sql.training.metric_rows import PointFilter
from control.records.times import LAST_MS
from control.resources.millisecond_room import MillisecondRoom
from policy.training.reports import MetricPoint

MAX_POINTS = 100_000
MAX_NAMES = 100
"""The most metric names of one job."""
POINTS_AT_ONCE = 10_000
"""The most points of one answer, which has more to hold whole milliseconds."""
POINTS_PER_MS = 5_000
"""The most points at one millisecond of a job. Later ones get the next."""
MAX_MS = LAST_MS - 1_000
"""The latest time that a point may say. Later ones are for points that find no room."""
_GROWTH = 10
"""A job's points are cut back after they grew by this fraction of the bound."""
_DELETED_AT_ONCE = 500
_LARGEST_STEP = 2**63 - 1


class JobMetrics:
    """The metrics in one database. Several processes may write them."""

    def __init__(self, store: Store, max_points: int = MAX_POINTS) -> None:
        self._store = store
        self._max_points = max_points
        self._new: Counter[str] = Counter()
        """The points that this process has written since the job's were cut back."""

    async def insert(self, tx: WriteTx, job_id: str, points: Sequence[MetricPoint]) -> int:
        """Write points in the caller's transaction; returns how many. Call `note_written` after its commit.

        Drops what no column holds, and names beyond the bound: a job must not be able to stop its own output.
        """
        storable = [point for point in points if _is_held(point)]
        if not storable:
            return 0
        names = await rows.metric_names(tx.conn, job_id)
        for point in storable:
            if len(names) < MAX_NAMES:
                names.add(point.name)
        stored = [point for point in storable if point.name in names]
        if stored:
            await rows.insert_points(tx, job_id, await _spread(tx, job_id, stored))
        return len(stored)

    async def note_written(self, job_id: str, count: int) -> None:
        """Cut the job's points back if they may have grown beyond the bound."""
        self._new[job_id] += count
        if self._new[job_id] > self._max_points / _GROWTH:
            await self.cut_back(job_id)

    async def read(self, job_id: str, name: str | None, since_ms: int) -> Sequence[MetricPoint]:
        """The oldest points from a time on."""
        async with self._store.read() as conn:
            return await rows.read_page(conn, job_id, PointFilter(name, since_ms), POINTS_AT_ONCE)

    async def prune(self) -> int:
        """Cut back the points of every job; delete those of deleted jobs. Returns the number of deleted points."""
        deleted = 0
        id = ""
        while True:
            async with self._store.read() as conn:
                job_id = await rows.job_after(conn, id)
            if job_id is None:
                return deleted
            id = job_id
            deleted += await self.cut_back(id)

    async def cut_back(self, job_id: str) -> int:
        del self._new[job_id]
        async with self._store.read() as conn:
            last = await rows.newest_beyond(conn, job_id, self._max_points)
        if last is None:
            return 0
        return await in_batches(self._store, partial(_delete, job_id=job_id, last=last))


async def _delete(tx: WriteTx, job_id: str, last: rows.Place) -> int:
    return await rows.delete_up_to(tx, job_id, last, _DELETED_AT_ONCE)


async def _spread(tx: WriteTx, job_id: str, points: Sequence[MetricPoint]) -> list[MetricPoint]:
    """The points by time. One whose millisecond is full is moved to the next that has room."""
    ordered = sorted(points, key=lambda point: point.timestamp_ms)
    room = MillisecondRoom(POINTS_PER_MS, partial(rows.count_points, tx.conn))
    await room.look_at({(job_id, point.timestamp_ms) for point in ordered})
    return [replace(point, timestamp_ms=await room.assign(job_id, point.timestamp_ms)) for point in ordered]


def _is_held(point: MetricPoint) -> bool:
    is_whole = -_LARGEST_STEP <= (point.step or 0) <= _LARGEST_STEP
    return math.isfinite(point.value) and is_whole and point.timestamp_ms <= MAX_MS
