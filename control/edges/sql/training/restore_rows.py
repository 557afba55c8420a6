"""The queries for the checkpoints that a job starts with."""

from dataclasses import dataclass

import orjson
from sqlalchemy import ColumnElement, select

from control.edges.sql.store import Connection
from control.edges.sql.training.tables import training_checkpoints, training_jobs, training_projects
from policy.training.job_spec import LoadRef
from policy.training.reports import CheckpointFile, Restore

_checkpoints = training_checkpoints.c
_jobs = training_jobs.c
_projects = training_projects.c
_NEWEST_FIRST = (_checkpoints.created_at_ms.desc(), _checkpoints.updated_at_ms.desc(), _checkpoints.id.desc())


@dataclass(frozen=True, slots=True)
class Loader:
    """The job that loads checkpoints. `job_id` None: it is about to be made."""

    workspace_id: str
    project_id: str
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A checkpoint that a reference means. `checkpoint` None: it is on its way into the store."""

    job_id: str
    job_status: str
    sync_status: str | None
    """That of the job."""
    checkpoint: Restore | None


async def last_checkpoint(conn: Connection, job_id: str) -> Restore | None:
    """The newest checkpoint of a job that is in the store, verified."""
    query = select(_checkpoints.name, _checkpoints.location, _checkpoints.files)
    query = query.where(_checkpoints.job_id == job_id, _checkpoints.files.is_not(None))
    row = (await conn.execute(query.order_by(*_NEWEST_FIRST).limit(1))).one_or_none()
    return None if row is None else _restore(row.name, row.location, row.files)


async def find_load(conn: Connection, loader: Loader, ref: LoadRef, *, in_store: bool = False) -> LoadRow | None:
    """The newest checkpoint that the reference means; with `in_store` the newest of those that are verified there."""
    of_job = (_jobs.id.label("job_id"), _jobs.status, _jobs.checkpoint_sync_status)
    query = select(*of_job, _checkpoints.name, _checkpoints.location, _checkpoints.files).join(
        training_jobs, _jobs.id == _checkpoints.job_id
    )
    query = query.where(_jobs.workspace_id == loader.workspace_id, ~_jobs.is_deleted, *_meant(loader, ref))
    if in_store:
        query = query.where(_checkpoints.files.is_not(None))
    row = (await conn.execute(query.order_by(*_NEWEST_FIRST).limit(1))).one_or_none()
    if row is None:
        return None
    checkpoint = None if row.files is None else _restore(row.name, row.location, row.files)
    return LoadRow(row.job_id, row.status, row.checkpoint_sync_status, checkpoint)


def _meant(loader: Loader, ref: LoadRef) -> list[ColumnElement[bool]]:
    """The conditions of a reference. No job loads a checkpoint of its own."""
    conditions = list[ColumnElement[bool]]()
    if loader.job_id is not None:
        conditions.append(_jobs.id != loader.job_id)
    if ref.job_id is not None:
        conditions.append(_jobs.id == ref.job_id)
    if ref.project_name is not None:
        projects = select(_projects.id).where(
            _projects.workspace_id == loader.workspace_id, _projects.name == ref.project_name, ~_projects.is_deleted
        )
        conditions.append(_jobs.project_id.in_(projects))
    if ref.job_id is None and ref.project_name is None:
        conditions.append(_jobs.project_id == loader.project_id)
    if ref.checkpoint_name is not None:
        conditions.append(_checkpoints.name == ref.checkpoint_name)
    return conditions


def _restore(name: str, location: str, files: str) -> Restore:
    return Restore(name, location, tuple(map(CheckpointFile.from_wire, orjson.loads(files))))
