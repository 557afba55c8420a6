"""Training projects: make one by its name, read them with their latest job, delete one with all its jobs; caches.

See docs/reference/training.md#projects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.edges.sql import workspace_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.training import cache_rows, job_rows, project_rows
from control.records.audit import Change
from control.records.ids import new_id
from control.records.training import JobRecord, ProjectRecord
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown_platform import shown_project
from control.resources.training.backends import present_backend
from control.resources.training.errors import (
    NoCacheSummaryError,
    ProjectInUseError,
    TooManyProjectsError,
    TrainingProjectNotFoundError,
)
from policy.training.caches import CacheSummary

MAX_PROJECTS = 1000
"""The most projects of a workspace. All are in one answer."""


@dataclass(frozen=True, slots=True)
class ProjectSummary:
    """A project and its newest job."""

    record: ProjectRecord
    latest_job: JobRecord | None


async def put_project(store: Store, workspace_id: str, name: str) -> ProjectSummary:
    """The workspace's project of that name; makes it if there is none."""

    async def work(tx: WriteTx) -> ProjectSummary:
        await workspace_rows.lock_workspace(tx, workspace_id)  # so that nobody else makes it at the same time
        project = await project_rows.find_project_called(tx.conn, workspace_id, name)
        if project is not None:
            return (await _summaries(tx.conn, [project]))[0]
        if await project_rows.count_projects(tx.conn, workspace_id) >= MAX_PROJECTS:
            raise TooManyProjectsError(MAX_PROJECTS)
        record = ProjectRecord(new_id("tp"), workspace_id, name, False, tx.now_ms, tx.now_ms)
        await project_rows.insert_project(tx, record)
        tx.audit(workspace_id, Change("training_project.create", path_of(record), None, shown_project(record)))
        return ProjectSummary(record, None)

    return await store.transact(work)


async def read_project(store: Store, workspace_id: str, project_id: str) -> ProjectSummary:
    async with store.read() as conn:
        return (await _summaries(conn, [await find_project(conn, workspace_id, project_id)]))[0]


async def read_projects(store: Store, workspace_id: str) -> Sequence[ProjectSummary]:
    """All projects of the workspace, the newest first."""
    async with store.read() as conn:
        return await _summaries(conn, await project_rows.list_projects(conn, workspace_id))


async def remove_project(store: Store, workspace_id: str, project_id: str) -> ProjectSummary:
    """Delete a project with its jobs, which a trainer then forgets. Refused while one of them has not ended."""

    async def work(tx: WriteTx) -> ProjectSummary:
        await workspace_rows.lock_workspace(tx, workspace_id)  # no job is created meanwhile
        project = await find_project(tx.conn, workspace_id, project_id)
        (summary,) = await _summaries(tx.conn, [project])
        if unfinished := await job_rows.unfinished_in_project(tx.conn, project_id):
            raise ProjectInUseError(unfinished)
        if summary.latest_job is not None:
            await present_backend(tx.conn, tx.now_ms)
        await job_rows.mark_deleted_in_project(tx, project_id)
        await project_rows.update_project(tx, replace(project, is_deleted=True, updated_at_ms=tx.now_ms))
        await project_rows.delete_if_empty(tx, project_id)
        await cache_rows.mark_deleted(tx, project_id)
        tx.audit(workspace_id, Change("training_project.delete", path_of(project), shown_project(project), None))
        return summary

    return await store.transact(work)


async def read_cache(store: Store, workspace_id: str, project_id: str) -> CacheSummary:
    """The last summary of the project's cache. NoCacheSummaryError if there is none."""
    async with store.read() as conn:
        await find_project(conn, workspace_id, project_id)
        summary = await cache_rows.find_summary(conn, project_id)
    if summary is None:
        raise NoCacheSummaryError
    return summary


async def take_cache(store: Store, summary: CacheSummary) -> None:
    """Keep what a trainer reports of a cache."""
    await store.transact(lambda tx: cache_rows.update_summary(tx, summary))


async def take_removed_cache(store: Store, project_id: str) -> None:
    """Forget the cache of a deleted project: the trainer has removed it."""
    await store.transact(lambda tx: cache_rows.delete_cache(tx, project_id))


async def find_project(conn: Connection, workspace_id: str, project_id: str) -> ProjectRecord:
    """A project as the workspace sees it. TrainingProjectNotFoundError if there is none."""
    record = await project_rows.find_project(conn, workspace_id, project_id)
    if record is None:
        raise TrainingProjectNotFoundError
    return record


async def _summaries(conn: Connection, records: Sequence[ProjectRecord]) -> list[ProjectSummary]:
    latest = await job_rows.latest_jobs(conn, [record.id for record in records])
    return [ProjectSummary(record, latest.get(record.id)) for record in records]
