"""The reports of a trainer, twice a second, and what control wants then. Statuses of jobs follow these reports.

Reports may be lost and repeated: each says everything. A report that changes nothing writes nothing, except, once a
second, that the trainer is there.

See docs/reference/training.md#internal-api.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from control.edges.sql.store import Connection, Store, WriteTx, now_ms
from control.edges.sql.training import backend_rows, cache_rows, job_rows
from control.long_work import OPERATOR, beside
from control.records.training import BackendRecord, JobRecord
from control.resources.training import job_states, sessions
from control.resources.training.backends import REPORT_VALID_MS
from control.resources.training.errors import OtherTrainerError
from policy.training.job_spec import DEDICATED
from policy.training.reports import BackendReport, JobReport, WantedJob
from policy.training.resources import NodeResources
from policy.training.statuses import ENDED, STOPPED, Phase, Wanted

_WRITE_EVERY_MS = 1_000
"""The interval at which an unchanged report of the backend is written."""
_ALIVE = (Phase.STARTING, Phase.RUNNING)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Synced:
    """The jobs with the wishes of control for them, the statuses that jobs came to, and the caches to be removed."""

    jobs: tuple[WantedJob, ...]
    entered: tuple[str, ...]
    forgotten_caches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """The change that a report makes to a job. `after` None: nothing is left of it, and its record goes."""

    before: JobRecord
    after: JobRecord | None


@dataclass(frozen=True, slots=True)
class _View:
    """The state of the database when a report came. `jobs` by id: first those that are wanted, in order."""

    backend: BackendRecord | None
    jobs: Mapping[str, JobRecord]
    reports: Mapping[str, JobReport]


async def take_report(store: Store, report: BackendReport) -> Synced:
    """Take everything that a trainer observes. OtherTrainerError while another trainer reports."""
    at_ms = now_ms()
    backend = BackendRecord(report.trainer, report.backend, report.reason, report.has_sessions, report.hosts, at_ms)
    async with store.read() as conn:
        view = await _view(conn, report)
        forgotten_caches = await cache_rows.deleted_caches(conn)
    if _is_others(view.backend, backend):
        raise OtherTrainerError
    changes = await beside(OPERATOR, len(view.reports), partial(_changes, view, at_ms))
    if changes or _is_due(view.backend, backend):
        changes = await store.transact(lambda tx: _write(tx, backend, view.reports, sorted(changes)))
        _log_backend(view.backend, backend)
    jobs = {id: changes[id].after if id in changes else job for id, job in view.jobs.items()}
    orders = await beside(OPERATOR, len(jobs) + len(view.reports), partial(_all_wanted, jobs, view.reports))
    return Synced(orders, _entered(changes.values()), forgotten_caches)


async def read_state(store: Store) -> tuple[bool, Mapping[str, int]]:
    """Return whether the backend is there, and the number of unfinished jobs of each status."""
    async with store.read() as conn:
        backend = await backend_rows.find_backend(conn)
        counts = await job_rows.count_by_status(conn)
    is_up = backend is not None and backend.reason is None and now_ms() - backend.reported_at_ms <= REPORT_VALID_MS
    return is_up, {status: counts.get(status, 0) for status in sorted(job_rows.UNFINISHED)}


async def _view(conn: Connection, report: BackendReport) -> _View:
    jobs = {job.id: job for job in await job_rows.wanted_jobs(conn)}
    reports = {one.job_id: one for one in report.jobs}
    if reports.keys() - jobs.keys():
        jobs |= {job.id: job for job in await job_rows.find_jobs(conn, reports.keys() - jobs.keys())}
    if report.reason is None:
        # Of an ended job that the trainer has nothing of any more, no checkpoint is on its way.
        for job in await job_rows.syncing_ended_jobs(conn):
            jobs.setdefault(job.id, job)
            reports.setdefault(job.id, JobReport(job.id, job.attempt, Phase.ENDED))
    return _View(await backend_rows.find_backend(conn), jobs, reports)


def _changes(view: _View, at_ms: int) -> dict[str, _Change]:
    """The changes that the reports make, by job."""
    reports = [one for one in view.reports.values() if one.job_id in view.jobs]
    changes = {one.job_id: _changed(view.jobs[one.job_id], one, at_ms) for one in reports}
    return {id: change for id, change in changes.items() if change.after != change.before}


def _all_wanted(jobs: Mapping[str, JobRecord | None], reports: Mapping[str, JobReport]) -> tuple[WantedJob, ...]:
    orders = (_wanted(job) for job in jobs.values() if job is not None)
    strays = (_stray(jobs.get(one.job_id), one) for one in reports.values())
    return tuple(job for job in (*orders, *strays) if job is not None)


def _changed(job: JobRecord, report: JobReport, at_ms: int) -> _Change:
    if report.is_forgotten:
        return _Change(job, None if job.is_deleted else job)
    return _Change(job, job_states.reported(job, report, at_ms))


async def _write(
    tx: WriteTx, backend: BackendRecord, reports: Mapping[str, JobReport], ids: Iterable[str]
) -> dict[str, _Change]:
    """Write the backend, and what the reports change in these jobs now, in order of their ids: no two deadlock."""
    if not await backend_rows.put_backend(tx, backend, REPORT_VALID_MS):
        raise OtherTrainerError
    changes = dict[str, _Change]()
    for id in ids:
        job = await job_rows.lock_job(tx, id)
        if job is None:
            continue
        change = changes[id] = _changed(job, reports[id], tx.now_ms)
        if change.after is None:
            await job_rows.delete_job(tx, job)
        else:
            await job_rows.update_job(tx, job, change.after)
            await sessions.begin_due(tx, change.after)
    return changes


def _is_others(old: BackendRecord | None, new: BackendRecord) -> bool:
    """Return whether another trainer was heard of lately. A clock may have been set back."""
    return bool(old and old.trainer != new.trainer and abs(new.reported_at_ms - old.reported_at_ms) < REPORT_VALID_MS)


def _is_due(old: BackendRecord | None, new: BackendRecord) -> bool:
    if old is None or replace(old, reported_at_ms=new.reported_at_ms) != new:
        return True
    return abs(new.reported_at_ms - old.reported_at_ms) >= _WRITE_EVERY_MS


def _log_backend(old: BackendRecord | None, new: BackendRecord) -> None:
    if old is None or old.trainer != new.trainer:
        log.info("Trainer %s reports for the training backend %s.", new.trainer, new.backend)
    if new.reason is not None and (old is None or old.reason != new.reason):
        log.warning(
            "Training backend %s is away (%s); jobs stay as they are. Check the trainer's log and the backend.",
            new.backend,
            new.reason,
        )
    if new.reason is None and old is not None and old.reason is not None:
        log.info("Training backend %s is back.", new.backend)


def _entered(changes: Iterable[_Change]) -> tuple[str, ...]:
    ends = ((change.before.status, change.after.status) for change in changes if change.after is not None)
    return tuple(after for before, after in ends if before != after)


def _wanted(job: JobRecord) -> WantedJob | None:
    order = job_states.wanted(job)
    if order is None:
        return None
    return WantedJob(
        job_id=job.id,
        attempt=job.attempt,
        status=job.status,
        wish=order,
        priority=job.priority,
        availability_model=job.availability_model,
        node_count=job.node_count,
        resources=job.resources,
        created_at_ms=job.created_at_ms,
    )


def _stray(job: JobRecord | None, report: JobReport) -> WantedJob | None:
    """A job that runs, but has ended or is unknown here, as after a restore: stop it. Its checkpoints stay."""
    if report.phase not in _ALIVE or (job is not None and (job.status not in ENDED or job.is_deleted)):
        return None
    return WantedJob(
        job_id=report.job_id,
        attempt=report.attempt,
        status=STOPPED,
        wish=Wanted.STOP,
        priority=0,
        availability_model=DEDICATED,
        node_count=1,
        resources=NodeResources(0, 0),
        created_at_ms=0,
    )
