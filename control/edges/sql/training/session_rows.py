"""Queries on `training_sessions`: one row per node of an attempt that has, or had, an interactive session.

A session is active while its attempt is the job's present one, the backend has it, and its time is not over.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, insert, select, update

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import training_jobs, training_sessions
from control.records.training import SessionRecord
from policy.training.statuses import PLACED

_sessions = training_sessions.c
_jobs = training_jobs.c
_COLUMNS = tuple(_sessions[name] for name in SessionRecord.__dataclass_fields__)


async def find_active(conn: Connection, session_id: str, now_ms: int) -> SessionRecord | None:
    row = (await conn.execute(_active(now_ms, _sessions.id == session_id))).one_or_none()
    return SessionRecord(*row) if row else None


async def lock_active(tx: WriteTx, session_id: str) -> SessionRecord | None:
    """The same, locked against other changes."""
    query = _active(tx.now_ms, _sessions.id == session_id).with_for_update(of=training_sessions)
    row = (await tx.conn.execute(query)).one_or_none()
    return SessionRecord(*row) if row else None


async def list_active(conn: Connection, job_id: str, now_ms: int) -> Sequence[SessionRecord]:
    """The job's active sessions, by rank."""
    query = _active(now_ms, _sessions.job_id == job_id).order_by(_sessions.rank)
    return [SessionRecord(*row) for row in await conn.execute(query)]


async def lock_attempt(tx: WriteTx, job_id: str, attempt: int) -> Sequence[SessionRecord]:
    """All sessions of an attempt, active or not, by rank. The caller has locked the job."""
    query = select(*_COLUMNS).where(_sessions.job_id == job_id, _sessions.attempt == attempt).order_by(_sessions.rank)
    return [SessionRecord(*row) for row in await tx.conn.execute(query.with_for_update())]


async def insert_sessions(tx: WriteTx, records: Sequence[SessionRecord]) -> None:
    if records:
        await tx.conn.execute(insert(training_sessions), [_values(record) for record in records])


async def update_session(tx: WriteTx, record: SessionRecord) -> None:
    await tx.conn.execute(update(training_sessions).where(_sessions.id == record.id).values(_values(record)))


async def delete_session(tx: WriteTx, session_id: str) -> None:
    await tx.conn.execute(delete(training_sessions).where(_sessions.id == session_id))


def _active(now_ms: int, which: ColumnElement[bool]) -> Select[Any]:
    query = select(*_COLUMNS).join_from(training_sessions, training_jobs, _jobs.id == _sessions.job_id)
    is_present = (_jobs.attempt == _sessions.attempt, _jobs.status.in_(sorted(PLACED)), ~_jobs.is_deleted)
    return query.where(which, *is_present, _sessions.ends_at_ms > now_ms)


def _values(record: SessionRecord) -> Mapping[str, Any]:
    return {name: getattr(record, name) for name in SessionRecord.__dataclass_fields__}
