"""Training jobs: create, recreate, read, search, stop and delete them. No SQL, no HTTP.

Only `job_states` changes a job's status; trainers' reports do so elsewhere (`backend_reports`).
See docs/reference/training.md#jobs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from control.edges.sql import workspace_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.training import job_rows, project_rows, upload_rows
from control.records.audit import Change
from control.records.ids import new_id
from control.records.training import BackendRecord, JobRecord, JobRef, JobSearch, ProjectRecord
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown_platform import shown_job
from control.resources.training import job_admission, job_states
from control.resources.training.backends import present_backend
from control.resources.training.errors import TooManyJobsError, TrainingJobNotFoundError, TrainingNotEnabledError
from control.resources.training.instance_types import gpu_memory_mib
from control.resources.training.projects import find_project
from control.resources.uploads.artifacts import find_artifacts
from policy.training.job_spec import JobSpec
from policy.training.statuses import CREATED

MAX_UNFINISHED = 1000
"""Jobs of one workspace that have not ended."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it was asked for."""

    spec: JobSpec
    name: str | None
    priority: int
    availability_model: str
    recreated_from: str | None = None


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job and the name of its project."""

    record: JobRecord
    project_name: str


async def create_job(store: Store, workspace_id: str, project_id: str, new: NewJob) -> JobSummary:
    async def work(tx: WriteTx) -> JobSummary:
        await _check_enabled(tx, workspace_id)
        return await _insert(tx, await find_project(tx.conn, workspace_id, project_id), new)

    return await store.transact(work)


async def recreate_job(store: Store, ref: JobRef) -> JobSummary:
    """A new job with the same configuration. It starts with the last checkpoint of the one that it repeats."""

    async def work(tx: WriteTx) -> JobSummary:
        await _check_enabled(tx, ref.workspace_id)
        project = await find_project(tx.conn, ref.workspace_id, ref.project_id)
        old = (await find_job(tx.conn, ref)).record
        spec = await job_rows.get_spec(tx.conn, old.id)
        return await _insert(tx, project, NewJob(spec, old.name, old.priority, old.availability_model, old.id))

    return await store.transact(work)


async def read_job(store: Store, ref: JobRef) -> JobSummary:
    async with store.read() as conn:
        return await find_job(conn, ref)


async def search_jobs(store: Store, search: JobSearch) -> Sequence[JobSummary]:
    async with store.read() as conn:
        records = await job_rows.search_jobs(conn, search)
        names = await project_rows.project_names(conn, {record.project_id for record in records})
        return [JobSummary(record, names[record.project_id]) for record in records]


async def stop_job(store: Store, ref: JobRef) -> JobSummary:
    """End a waiting job now, and ask the trainer to end another one. JobEndedError if it has ended."""
    return await _change(store, ref, "stop", job_states.stopped)


async def update_job(store: Store, ref: JobRef, priority: int | None, availability_model: str | None) -> JobSummary:
    """Move a waiting job in the queue; None leaves a value as it is. JobNotWaitingError if it does not wait."""

    def changed(job: JobRecord, now_ms: int) -> JobRecord:
        return job_states.requeued(job, priority, availability_model, now_ms)

    return await _change(store, ref, "update", changed)


async def remove_job(store: Store, ref: JobRef) -> JobSummary:
    """Delete an ended job: nobody sees it from now on, and the trainer removes what is left of it."""
    return await _change(store, ref, "delete", job_states.deleted)


async def find_job(conn: Connection, ref: JobRef) -> JobSummary:
    """A job as its workspace sees it. Refused if there is no such project, or no such job in it."""
    project = await find_project(conn, ref.workspace_id, ref.project_id)
    record = await job_rows.find_job(conn, ref.workspace_id, ref.project_id, ref.job_id)
    if record is None:
        raise TrainingJobNotFoundError
    return JobSummary(record, project.name)


async def _check_enabled(tx: WriteTx, workspace_id: str) -> None:
    """Refuse without the right to train. Locks the workspace: no other job is made, no project deleted meanwhile."""
    workspace = await workspace_rows.lock_workspace(tx, workspace_id)
    if not workspace.training:
        raise TrainingNotEnabledError


async def _insert(tx: WriteTx, project: ProjectRecord, new: NewJob) -> JobSummary:
    backend = await present_backend(tx.conn, tx.now_ms)
    job_admission.check_fits(backend, new.spec)
    await job_admission.check_secrets(tx, project.workspace_id, new.spec)
    await job_admission.check_loads(tx.conn, project, new.spec)
    artifacts = await find_artifacts(tx, project.workspace_id, new.spec.artifacts)
    if await job_rows.count_unfinished(tx.conn, project.workspace_id) >= MAX_UNFINISHED:
        raise TooManyJobsError(MAX_UNFINISHED)
    record = _record(project, new, backend, tx.now_ms)
    await job_rows.insert_job(tx, record, new.spec)
    await upload_rows.hold_uploads(tx, record.id, [upload.id for upload in artifacts])
    action = "training_job.create" if new.recreated_from is None else "training_job.recreate"
    tx.audit(record.workspace_id, Change(action, path_of(record), None, shown_job(record)))
    await project_rows.update_project(tx, replace(project, updated_at_ms=max(tx.now_ms, project.updated_at_ms)))
    return JobSummary(record, project.name)


def _record(project: ProjectRecord, new: NewJob, backend: BackendRecord, now_ms: int) -> JobRecord:
    return JobRecord(
        id=new_id("tj"),
        workspace_id=project.workspace_id,
        project_id=project.id,
        name=new.name,
        status=CREATED,
        error_message=None,
        priority=new.priority,
        availability_model=new.availability_model,
        node_count=new.spec.node_count,
        resources=new.spec.resources,
        gpu_memory_mib=gpu_memory_mib(backend.hosts, new.spec.resources.gpu_type),
        attempt=0,
        stop_requested=False,
        is_deleted=False,
        recreated_from=new.recreated_from,
        checkpoint_sync_status=None,
        environment_digest=None,
        nodes=(),
        output_offsets={},
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        ended_at_ms=None,
    )


async def _change(store: Store, ref: JobRef, verb: str, changed: Callable[[JobRecord, int], JobRecord]) -> JobSummary:
    async def work(tx: WriteTx) -> JobSummary:
        summary = await find_job(tx.conn, ref)
        old = await job_rows.lock_job(tx, ref.job_id)
        if old is None or old.is_deleted:
            raise TrainingJobNotFoundError
        new = changed(old, tx.now_ms)
        await present_backend(tx.conn, tx.now_ms)
        await job_rows.update_job(tx, old, new)
        if new != old:
            after = None if new.is_deleted else shown_job(new)
            tx.audit(ref.workspace_id, Change(f"training_job.{verb}", path_of(new), shown_job(old), after))
        return JobSummary(new, summary.project_name)

    return await store.transact(work)
