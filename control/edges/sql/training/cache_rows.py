"""Queries on `training_caches`: one row for each project that has a cache, or had one until it was deleted."""

from typing import Any

import orjson
from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.tables import training_caches
from policy.training.caches import CacheEntry, CacheSummary

_caches = training_caches.c


async def put_cache(tx: WriteTx, project_id: str) -> None:
    """Note that the project has a cache from now on."""
    insert: Any = (sqlite if tx.conn.dialect.name == "sqlite" else postgresql).insert(training_caches)
    values = {"project_id": project_id, "is_deleted": False}
    await tx.conn.execute(insert.values(**values).on_conflict_do_nothing(index_elements=["project_id"]))


async def find_summary(conn: Connection, project_id: str) -> CacheSummary | None:
    """The last report of a project's cache; None if nothing was yet."""
    query = select(_caches.summarized_at_ms, _caches.entries)
    row = (await conn.execute(query.where(_caches.project_id == project_id))).one_or_none()
    if row is None or row.entries is None:
        return None
    return CacheSummary(project_id, row.summarized_at_ms, tuple(map(CacheEntry.from_wire, orjson.loads(row.entries))))


async def update_summary(tx: WriteTx, summary: CacheSummary) -> None:
    """Keep a summary, unless a later one is there. Of a cache that control does not know nothing is kept."""
    text = orjson.dumps([entry.to_wire() for entry in summary.entries]).decode()
    statement = update(training_caches).where(_caches.project_id == summary.project_id, ~_caches.is_deleted)
    await tx.conn.execute(statement.values(summarized_at_ms=summary.at_ms, entries=text))


async def mark_deleted(tx: WriteTx, project_id: str) -> None:
    """Have the trainer remove the cache of a deleted project."""
    statement = update(training_caches).where(_caches.project_id == project_id)
    await tx.conn.execute(statement.values(is_deleted=True, entries=None))


async def deleted_caches(conn: Connection) -> tuple[str, ...]:
    """The projects whose caches are to be removed."""
    query = select(_caches.project_id).where(_caches.is_deleted).order_by(_caches.project_id)
    return tuple((await conn.execute(query)).scalars())


async def delete_cache(tx: WriteTx, project_id: str) -> None:
    """Forget a cache that the trainer has removed."""
    await tx.conn.execute(delete(training_caches).where(_caches.project_id == project_id, _caches.is_deleted))
