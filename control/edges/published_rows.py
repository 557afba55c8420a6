"""Queries on `published` and `revision`: pages of changes by one indexed range, and the tombstones' retention."""

from dataclasses import dataclass

from sqlalchemy import delete, func, or_, select, tuple_, update

from control.edges.store import Connection, WriteTx
from control.edges.tables import published, revision


@dataclass(frozen=True, slots=True)
class Standing:
    """The epoch of this database, its revision, and up to where tombstones are forgotten."""

    epoch: str
    revision: int
    floor: int


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of the snapshot; `body` is JSON text, None for a tombstone."""

    revision: int
    kind: str
    id: str
    body: str | None


async def standing(conn: Connection) -> Standing:
    row = (await conn.execute(select(revision.c.epoch, revision.c.value, revision.c.floor))).one()
    return Standing(*row)


def changes_query(after: tuple[int, str, str], tombstones_from: int, limit: int):  # type: ignore[no-untyped-def]  # a Select's type arguments say nothing here
    """Up to `limit` rows behind `after`, in order of revision; tombstones only of later revisions than given."""
    order = (published.c.revision, published.c.kind, published.c.id)
    query = select(*order, published.c.body).where(tuple_(*order) > after)
    if tombstones_from:
        query = query.where(or_(published.c.body.is_not(None), published.c.revision > tombstones_from))
    return query.order_by(*order).limit(limit)


async def changes(
    conn: Connection, after: tuple[int, str, str], tombstones_from: int, limit: int
) -> list[PublishedRow]:
    return [PublishedRow(*row) for row in await conn.execute(changes_query(after, tombstones_from, limit))]


async def forget_tombstones(tx: WriteTx, before_ms: int) -> int:
    """Delete tombstones older than that and remember up to where: a reader from before must start over."""
    old = (published.c.body.is_(None), published.c.published_at_ms < before_ms)
    newest = (await tx.conn.execute(select(func.max(published.c.revision)).where(*old))).scalar_one()
    if newest is None:
        return 0
    gone = await tx.conn.execute(delete(published).where(*old))
    await tx.conn.execute(update(revision).where(revision.c.floor < newest).values(floor=newest))
    return gone.rowcount
