"""Queries on `requests`: add rows, the oldest out; pages, newest first, of bounded work; delete what is old.

A page reads one index range, or one per status. Where further filters thin it out, it looks at `MOST_SEEN` rows at
most.
"""

from collections.abc import Sequence
from functools import partial

import orjson
from sqlalchemy import ColumnElement, Select, TextClause, and_, delete, select, text, tuple_, update

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.traffic.request_tables import INDEXED, request_count, requests
from control.long_work import OPERATOR, beside
from control.records.traffic import RequestFilter, RequestPosition
from policy.listed_requests import ListedRequest

MOST_SEEN = 10_000
ROWS_AT_ONCE = 2_000
_ROWS_PER_ITEM = 10
"""The number of rows that are encoded in the time of one item of long work."""
_ORDER = (requests.c.timestamp_ms.desc(), requests.c.id.desc())
_COLUMNS = [requests.c[name] for name in ListedRequest._fields]


async def add_requests(tx: WriteTx, rows: Sequence[ListedRequest], most: int) -> None:
    """Add those that are new, and delete the oldest while there are more than `most`.

    Rows of workspaces that do not exist are ignored.
    """
    count = await _locked_count(tx)
    encoded = await beside(OPERATOR, len(rows) // _ROWS_PER_ITEM, partial(_encoded, rows))
    added = (await tx.conn.execute(_ADD[tx.conn.dialect.name], {"rows": encoded})).rowcount
    surplus = count + added - most
    deleted = await _delete_oldest(tx, min(surplus, len(rows) + ROWS_AT_ONCE)) if surplus > 0 else 0
    await _add_to_count(tx, added - deleted)


async def delete_requests(tx: WriteTx, before_ms: int, most: int, limit: int) -> int:
    """Delete at most `limit` rows that are older, or more than `most`; returns how many."""
    count = await _locked_count(tx)
    surplus = min(count - most, limit)
    deleted = await _delete_oldest(tx, surplus) if surplus > 0 else 0
    if deleted < limit:
        deleted += await _delete_oldest(tx, limit - deleted, requests.c.timestamp_ms < before_ms)
    await _add_to_count(tx, -deleted)
    return deleted


async def page_of_requests(
    conn: Connection, selection: RequestFilter, before: RequestPosition | None, limit: int
) -> tuple[list[ListedRequest], RequestPosition | None]:
    """Return at most `limit` rows behind `before`, newest first, and where the list goes on: None at its end."""
    equal = {name: value for name in INDEXED if (value := getattr(selection, name, None)) is not None}
    within = _within(selection, before)
    by_status = requests.c.status.between(*selection.statuses) if selection.statuses is not None else None
    if not equal and selection.statuses is not None:
        return await _page_by_status(conn, selection, within, limit)
    further = [requests.c[name] == value for name, value in list(equal.items())[1:]]
    further += [] if by_status is None else [by_status]
    indexed = [*within, *(requests.c[name] == value for name, value in list(equal.items())[:1])]
    floor = await _floor(conn, indexed) if further else None
    if floor is not None:
        indexed.append(tuple_(requests.c.timestamp_ms, requests.c.id) >= floor)
    rows = await _rows(conn, [*indexed, *further], limit + 1)
    if len(rows) > limit:
        return rows[:limit], _position(rows[limit - 1])
    return rows, floor


async def _page_by_status(
    conn: Connection, selection: RequestFilter, within: Sequence[ColumnElement[bool]], limit: int
) -> tuple[list[ListedRequest], RequestPosition | None]:
    """Merge the first rows of each status: an index is in the order of time for one alone."""
    assert selection.statuses is not None
    least, most = selection.statuses
    values = {"workspace": selection.workspace_id, "least": least, "most": most}
    statuses = (await conn.execute(_STATUSES, values)).scalars().all()
    rows: list[ListedRequest] = []
    for status in statuses:
        rows += await _rows(conn, [*within, requests.c.status == status], limit + 1)
        rows.sort(key=_position, reverse=True)
        del rows[limit + 1 :]
    return rows[:limit], _position(rows[limit - 1]) if len(rows) > limit else None


_STATUSES = text(
    "WITH RECURSIVE known(status) AS ("
    "SELECT MIN(status) FROM requests WHERE workspace_id = :workspace AND status >= :least AND status <= :most"
    " UNION ALL SELECT (SELECT MIN(r.status) FROM requests AS r WHERE r.workspace_id = :workspace"
    " AND r.status > known.status AND r.status <= :most) FROM known WHERE known.status IS NOT NULL)"
    " SELECT status FROM known WHERE status IS NOT NULL"
)
"""The statuses of a class that the workspace has, each by one step in the index."""


async def _floor(conn: Connection, where: Sequence[ColumnElement[bool]]) -> RequestPosition | None:
    """The position of the last row that a page looks at; None if the list ends before."""
    query = select(requests.c.timestamp_ms, requests.c.id).where(*where).order_by(*_ORDER)
    row = (await conn.execute(query.offset(MOST_SEEN - 1).limit(1))).first()
    return None if row is None else (row.timestamp_ms, row.id)


async def _rows(conn: Connection, where: Sequence[ColumnElement[bool]], limit: int) -> list[ListedRequest]:
    query = select(*_COLUMNS).where(*where).order_by(*_ORDER).limit(limit)
    return [ListedRequest._make(row) for row in await conn.execute(query)]


def _within(selection: RequestFilter, before: RequestPosition | None) -> list[ColumnElement[bool]]:
    table = requests.c
    where = [table.workspace_id == selection.workspace_id]
    if selection.start_ms is not None:
        where.append(table.timestamp_ms >= selection.start_ms)
    if selection.end_ms is not None:
        where.append(table.timestamp_ms < selection.end_ms)
    if before is not None:
        where.append(and_(table.timestamp_ms <= before[0], tuple_(table.timestamp_ms, table.id) < before))
    return where


def _position(row: ListedRequest) -> RequestPosition:
    return row.timestamp_ms, row.id


async def _locked_count(tx: WriteTx) -> int:
    """The number of rows, which nobody else changes until this transaction ends."""
    lock = update(request_count).values(value=request_count.c.value).returning(request_count.c.value)
    return int((await tx.conn.execute(lock)).scalar_one())


async def _add_to_count(tx: WriteTx, rows: int) -> None:
    await tx.conn.execute(update(request_count).values(value=request_count.c.value + rows))


async def _delete_oldest(tx: WriteTx, count: int, *where: ColumnElement[bool]) -> int:
    key = (requests.c.workspace_id, requests.c.timestamp_ms, requests.c.id)
    oldest: Select[tuple[str, int, int]] = select(*key).where(*where).order_by(requests.c.timestamp_ms).limit(count)
    return (await tx.conn.execute(delete(requests).where(tuple_(*key).in_(oldest)))).rowcount


def _encoded(rows: Sequence[ListedRequest]) -> str:
    return orjson.dumps([row.to_wire() for row in rows]).decode()


def _add(select_sql: str) -> TextClause:
    """Build a statement with one parameter for any number of rows."""
    names = ", ".join(ListedRequest._fields)
    return text(
        f"INSERT INTO requests ({names}) SELECT {names} FROM ({select_sql}) AS sent"  # noqa: S608 (ours)
        " WHERE EXISTS (SELECT 1 FROM workspaces WHERE workspaces.id = sent.workspace_id)"
        " ON CONFLICT (workspace_id, timestamp_ms, id) DO NOTHING"
    )


def _type_of(name: str) -> str:
    return "text" if requests.c[name].type.python_type is str else "bigint"


_EXTRACTED = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in ListedRequest._fields)
_TYPED = ", ".join(f"{name} {_type_of(name)}" for name in ListedRequest._fields)
_ADD = {
    "sqlite": _add(f"SELECT {_EXTRACTED} FROM json_each(:rows)"),  # noqa: S608 (ours)
    "postgresql": _add(f"SELECT * FROM json_to_recordset(CAST(:rows AS json)) AS r({_TYPED})"),  # noqa: S608 (ours)
}
