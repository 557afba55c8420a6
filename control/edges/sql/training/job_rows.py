"""Queries on `training_jobs`: rows and `JobRecord`s. Only `get_spec` reads what a job runs, which may be long.

The caller locks a job before it changes it, and changes it by `control/resources/training/job_states.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from sqlalchemy import ColumnElement, delete, func, insert, literal_column, or_, select, union, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.project_rows import delete_if_empty
from control.edges.sql.training.tables import (
    training_checkpoints,
    training_job_artifacts,
    training_jobs,
    training_projects,
    training_sessions,
)
from control.long_work import OPERATOR, beside
from control.records.training import JobRecord, JobSearch
from policy.training.job_spec import JobSpec
from policy.training.reports import NodeState
from policy.training.resources import NodeResources
from policy.training.statuses import ENDED, PLACED, QUEUED, SYNCING

UNFINISHED = QUEUED | PLACED
_FORGOTTEN_AT_ONCE = 200
"""The most jobs that one transaction forgets: whoever deletes a project may delete a hundred thousand."""
_JOBS_AT_ONCE = 1000
_jobs = training_jobs.c
_FIELDS = tuple(JobRecord.__dataclass_fields__)
_COLUMNS = tuple(_jobs[name] for name in _FIELDS)


async def find_job(conn: Connection, workspace_id: str, project_id: str, job_id: str) -> JobRecord | None:
    """A job as the workspace sees it: None if it was deleted."""
    jobs = await search_jobs(conn, JobSearch(workspace_id, project_id, job_id, limit=1))
    return jobs[0] if jobs else None


async def find_job_anywhere(conn: Connection, job_id: str) -> JobRecord | None:
    """A job of any workspace, also a deleted one: for a trainer."""
    return _optional((await conn.execute(select(*_COLUMNS).where(_jobs.id == job_id))).one_or_none())


async def find_jobs(conn: Connection, job_ids: Iterable[str]) -> list[JobRecord]:
    """Return those of these jobs that exist, in any workspace, also deleted ones."""
    return [_record(row) for row in await conn.execute(select(*_COLUMNS).where(one_of(_jobs.id, job_ids)))]


async def syncing_ended_jobs(conn: Connection) -> list[JobRecord]:
    """Jobs that have ended while checkpoints of them were not in the store yet."""
    # As a parameter it would keep SQLite from the index that holds these jobs alone.
    syncing: ColumnElement[str] = literal_column(f"'{SYNCING}'")
    rows = await conn.execute(select(*_COLUMNS).where(_jobs.checkpoint_sync_status == syncing, ~_jobs.is_deleted))
    return [_record(row) for row in rows if row.status in ENDED]  # by status, SQLite would read all ended jobs


async def count_by_status(conn: Connection) -> Mapping[str, int]:
    """The number of unfinished jobs of all workspaces by status."""
    query = select(_jobs.status, func.count()).where(_jobs.status.in_(sorted(UNFINISHED))).group_by(_jobs.status)
    return {row[0]: row[1] for row in await conn.execute(query)}


async def lock_job(tx: WriteTx, job_id: str) -> JobRecord | None:
    """The same, locked against other changes."""
    query = select(*_COLUMNS).where(_jobs.id == job_id).with_for_update(key_share=True)
    return _optional((await tx.conn.execute(query)).one_or_none())


async def unfinished_in_project(conn: Connection, project_id: str, limit: int = 6) -> list[str]:
    """The ids of the project's first jobs that have not ended."""
    query = select(_jobs.id).where(_jobs.project_id == project_id, _jobs.status.in_(sorted(UNFINISHED)))
    return list((await conn.execute(query.order_by(_jobs.id).limit(limit))).scalars())


async def mark_deleted_in_project(tx: WriteTx, project_id: str) -> None:
    """Make all jobs of a project invisible. All have ended, and no other is created: the caller holds the lock."""
    visible = (_jobs.project_id == project_id, ~_jobs.is_deleted)
    await tx.conn.execute(update(training_jobs).where(*visible).values(is_deleted=True, updated_at_ms=tx.now_ms))


async def get_spec(conn: Connection, job_id: str) -> JobSpec:
    """Read the specification of an existing job."""
    text = (await conn.execute(select(_jobs.spec).where(_jobs.id == job_id))).scalar_one()
    return JobSpec.from_wire(orjson.loads(text))


async def search_jobs(conn: Connection, search: JobSearch) -> list[JobRecord]:
    """The jobs that match, by time of creation, and those of one millisecond by id."""
    query = select(*_COLUMNS).where(_jobs.workspace_id == search.workspace_id, ~_jobs.is_deleted)
    if search.project_id is not None:
        query = query.where(_jobs.project_id == search.project_id)
    if search.job_id is not None:
        query = query.where(_jobs.id == search.job_id)
    if search.statuses:
        query = query.where(_jobs.status.in_(sorted(search.statuses)))
    order = [_jobs.created_at_ms, _jobs.id]
    query = query.order_by(*(column.desc() for column in order) if search.newest_first else order)
    rows = (await conn.execute(query.limit(search.limit))).all()
    return await beside(search.workspace_id, len(rows), partial(_records, rows))


async def jobs_at(conn: Connection, workspace_id: str, at_ms: int) -> list[JobRecord]:
    """The jobs of a workspace that were created by then and had not ended, the oldest first: at most 1000."""
    query = select(*_COLUMNS).where(_jobs.workspace_id == workspace_id, ~_jobs.is_deleted, _jobs.created_at_ms <= at_ms)
    query = query.where(or_(_jobs.ended_at_ms.is_(None), _jobs.ended_at_ms > at_ms))
    rows = (await conn.execute(query.order_by(_jobs.created_at_ms, _jobs.id).limit(_JOBS_AT_ONCE))).all()
    return await beside(workspace_id, len(rows), partial(_records, rows))


async def latest_jobs(conn: Connection, project_ids: Iterable[str]) -> Mapping[str, JobRecord]:
    """The newest job of each of these projects, by project; a project without jobs is missing."""
    newest = (
        select(_jobs.id)
        .where(_jobs.project_id == training_projects.c.id, ~_jobs.is_deleted)
        .order_by(_jobs.created_at_ms.desc(), _jobs.id.desc())
        .limit(1)
        .correlate(training_projects)
        .scalar_subquery()
    )
    newest_ids = select(newest).where(one_of(training_projects.c.id, project_ids))
    rows = await conn.execute(select(*_COLUMNS).where(_jobs.id.in_(newest_ids)))
    return {row.project_id: _record(row) for row in rows}


async def count_unfinished(conn: Connection, workspace_id: str) -> int:
    query = select(func.count()).where(_jobs.workspace_id == workspace_id, _jobs.status.in_(sorted(UNFINISHED)))
    count: int = (await conn.execute(query)).scalar_one()
    return count


async def wanted_jobs(conn: Connection) -> list[JobRecord]:
    """All jobs of all workspaces that have not ended, and the first ones that are deleted and not forgotten yet.

    The highest priority first, then the oldest.
    """
    deleted = select(_jobs.id).where(_jobs.is_deleted).order_by(_jobs.id).limit(_FORGOTTEN_AT_ONCE).subquery()
    unfinished = select(_jobs.id).where(_jobs.status.in_(sorted(UNFINISHED)))
    ids = union(unfinished, select(deleted.c.id)).subquery()
    order = (_jobs.priority.desc(), _jobs.created_at_ms, _jobs.id)
    query = select(*_COLUMNS).join_from(training_jobs, ids, _jobs.id == ids.c.id).order_by(*order)
    rows = (await conn.execute(query)).all()
    return await beside(OPERATOR, len(rows), partial(_records, rows))


async def uses_secret(conn: Connection, workspace_id: str, name: str) -> bool:
    """Return whether a job that has not ended names this secret, for a variable or for weights."""
    reference = orjson.dumps({"secret": name}).decode()  # as `insert_job` writes it; other text may look alike
    unfinished = (_jobs.workspace_id == workspace_id, _jobs.status.in_(sorted(UNFINISHED)))
    query = select(_jobs.spec).where(*unfinished, _jobs.spec.contains(reference, autoescape=True))
    for text in (await conn.execute(query)).scalars():
        if name in JobSpec.from_wire(orjson.loads(text)).secret_names:
            return True
    return False


async def insert_job(tx: WriteTx, record: JobRecord, spec: JobSpec) -> None:
    text = orjson.dumps(spec.to_wire()).decode()
    await tx.conn.execute(insert(training_jobs).values(**_values(record), spec=text))


async def update_job(tx: WriteTx, before: JobRecord, after: JobRecord) -> None:
    """Write what differs. `before` is the job as it was locked."""
    old = _values(before)
    changed = {name: value for name, value in _values(after).items() if value != old[name]}
    if changed:
        await tx.conn.execute(update(training_jobs).where(_jobs.id == after.id).values(**changed))


async def update_spec(tx: WriteTx, job_id: str, spec: JobSpec) -> None:
    """Replace the specification of a job that the caller has locked."""
    text = orjson.dumps(spec.to_wire()).decode()
    await tx.conn.execute(update(training_jobs).where(_jobs.id == job_id).values(spec=text))


async def delete_job(tx: WriteTx, record: JobRecord) -> None:
    """Delete a job with its checkpoints and sessions, and its project if that was deleted and this was its last job.

    It holds its uploads no longer. The job's logs and metrics are deleted later, in small steps.
    """
    for table in (training_checkpoints, training_sessions, training_job_artifacts):
        await tx.conn.execute(delete(table).where(table.c.job_id == record.id))
    await tx.conn.execute(delete(training_jobs).where(_jobs.id == record.id))
    await delete_if_empty(tx, record.project_id)


def _values(record: JobRecord) -> dict[str, Any]:
    """The columns of a job, without its spec."""
    values = {name: getattr(record, name) for name in JobRecord.__dataclass_fields__}
    return values | {
        "resources": orjson.dumps(record.resources.to_wire()).decode(),
        "nodes": orjson.dumps([node.to_wire() for node in record.nodes]).decode(),
        "output_offsets": orjson.dumps({str(rank): offset for rank, offset in record.output_offsets.items()}).decode(),
    }


def _records(rows: Sequence[Any]) -> list[JobRecord]:
    return [_record(row) for row in rows]


def _record(row: Any) -> JobRecord:
    values = dict(zip(_FIELDS, row, strict=True))
    values["resources"] = NodeResources.from_wire(orjson.loads(row.resources))
    values["nodes"] = tuple(map(NodeState.from_wire, orjson.loads(row.nodes)))
    values["output_offsets"] = {int(rank): offset for rank, offset in orjson.loads(row.output_offsets).items()}
    return JobRecord(**values)


def _optional(row: Any) -> JobRecord | None:
    return _record(row) if row else None
