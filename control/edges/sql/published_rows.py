"""Queries on `published` and the revisions: pages of changes from one index range, and retention of tombstones."""

from dataclasses import dataclass

from sqlalchemy import delete, func, or_, select, text, true, tuple_, update

from control.edges.sql.spend.tables import older_spend_proxies
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import older_proxies, published, revision, revision_nonces


@dataclass(frozen=True, slots=True)
class PublishedState:
    """The database's epoch, its revision with nonce, and the floor: tombstones up to it were deleted."""

    epoch: str
    revision: int
    nonce: str
    floor: int


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of the snapshot. `body` is JSON text, or None for a tombstone."""

    revision: int
    kind: str
    id: str
    body: str | None


async def published_state(conn: Connection) -> PublishedState:
    """The newest revision that has a nonce.

    An older version of control that still runs beside this one writes revisions without a nonce. Their rows are sent
    again until a later revision has one.
    """
    newest = revision_nonces.c
    one_row = revision.join(revision_nonces, true())
    query = select(revision.c.epoch, newest.revision, newest.nonce, revision.c.floor).select_from(one_row)
    return PublishedState(*(await conn.execute(query.order_by(newest.revision.desc()).limit(1))).one())


async def nonce_of(conn: Connection, number: int) -> str | None:
    """The nonce of a revision; None if this database never had that revision or has dropped it."""
    query = select(revision_nonces.c.nonce).where(revision_nonces.c.revision == number)
    return (await conn.execute(query)).scalar_one_or_none()


def changes_query(after: tuple[int, str, str], tombstones_from: int, limit: int):  # type: ignore[no-untyped-def]  # a Select's type arguments say nothing here
    """Up to `limit` rows after `after`, by revision; tombstones only from revisions above `tombstones_from`."""
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
    """Delete tombstones older than `before_ms` and raise the floor: a reader below it must start over."""
    await _forget_nonces(tx, before_ms)
    old = (published.c.body.is_(None), published.c.published_at_ms < before_ms)
    newest = (await tx.conn.execute(select(func.max(published.c.revision)).where(*old))).scalar_one()
    if newest is None:
        return 0
    result = await tx.conn.execute(delete(published).where(*old))
    await tx.conn.execute(update(revision).where(revision.c.floor < newest).values(floor=newest))
    return result.rowcount


async def _forget_nonces(tx: WriteTx, before_ms: int) -> None:
    """Keeps the last revision before `before_ms`: it was current until its successor was written."""
    nonces = revision_nonces.c
    last = select(func.max(nonces.revision)).where(nonces.published_at_ms < before_ms).scalar_subquery()
    await tx.conn.execute(delete(revision_nonces).where(nonces.revision < last))


async def note_older_proxy(tx: WriteTx, limit_kinds: int) -> None:
    """Remember that a proxy asked for policy that knows only `limit_kinds` kinds of limits, fewer than this version."""
    await tx.conn.execute(_NOTE, {"limit_kinds": limit_kinds, "now_ms": tx.now_ms})


_NOTE = text(
    "INSERT INTO older_proxies (limit_kinds, asked_at_ms) VALUES (:limit_kinds, :now_ms)"
    " ON CONFLICT (limit_kinds) DO UPDATE SET asked_at_ms = excluded.asked_at_ms"
)


async def note_proxy_level(tx: WriteTx, level: int) -> None:
    """Remember that a proxy asked for policy whose level is below that of this version (`policy/spend/levels.py`)."""
    await tx.conn.execute(_NOTE_LEVEL, {"level": level, "now_ms": tx.now_ms})


_NOTE_LEVEL = text(
    "INSERT INTO older_spend_proxies (spend_level, asked_at_ms) VALUES (:level, :now_ms)"
    " ON CONFLICT (spend_level) DO UPDATE SET asked_at_ms = excluded.asked_at_ms"
)


async def lowest_proxy_level(conn: Connection, since_ms: int) -> int | None:
    """The level of the oldest proxy that has asked since then; None if no older one has."""
    levels = older_spend_proxies.c
    query = select(func.min(levels.spend_level)).where(levels.asked_at_ms >= since_ms)
    lowest: int | None = (await conn.execute(query)).scalar()
    return lowest


async def fewest_known_kinds(conn: Connection, since_ms: int) -> int | None:
    """The number of kinds that the oldest proxy knows which has asked since then; None if no older one has."""
    query = select(func.min(older_proxies.c.limit_kinds)).where(older_proxies.c.asked_at_ms >= since_ms)
    fewest: int | None = (await conn.execute(query)).scalar()
    return fewest
