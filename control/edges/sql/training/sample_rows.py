"""Queries on `training_node_samples`: what the nodes of jobs used of their machines, by time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, delete, exists, func, select
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import training_jobs, training_node_samples
from control.records.training import StoredSample
from policy.training.node_use import NodeSample

_samples = training_node_samples.c
_FIGURES = ("rank", "timestamp_ms", "cpu_millicores", "memory_bytes", "storage_bytes", "storage_total_bytes")


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """The time of samples, both ends included. Of each step the last sample of each node is read."""

    since_ms: int
    until_ms: int
    step_ms: int


async def insert_samples(tx: WriteTx, samples: Sequence[NodeSample]) -> None:
    """Write samples. One that is there already is left as it is."""
    if samples:
        insert: Any = (sqlite if tx.conn.dialect.name == "sqlite" else postgresql).insert(training_node_samples)
        rows = [{"job_id": one.job_id, **{name: getattr(one, name) for name in _FIGURES}} for one in samples]
        await tx.conn.execute(insert.on_conflict_do_nothing(), rows)


async def read_samples(conn: Connection, job_id: str, window: SampleWindow) -> Sequence[StoredSample]:
    """The samples of a job by rank and time."""
    within = (_samples.job_id == job_id, _samples.timestamp_ms.between(window.since_ms, window.until_ms))
    step = _samples.timestamp_ms // window.step_ms
    last = select(_samples.rank, func.max(_samples.timestamp_ms).label("at_ms")).where(*within)
    latest = last.group_by(_samples.rank, step).subquery()
    is_last = and_(_samples.rank == latest.c.rank, _samples.timestamp_ms == latest.c.at_ms)
    query = select(*(_samples[name] for name in _FIGURES)).join_from(training_node_samples, latest, is_last)
    query = query.where(*within).order_by(_samples.rank, _samples.timestamp_ms)
    return [StoredSample(*row) for row in await conn.execute(query)]


async def job_after(conn: Connection, job_id: str) -> str | None:
    """The next job's id, in order, that has samples. One look-up in the index."""
    query = select(_samples.job_id).where(_samples.job_id > job_id)
    return (await conn.execute(query.order_by(_samples.job_id).limit(1))).scalar()


async def newest_beyond(conn: Connection, job_id: str, most: int) -> int | None:
    """The time of the newest sample beyond the `most` newest ones; of all of them if the job is gone."""
    is_there = (await conn.execute(select(exists().where(training_jobs.c.id == job_id)))).scalar()
    query = select(_samples.timestamp_ms).where(_samples.job_id == job_id).order_by(_samples.timestamp_ms.desc())
    return (await conn.execute(query.offset(most if is_there else 0).limit(1))).scalar()


async def delete_up_to(tx: WriteTx, job_id: str, last_ms: int, limit: int) -> int:
    """Delete at most `limit` samples up to and with that time, the oldest first; returns how many."""
    oldest = select(_samples.id).where(_samples.job_id == job_id, _samples.timestamp_ms <= last_ms)
    oldest = oldest.order_by(_samples.timestamp_ms, _samples.id).limit(limit)
    return (await tx.conn.execute(delete(training_node_samples).where(_samples.id.in_(oldest)))).rowcount
