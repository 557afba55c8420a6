"""Interactive sessions: when a node has one, the codes that open it, and the cookies of those who did.

A code is spent once; the cookie that it buys opens shells until the session ends, or until a newer code is spent. A
session's id is as long as a key, so nobody finds a session by guessing; five wrong codes void the code.

See docs/reference/training.md#interactive-sessions.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from control.edges.sql.store import Store, WriteTx, now_ms
from control.edges.sql.training import job_rows, session_rows
from control.records.audit import Change
from control.records.ids import new_nonce
from control.records.training import JobRecord, JobRef, SessionRecord
from control.resources.changes.resource_paths import path_of
from control.resources.training.backends import present_backend
from control.resources.training.errors import JobNotRunningError, NoSessionsError, TrainingJobNotFoundError
from control.resources.training.jobs import find_job
from policy.sealing import SealedWithUnknownKeyError, seal, unseal
from policy.training.job_spec import ON_FAILURE, ON_STARTUP
from policy.training.statuses import RUNNING

CODE_VALID_MS = 15 * 60 * 1000
MAX_WRONG_CODES = 5
DEFAULT_TIMEOUT_MINUTES = 60
"""The timeout of a session that is asked for where the job's configuration names none."""
_MINUTE_MS = 60_000
_ID = re.compile("session_[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class AuthCode:
    """The code that opens a session now. `working_directory`: relative to the job's own directory."""

    session: SessionRecord
    code: str = field(repr=False)
    working_directory: str | None


class Refusal(Enum):
    """The reason why a code opens nothing."""

    OVER = "OVER"
    """No such session, or not any more."""
    WRONG = "WRONG"
    VOID = "VOID"
    """No code to compare with: it was spent, it expired, or five wrong ones voided it."""


# --- when a session begins ----------------------------------------------------------------------------------------


async def begin_due(tx: WriteTx, job: JobRecord) -> None:
    """Begin the sessions of a running job whose trigger has occurred. Call it with each change of a job, after it.

    Idempotent. `on_startup`: the job runs. `on_failure`: it runs and has failed, its nodes are kept.
    """
    if job.status != RUNNING or job.is_deleted:
        return
    session = (await job_rows.get_spec(tx.conn, job.id)).session
    is_due = session is not None and (
        session.trigger == ON_STARTUP or (session.trigger == ON_FAILURE and job.error_message is not None)
    )
    if session is not None and is_due:
        ranks = {record.rank for record in await session_rows.lock_attempt(tx, job.id, job.attempt)}
        await _begin(tx, job, [rank for rank in range(job.node_count) if rank not in ranks], session.timeout_minutes)


async def begin_on_demand(store: Store, ref: JobRef) -> None:
    """Begin a session on each node of a running job, or start the timeout of those that it has anew."""

    async def work(tx: WriteTx) -> None:
        job = await job_rows.lock_job(tx, (await find_job(tx.conn, ref)).record.id)
        if not (await present_backend(tx.conn, tx.now_ms)).has_sessions:
            raise NoSessionsError
        if job is None or job.status != RUNNING:
            raise JobNotRunningError
        session = (await job_rows.get_spec(tx.conn, job.id)).session
        minutes = session.timeout_minutes if session else DEFAULT_TIMEOUT_MINUTES
        await _renew(tx, job, minutes)
        place = f"{path_of(job)}/interactive_session"
        tx.audit(ref.workspace_id, Change("training_job.begin_sessions", place, None, {"timeout_minutes": minutes}))

    await store.transact(work)


async def _renew(tx: WriteTx, job: JobRecord, timeout_minutes: int) -> None:
    """A session that is over gets a successor with another id: its code and cookie open nothing any more."""
    ends_at_ms = tx.now_ms + timeout_minutes * _MINUTE_MS
    active = set()
    for record in await session_rows.lock_attempt(tx, job.id, job.attempt):
        if record.ends_at_ms > tx.now_ms:
            active.add(record.rank)
            await session_rows.update_session(tx, replace(record, ends_at_ms=max(record.ends_at_ms, ends_at_ms)))
        else:
            await session_rows.delete_session(tx, record.id)
    await _begin(tx, job, [rank for rank in range(job.node_count) if rank not in active], timeout_minutes)


async def _begin(tx: WriteTx, job: JobRecord, ranks: Sequence[int], timeout_minutes: int) -> None:
    records = [
        SessionRecord(
            id=f"session_{secrets.token_hex(16)}",
            job_id=job.id,
            attempt=job.attempt,
            rank=rank,
            code=None,
            code_generated_at_ms=None,
            code_expires_at_ms=None,
            wrong_codes=0,
            cookie_digest=None,
            created_at_ms=tx.now_ms,
            ends_at_ms=tx.now_ms + timeout_minutes * _MINUTE_MS,
        )
        for rank in ranks
    ]
    await session_rows.insert_sessions(tx, records)


# --- codes --------------------------------------------------------------------------------------------------------


async def read_auth_codes(store: Store, keys: Sequence[bytes], ref: JobRef) -> Sequence[AuthCode]:
    """The code of each active session of a job, by rank. Those that opened, expired or were voided are replaced."""
    async with store.read() as conn:
        job = (await find_job(conn, ref)).record
        records = await session_rows.list_active(conn, job.id, now_ms())
        directory = (await job_rows.get_spec(conn, job.id)).working_directory if records else None
    pairs = [(record, _code_of(keys, record, now_ms())) for record in records]
    if any(code is None for _, code in pairs):
        pairs = await _with_codes(store, keys, [record.id for record in records])
    return [AuthCode(record, code, directory) for record, code in pairs if code is not None]


async def _with_codes(
    store: Store, keys: Sequence[bytes], session_ids: Sequence[str]
) -> list[tuple[SessionRecord, str | None]]:
    """Return these sessions with a code each, without those that ended meanwhile."""

    async def work(tx: WriteTx) -> list[tuple[SessionRecord, str | None]]:
        pairs: list[tuple[SessionRecord, str | None]] = []
        for id in sorted(session_ids):  # in one order, so that two processes cannot deadlock
            record = await session_rows.lock_active(tx, id)
            if record is not None:
                pairs.append(await _with_code(tx, keys, record))
        return sorted(pairs, key=lambda pair: pair[0].rank)

    return await store.transact(work)


async def _with_code(tx: WriteTx, keys: Sequence[bytes], record: SessionRecord) -> tuple[SessionRecord, str]:
    code = _code_of(keys, record, tx.now_ms)
    if code is not None:
        return record, code
    digits = secrets.token_hex(4).upper()
    code = f"{digits[:4]}-{digits[4:]}"
    after = replace(
        record,
        code=seal(keys, record.id, code, new_nonce()),
        code_generated_at_ms=tx.now_ms,
        code_expires_at_ms=tx.now_ms + CODE_VALID_MS,
        wrong_codes=0,
    )
    await session_rows.update_session(tx, after)
    return after, code


def _code_of(keys: Sequence[bytes], record: SessionRecord, at_ms: int) -> str | None:
    """The code that opens the session at this time; None if it needs a new one."""
    if record.code is None or (record.code_expires_at_ms or 0) <= at_ms:
        return None
    try:
        return unseal(keys, record.id, record.code)
    except SealedWithUnknownKeyError:
        return None


async def spend_code(store: Store, keys: Sequence[bytes], session_id: str, typed: str) -> str | Refusal:
    """Return a new cookie to the browser that typed the session's code. Spends the code, or counts the wrong one."""
    session = await find_session(store, session_id)
    if session is None or session.code is None:  # guessing on costs no write
        return Refusal.OVER if session is None else Refusal.VOID

    async def work(tx: WriteTx) -> str | Refusal:
        record = await session_rows.lock_active(tx, session_id)
        if record is None:
            return Refusal.OVER
        code = _code_of(keys, record, tx.now_ms)
        if code is None:
            return Refusal.VOID
        if not hmac.compare_digest(_plain(typed), _plain(code)):
            return await _count_wrong(tx, record)
        cookie = secrets.token_hex(32)
        await session_rows.update_session(tx, replace(record, code=None, cookie_digest=_digest(cookie)))
        return cookie

    return await store.transact(work)


async def _count_wrong(tx: WriteTx, record: SessionRecord) -> Refusal:
    wrong = record.wrong_codes + 1
    is_void = wrong >= MAX_WRONG_CODES
    await session_rows.update_session(tx, replace(record, wrong_codes=wrong, code=None if is_void else record.code))
    return Refusal.VOID if is_void else Refusal.WRONG


# --- who may have a shell -----------------------------------------------------------------------------------------


async def find_session(store: Store, session_id: str) -> SessionRecord | None:
    """The session, if it is active. Any text may be asked for."""
    if not _ID.fullmatch(session_id):
        return None
    async with store.read() as conn:
        return await session_rows.find_active(conn, session_id, now_ms())


async def owner_of(store: Store, session: SessionRecord) -> str:
    """The workspace of its job. NotFoundError if that is gone."""
    async with store.read() as conn:
        job = await job_rows.find_job_anywhere(conn, session.job_id)
    if job is None:
        raise TrainingJobNotFoundError
    return job.workspace_id


def is_opened_by(session: SessionRecord, cookie: str) -> bool:
    """Return whether this cookie was given out for the code that was spent last."""
    return session.cookie_digest is not None and hmac.compare_digest(session.cookie_digest, _digest(cookie))


def _plain(code: str) -> bytes:
    """Return the form in which codes are compared: without case, hyphens and spaces, as a digest of fixed length."""
    typed = "".join(code.split()).replace("-", "").upper()
    return hashlib.sha256(typed.encode("utf-8", "surrogateescape")).digest()


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).hexdigest()
