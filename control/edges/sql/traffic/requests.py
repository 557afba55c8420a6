"""Queries on `requests`: add rows, the oldest out; pages, newest first, of bounded work; delete what is old.

A page reads one index range, or one per status. Where further filters thin it out, it looks at `MOST_SEEN` rows at
most.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, delete, select, text, tuple_, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import workspaces
from control.edges.sql.traffic.request_tables import INDEXED, request_count, requests
from control.long_work import OPERATOR, beside
from control.records.traffic import RequestFilter, RequestPosition
from policy.traffic import ListedRequest

MOST_SEEN = 10_000
ROWS_AT_ONCE = 2_000
_ROWS_PER_ITEM = 10
"""The number of rows that are encoded in the time of one item of long work."""
Where = dict[str, dict[str, Any]]
"""Conditions that hold together, and the parameters of each."""
_NAMES = ", ".join(ListedRequest._fields)


async def add_requests(tx: WriteTx, rows: Sequence[ListedRequest], most: int) -> None:
    """Add those that are new, and delete the oldest while there are more than `most`.

    Rows of workspaces that do not exist are ignored.
    """
    count = await _locked_count(tx)
    query = select(workspaces.c.id).where(one_of(workspaces.c.id, {row.workspace_id for row in rows}))
    ids = set((await tx.conn.execute(query)).scalars())
    own = [row for row in rows if row.workspace_id in ids]
    added = await _INSERTS[tx.conn.dialect.name](tx.conn, own) if own else 0
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
    equal = [name for name in INDEXED if getattr(selection, name, None) is not None]
    within = _within(selection, before)
    if not equal and selection.statuses is not None:
        return await _page_by_status(conn, selection, within, limit)
    conditions = [{f"{name} = :{name}": {name: getattr(selection, name)}} for name in equal]
    if selection.statuses is not None:
        least, most = selection.statuses
        conditions.append({"status BETWEEN :least AND :most": {"least": least, "most": most}})
    indexed = equal[0] if equal else None
    where = {**within, **conditions[0]} if conditions else within
    further: Where = {}
    for condition in conditions[1:]:
        further |= condition
    if further:
        return await _sparse_page(conn, _newest_first(conn, indexed, where), further, limit)
    rows = await _rows(conn, indexed, where, limit + 1)
    return rows[:limit], _position(rows[limit - 1]) if len(rows) > limit else None


async def _sparse_page(
    conn: Connection, newest_first: tuple[str, dict[str, Any]], further: Where, limit: int
) -> tuple[list[ListedRequest], RequestPosition | None]:
    """The page of those of the newest `MOST_SEEN` rows that meet further conditions, in one pass.

    The last row that is looked at comes along, whether it meets them or not: there the list goes on.
    """
    statement, values = newest_first
    values |= _values_of(further) | {"limit": MOST_SEEN, "most_seen": MOST_SEEN, "most_shown": limit + 1}
    order = "timestamp_ms DESC, id DESC"
    numbered = (
        f"SELECT {_NAMES}, ROW_NUMBER() OVER (ORDER BY {order}) AS place,"  # noqa: S608 (ours)
        f" CASE WHEN {' AND '.join(further)} THEN 1 ELSE 0 END AS meets FROM ({statement}) AS newest"
    )
    page = (
        f"SELECT meets, place, {_NAMES} FROM ({numbered}) AS seen WHERE meets = 1 OR place = :most_seen"  # noqa: S608 (ours)
        f" ORDER BY {order} LIMIT :most_shown"
    )
    all_of_them = (await conn.execute(text(page), values)).all()
    rows = [ListedRequest._make(row[2:]) for row in all_of_them if row.meets]
    if len(rows) > limit:
        return rows[:limit], _position(rows[limit - 1])
    is_cut = bool(all_of_them) and all_of_them[-1].place == MOST_SEEN
    return rows, (all_of_them[-1].timestamp_ms, all_of_them[-1].id) if is_cut else None


async def _page_by_status(
    conn: Connection, selection: RequestFilter, within: Where, limit: int
) -> tuple[list[ListedRequest], RequestPosition | None]:
    """Merge the first rows of each status: an index is in the order of time for one alone."""
    assert selection.statuses is not None
    least, most = selection.statuses
    values = {"workspace": selection.workspace_id, "least": least, "most": most}
    statuses = (await conn.execute(_STATUSES, values)).scalars().all()
    rows: list[ListedRequest] = []
    for status in statuses:
        rows += await _rows(conn, "status", within | {"status = :status": {"status": status}}, limit + 1)
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


async def _rows(conn: Connection, indexed: str | None, where: Where, limit: int) -> list[ListedRequest]:
    statement, values = _newest_first(conn, indexed, where)
    rows = await conn.execute(text(statement), values | {"limit": limit})
    return [ListedRequest._make(row) for row in rows]


def _newest_first(conn: Connection, indexed: str | None, where: Where) -> tuple[str, dict[str, Any]]:
    """The statement, and its parameters but for the limit. `indexed`: the column whose index it reads.

    SQLite is told: it would read all of the workspace, because it guesses that those rows are few.
    """
    hint = f" INDEXED BY ix_requests_{indexed}" if indexed is not None and conn.dialect.name == "sqlite" else ""
    statement = (
        f"SELECT {_NAMES} FROM requests{hint} WHERE {' AND '.join(where)}"  # noqa: S608 (ours)
        " ORDER BY timestamp_ms DESC, id DESC LIMIT :limit"
    )
    return statement, _values_of(where)


def _values_of(where: Where) -> dict[str, Any]:
    return {name: value for parameters in where.values() for name, value in parameters.items()}


def _within(selection: RequestFilter, before: RequestPosition | None) -> Where:
    where: Where = {"workspace_id = :workspace": {"workspace": selection.workspace_id}}
    if selection.start_ms is not None:
        where["timestamp_ms >= :start_ms"] = {"start_ms": selection.start_ms}
    if selection.end_ms is not None:
        where["timestamp_ms < :end_ms"] = {"end_ms": selection.end_ms}
    if before is not None:
        where["(timestamp_ms, id) < (:before_ms, :before_id)"] = {"before_ms": before[0], "before_id": before[1]}
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


async def _insert_in_sqlite(conn: Connection, rows: Sequence[ListedRequest]) -> int:
    """Insert those that are new; returns how many. Binding values costs less than SQLite's JSON."""
    return (await conn.exec_driver_sql(_INSERT_ROW, [tuple(row) for row in rows])).rowcount


async def _insert_in_postgresql(conn: Connection, rows: Sequence[ListedRequest]) -> int:
    """The same, with one parameter for any number of rows."""
    encoded = await beside(OPERATOR, len(rows) // _ROWS_PER_ITEM, partial(_encoded, rows))
    return (await conn.execute(_INSERT_OBJECTS, {"rows": encoded})).rowcount


def _encoded(rows: Sequence[ListedRequest]) -> str:
    return orjson.dumps([row.to_wire() for row in rows]).decode()


def _type_of(name: str) -> str:
    return "text" if requests.c[name].type.python_type is str else "bigint"


_ONCE = "ON CONFLICT (workspace_id, timestamp_ms, id) DO NOTHING"
_PLACES = ", ".join("?" * len(ListedRequest._fields))
_INSERT_ROW = f"INSERT INTO requests ({_NAMES}) VALUES ({_PLACES}) {_ONCE}"  # noqa: S608 (ours)
_TYPED = ", ".join(f"{name} {_type_of(name)}" for name in ListedRequest._fields)
_INSERT_OBJECTS = text(
    f"INSERT INTO requests ({_NAMES}) SELECT {_NAMES}"  # noqa: S608 (ours)
    f" FROM json_to_recordset(CAST(:rows AS json)) AS r({_TYPED}) {_ONCE}"
)
_INSERTS = {"sqlite": _insert_in_sqlite, "postgresql": _insert_in_postgresql}
