"""Queries on `console_sessions`. A session is not found if its key was revoked, has expired or is disabled."""

from sqlalchemy import delete, insert, select, update

from control.edges.sql.key_rows import PRESENTED, is_usable, presented_key
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import api_keys, console_sessions, workspaces
from control.records.console import KeyOfSession, SessionRecord

_sessions = console_sessions.c
_COLUMNS = tuple(_sessions[name] for name in SessionRecord.__dataclass_fields__)
_OF_KEYS = tuple(column for column in _COLUMNS if column.name not in ("person", "workspace_id", "role"))
"""The columns of a session that a key began; the key itself has columns of the other names."""


async def find_active(conn: Connection, digest: str, now_ms: int) -> tuple[SessionRecord, KeyOfSession] | None:
    query = (
        select(*_OF_KEYS, *PRESENTED, api_keys.c.name, api_keys.c.group_id)
        .join_from(console_sessions, api_keys, api_keys.c.digest == _sessions.key_digest)
        .join(workspaces, workspaces.c.id == api_keys.c.workspace_id)
        .where(_sessions.digest == digest, _sessions.expires_at_ms > now_ms, *is_usable(now_ms))
    )
    row = (await conn.execute(query)).one_or_none()
    if row is None:
        return None
    record = row[: len(_OF_KEYS)]
    key = KeyOfSession(presented_key(row), row.name, row.group_id)
    return SessionRecord(*record), key


async def find_of_person(conn: Connection, digest: str, now_ms: int) -> SessionRecord | None:
    """The session of a person, whatever the settings allow by now."""
    query = select(*_COLUMNS).where(
        _sessions.digest == digest, _sessions.expires_at_ms > now_ms, _sessions.person.is_not(None)
    )
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else SessionRecord(*row)


async def choose_workspace(tx: WriteTx, digest: str, workspace_id: str, role: str) -> None:
    values = {"workspace_id": workspace_id, "role": role}
    await tx.conn.execute(update(console_sessions).where(_sessions.digest == digest).values(values))


async def insert_session(tx: WriteTx, record: SessionRecord) -> None:
    values = {name: getattr(record, name) for name in SessionRecord.__dataclass_fields__}
    await tx.conn.execute(insert(console_sessions).values(values))


async def delete_session(tx: WriteTx, digest: str) -> None:
    await tx.conn.execute(delete(console_sessions).where(_sessions.digest == digest))


async def keep_newest(tx: WriteTx, key_digest: str, count: int) -> None:
    """Delete the sessions of a key but the newest `count`."""
    of_key = _sessions.key_digest == key_digest
    newest = select(_sessions.digest).where(of_key).order_by(_sessions.created_at_ms.desc(), _sessions.digest)
    await tx.conn.execute(delete(console_sessions).where(of_key, _sessions.digest.not_in(newest.limit(count))))


async def delete_expired(tx: WriteTx, before_ms: int, limit: int) -> int:
    """Delete at most `limit` sessions that ended before that time. Returns their number."""
    ended = select(_sessions.digest).where(_sessions.expires_at_ms <= before_ms).limit(limit)
    return (await tx.conn.execute(delete(console_sessions).where(_sessions.digest.in_(ended)))).rowcount
