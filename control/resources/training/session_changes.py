"""Changes of a job's interactive sessions: when they begin, and how long they last.

See docs/reference/training.md#interactive-sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.edges.sql.store import Store, WriteTx
from control.edges.sql.training import job_rows, session_rows
from control.errors import InvalidFieldError
from control.records.audit import Change
from control.records.times import time_text
from control.records.training import JobRecord, JobRef, SessionRecord
from control.resources.changes.resource_paths import path_of
from control.resources.training import sessions
from control.resources.training.backends import present_backend
from control.resources.training.errors import (
    JobEndedError,
    NoSessionsError,
    SessionFixedError,
    SessionNotFoundError,
    StartupTriggerError,
    TrainingJobNotFoundError,
)
from control.resources.training.jobs import find_job
from policy.training.job_spec import ON_DEMAND, ON_FAILURE, ON_STARTUP, SessionSpec
from policy.training.statuses import ENDED, PLACED

MAX_MINUTES = 10_080
"""The most minutes that a session may last from now on."""
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class SessionChange:
    """The wishes for a job's sessions. None: as it is. `session_id`: of this one alone."""

    trigger: str | None
    timeout_minutes: int | None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChangedSessions:
    """The settings of a job's sessions after a change. `active`: those that the change was about."""

    settings: SessionSpec
    working_directory: str | None
    active: Sequence[SessionRecord]
    has_changed: bool


async def change_sessions(store: Store, ref: JobRef, change: SessionChange) -> ChangedSessions:
    """Change the sessions of a job that has not ended. SessionNotFoundError if it has no session of this id."""

    async def work(tx: WriteTx) -> ChangedSessions:
        job = await job_rows.lock_job(tx, (await find_job(tx.conn, ref)).record.id)
        if job is None or job.is_deleted:
            raise TrainingJobNotFoundError
        active = await _active(tx, job, change.session_id)
        if job.status in ENDED:
            raise JobEndedError
        if not (await present_backend(tx.conn, tx.now_ms)).has_sessions:
            raise NoSessionsError
        return await _apply(tx, job, change, active)

    return await store.transact(work)


async def _apply(tx: WriteTx, job: JobRecord, change: SessionChange, active: list[SessionRecord]) -> ChangedSessions:
    spec = await job_rows.get_spec(tx.conn, job.id)
    before = spec.session or SessionSpec(ON_DEMAND, sessions.DEFAULT_TIMEOUT_MINUTES)
    _check(job, before, change)
    extends = before.trigger == ON_STARTUP and bool(active)
    minutes = before.timeout_minutes if change.timeout_minutes is None or extends else change.timeout_minutes
    after = SessionSpec(change.trigger or before.trigger, minutes)
    changed = active if change.timeout_minutes is None else _lasting(active, change.timeout_minutes, extends, tx.now_ms)
    has_changed = after != before or changed != active
    if has_changed:
        await job_rows.update_spec(tx, job.id, replace(spec, session=after))
        for record in changed:
            await session_rows.update_session(tx, record)
        await sessions.begin_due(tx, job)
        states = (_shown(before, active), _shown(after, changed))
        place = f"{path_of(job)}/interactive_session"
        tx.audit(job.workspace_id, Change("training_job.update_sessions", place, *states))
    return ChangedSessions(after, spec.working_directory, changed, has_changed)


async def _active(tx: WriteTx, job: JobRecord, session_id: str | None) -> list[SessionRecord]:
    """The active sessions, or the one of this id. SessionNotFoundError."""
    records = [one for one in await session_rows.lock_attempt(tx, job.id, job.attempt) if one.ends_at_ms > tx.now_ms]
    active = records if job.status in PLACED else []
    if session_id is None:
        return active
    own = [record for record in active if record.id == session_id]
    if not own:
        raise SessionNotFoundError
    return own


def _check(job: JobRecord, before: SessionSpec, change: SessionChange) -> None:
    """Refuse what the nodes that run do not follow: their runners keep a failed node by what they began with."""
    is_other = change.trigger not in (None, before.trigger)
    if is_other and before.trigger == ON_STARTUP:
        raise StartupTriggerError
    has_other_time = change.timeout_minutes not in (None, before.timeout_minutes)
    is_of_failure = ON_FAILURE in (before.trigger, change.trigger)
    if job.status in PLACED and is_of_failure and (is_other or has_other_time):
        raise SessionFixedError


def _lasting(active: Sequence[SessionRecord], minutes: int, extends: bool, now_ms: int) -> list[SessionRecord]:
    """The sessions with so many minutes more, or from now on. InvalidFieldError if that is too long."""
    after = [
        replace(record, ends_at_ms=(record.ends_at_ms if extends else now_ms) + minutes * _MINUTE_MS)
        for record in active
    ]
    if any(record.ends_at_ms > now_ms + MAX_MINUTES * _MINUTE_MS for record in after):
        raise InvalidFieldError("timeout_minutes", f"the session would last longer than {MAX_MINUTES} minutes from now")
    return after


def _shown(session: SessionSpec, active: Sequence[SessionRecord]) -> dict[str, object]:
    ends = [time_text(record.ends_at_ms) for record in active]
    return {"trigger": session.trigger, "timeout_minutes": session.timeout_minutes, "active_until": ends}
