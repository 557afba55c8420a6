"""Queries on `published` and the revisions: pages of changes by one indexed range, and the tombstones' retention."""

from dataclasses import dataclass

from sqlalchemy import delete, func, or_, select, true, tuple_, update

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import published, revision, revision_nonces


@dataclass(frozen=True, slots=True)
class Standing:
    """The epoch of this database, its revision and that one's nonce, and up to where tombstones are forgotten."""

    epoch: str
    revision: int
    nonce: str
    floor: int


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of the snapshot; `body` is JSON text, None for a tombstone."""

    revision: int
    kind: str
    id: str
    body: str | None


async def standing(conn: Connection) -> Standing:
    """The newest revision that has a nonce. While an older version of control still runs beside this one, it writes
    later ones without: their rows are sent again until one has."""
    newest = revision_nonces.c
    one_row = revision.join(revision_nonces, true())
    query = select(revision.c.epoch, newest.revision, newest.nonce, revision.c.floor).select_from(one_row)
    return Standing(*(await conn.execute(query.order_by(newest.revision.desc()).limit(1))).one())


async def nonce_of(conn: Connection, number: int) -> str | None:
    """The nonce of a revision; None where this database's history has no such revision, or no longer knows it."""
    query = select(revision_nonces.c.nonce).where(revision_nonces.c.revision == number)
    return (await conn.execute(query)).scalar_one_or_none()


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
    await _forget_nonces(tx, before_ms)
    old = (published.c.body.is_(None), published.c.published_at_ms < before_ms)
    newest = (await tx.conn.execute(select(func.max(published.c.revision)).where(*old))).scalar_one()
    if newest is None:
        return 0
    gone = await tx.conn.execute(delete(published).where(*old))
    await tx.conn.execute(update(revision).where(revision.c.floor < newest).values(floor=newest))
    return gone.rowcount


async def _forget_nonces(tx: WriteTx, before_ms: int) -> None:
    """Of the revisions from before, the last one stays: it was current until its successor came."""
    known = revision_nonces.c
    last = select(func.max(known.revision)).where(known.published_at_ms < before_ms).scalar_subquery()
    await tx.conn.execute(delete(revision_nonces).where(known.revision < last))
