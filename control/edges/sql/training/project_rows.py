"""Queries on `training_projects`. Deleted projects are found by `delete_if_empty` alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, exists, func, insert, select, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import training_jobs, training_projects
from control.records.training import ProjectRecord

_projects = training_projects.c


async def find_project(conn: Connection, workspace_id: str, project_id: str) -> ProjectRecord | None:
    query = _visible(workspace_id).where(_projects.id == project_id)
    row = (await conn.execute(query)).one_or_none()
    return ProjectRecord(*row) if row else None


async def find_project_called(conn: Connection, workspace_id: str, name: str) -> ProjectRecord | None:
    row = (await conn.execute(_visible(workspace_id).where(_projects.name == name))).one_or_none()
    return ProjectRecord(*row) if row else None


async def list_projects(conn: Connection, workspace_id: str) -> Sequence[ProjectRecord]:
    """All projects of a workspace, the newest first."""
    return [ProjectRecord(*row) for row in await conn.execute(_visible(workspace_id).order_by(_projects.id.desc()))]


async def count_projects(conn: Connection, workspace_id: str) -> int:
    query = select(func.count()).where(_projects.workspace_id == workspace_id, ~_projects.is_deleted)
    count: int = (await conn.execute(query)).scalar_one()
    return count


async def project_names(conn: Connection, project_ids: Iterable[str]) -> Mapping[str, str]:
    """The name of each of these projects, by id."""
    query = select(_projects.id, _projects.name).where(one_of(_projects.id, project_ids))
    return {row.id: row.name for row in await conn.execute(query)}


async def insert_project(tx: WriteTx, record: ProjectRecord) -> None:
    values = {name: getattr(record, name) for name in ProjectRecord.__dataclass_fields__}
    await tx.conn.execute(insert(training_projects).values(**values))


async def update_project(tx: WriteTx, record: ProjectRecord) -> None:
    values = {name: getattr(record, name) for name in ("name", "is_deleted", "updated_at_ms")}
    await tx.conn.execute(update(training_projects).where(_projects.id == record.id).values(**values))


async def delete_if_empty(tx: WriteTx, project_id: str) -> None:
    """Delete the row of a deleted project that has no job left, not even an invisible one."""
    has_jobs = exists(select(training_jobs.c.id).where(training_jobs.c.project_id == project_id))
    statement = delete(training_projects).where(_projects.id == project_id, _projects.is_deleted, ~has_jobs)
    await tx.conn.execute(statement)


def _visible(workspace_id: str) -> Any:
    return select(training_projects).where(_projects.workspace_id == workspace_id, ~_projects.is_deleted)
