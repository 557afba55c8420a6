"""Queries on logs: insert and count lines, read those that match, find and delete what is beyond the bounds.

`LogTable` says whose log it is: a deployment's or a training job's. A line's place is (timestamp, id): lines of one
timestamp stay in the order in which they arrived.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Integer, Table, and_, delete, exists, false, func, literal, or_, select, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import deployment_logs, deployments
from control.edges.sql.training.tables import training_jobs, training_logs
from control.records.logs import NS_PER_MS, LogFilter, LogLine
from control.records.times import Millisecond

_MOST_NS = 2**63 - 1
"""The largest number that a column holds."""
Place = tuple[int, int]
"""(timestamp in nanoseconds, id) of a line."""
_COLUMNS = ("timestamp_ns", "level", "message", "replica", "request_id")


@dataclass(frozen=True, slots=True)
class LogTable:
    """The logs of one kind of owner. `owner`: the name of the column with the owner's id."""

    lines: Table
    owner: str
    owners: Table

    @property
    def owner_id(self) -> ColumnElement[str]:
        return self.lines.c[self.owner]


OF_DEPLOYMENTS = LogTable(deployment_logs, "deployment_id", deployments)
OF_TRAINING_JOBS = LogTable(training_logs, "job_id", training_jobs)


class _Position(FunctionElement[int]):
    """The place of a text in another, counted from 1; 0 if it is not there. Compares exactly: no wildcards, no case."""

    inherit_cache = True
    type = Integer()


@compiles(_Position, "sqlite")
def _position_in_sqlite(position: _Position, compiler: SQLCompiler, **options: Any) -> str:
    return f"instr({compiler.process(position.clauses, **options)})"


@compiles(_Position, "postgresql")
def _position_in_postgresql(position: _Position, compiler: SQLCompiler, **options: Any) -> str:
    return f"strpos({compiler.process(position.clauses, **options)})"


class _Bytes(FunctionElement[int]):
    """The length of a text in bytes of UTF-8."""

    inherit_cache = True
    type = Integer()


@compiles(_Bytes, "sqlite")
def _bytes_in_sqlite(size: _Bytes, compiler: SQLCompiler, **options: Any) -> str:
    return f"length(CAST({compiler.process(size.clauses, **options)} AS BLOB))"


@compiles(_Bytes, "postgresql")
def _bytes_in_postgresql(size: _Bytes, compiler: SQLCompiler, **options: Any) -> str:
    return f"octet_length({compiler.process(size.clauses, **options)})"


# --- insert ----------------------------------------------------------------------------------------------------------


async def lock_owners(tx: WriteTx, log: LogTable, ids: Collection[str]) -> frozenset[str]:
    """Return the owners that exist, of these. No other transaction inserts lines of them until this one ends."""
    owner_id = log.owners.c.id
    query = select(owner_id).where(one_of(owner_id, ids)).order_by(owner_id).with_for_update(key_share=True)
    return frozenset((await tx.conn.execute(query)).scalars())


async def count_lines(
    conn: Connection, log: LogTable, milliseconds: Collection[Millisecond], replica: str | None = None
) -> dict[Millisecond, int]:
    """The number of lines in each of these milliseconds, of one replica or of all. One index range each."""
    value, source, _ = _SOURCES[conn.dialect.name]
    owner = value.format(place=0, type="text")
    start_ns = value.format(place=1, type="bigint")
    line = log.lines.name
    query = (
        f"SELECT {owner}, {start_ns}, (SELECT count(*) FROM {line} WHERE {line}.{log.owner} = {owner}"  # noqa: S608
        f" AND {line}.timestamp_ns >= {start_ns} AND {line}.timestamp_ns < {start_ns} + {NS_PER_MS}"
        f"{'' if replica is None else f' AND {line}.replica = :replica'}) FROM {source}"
    )
    rows = orjson.dumps([(id, ms * NS_PER_MS) for id, ms in milliseconds]).decode()
    values = {"rows": rows} | ({} if replica is None else {"replica": replica})
    return {(id, at_ns // NS_PER_MS): lines for id, at_ns, lines in await conn.execute(text(query), values)}


async def insert_lines(tx: WriteTx, log: LogTable, lines: Sequence[tuple[str, LogLine]]) -> None:
    """Insert (owner's id, line) in this order."""
    rows = [[id, *(getattr(line, name) for name in _COLUMNS)] for id, line in lines]
    insert = _insert_text(log, *_SOURCES[tx.conn.dialect.name])
    await tx.conn.execute(text(insert), {"rows": orjson.dumps(rows).decode()})


def _insert_text(log: LogTable, value: str, source: str, order: str) -> str:
    """Build a statement with one parameter for any number of rows: binding each value costs more than the insert."""
    types = ("text", "bigint", "text", "text", "text", "text")
    values = [value.format(place=place, type=type) for place, type in enumerate(types)]
    return (
        f"INSERT INTO {log.lines.name} ({', '.join((log.owner, *_COLUMNS))})"  # noqa: S608
        f" SELECT {', '.join(values)} FROM {source} ORDER BY {order}"
    )


_SOURCES = {
    "sqlite": ("json_extract(r.value, '$[{place}]')", "json_each(:rows) AS r", "r.key"),
    "postgresql": (
        "CAST(r.value ->> {place} AS {type})",
        "json_array_elements(CAST(:rows AS json)) WITH ORDINALITY AS r (value, place)",
        "r.place",
    ),
}
"""The form of values in a row, the source of rows, and the order of rows, by database."""


# --- read ------------------------------------------------------------------------------------------------------------


async def read_page(conn: Connection, log: LogTable, owner_id: str, selection: LogFilter) -> list[LogLine]:
    """Read `limit` lines, or more: all lines of each millisecond that the page shows, and of at least two milliseconds.

    A reader moves its window by milliseconds: the rest of one would be skipped, or the same page be read for ever.
    """
    lines = await _read_lines(conn, log, owner_id, selection, selection.limit)
    if len(lines) < selection.limit:
        return lines
    last_ms = lines[-1].timestamp_ns // NS_PER_MS
    before = [line for line in lines if line.timestamp_ns // NS_PER_MS != last_ms]
    page = before + await _read_lines(conn, log, owner_id, _within(selection, last_ms))
    if not before and (following := await _read_lines(conn, log, owner_id, selection.behind(last_ms), 1)):
        next_ms = following[0].timestamp_ns // NS_PER_MS
        page += await _read_lines(conn, log, owner_id, _within(selection, next_ms))
    return page


def _within(selection: LogFilter, ms: int) -> LogFilter:
    """Selects the lines of one millisecond."""
    return replace(selection, start_ms=ms, end_ms=ms)


async def _read_lines(
    conn: Connection, log: LogTable, owner_id: str, selection: LogFilter, limit: int | None = None
) -> list[LogLine]:
    table = log.lines
    query = select(*(table.c[name] for name in _COLUMNS)).where(*_conditions(log, owner_id, selection))
    if selection.newest_first:
        query = query.order_by(table.c.timestamp_ns.desc(), table.c.id.desc())
    else:
        query = query.order_by(table.c.timestamp_ns, table.c.id)
    return [LogLine(*row) for row in await conn.execute(query.limit(limit))]


def _conditions(log: LogTable, owner_id: str, selection: LogFilter) -> list[ColumnElement[bool]]:
    table = log.lines
    conditions = [log.owner_id == owner_id]
    if selection.start_ms is not None:
        start_ns = selection.start_ms * NS_PER_MS
        conditions.append(table.c.timestamp_ns >= start_ns if start_ns <= _MOST_NS else false())
    if selection.end_ms is not None and (end_ns := (selection.end_ms + 1) * NS_PER_MS) <= _MOST_NS:
        conditions.append(table.c.timestamp_ns < end_ns)
    if selection.levels is not None:
        conditions.append(one_of(table.c.level, selection.levels))
    if selection.request_id is not None:
        conditions.append(table.c.request_id == selection.request_id)
    if selection.replica is not None:
        conditions.append(table.c.replica == selection.replica)
    conditions += [_Position(table.c.message, literal(part)) > 0 for part in selection.includes]
    conditions += [_Position(table.c.message, literal(part)) == 0 for part in selection.excludes]
    return conditions


# --- bounds ----------------------------------------------------------------------------------------------------------


async def logged_after(conn: Connection, log: LogTable, owner_id: str) -> str | None:
    """The next owner's id, in order, that has lines. One look-up in the index."""
    query = select(log.owner_id).where(log.owner_id > owner_id)
    return (await conn.execute(query.order_by(log.owner_id).limit(1))).scalar()


async def owner_exists(conn: Connection, log: LogTable, owner_id: str) -> bool:
    return bool((await conn.execute(select(exists().where(log.owners.c.id == owner_id)))).scalar())


async def newest_beyond(conn: Connection, log: LogTable, owner_id: str, max_lines: int, max_bytes: int) -> Place | None:
    """The newest line that does not fit into the bounds together with all newer ones. None if all lines fit."""
    table = log.lines
    newest_first = (table.c.timestamp_ns.desc(), table.c.id.desc())
    counted = (
        select(
            table.c.timestamp_ns,
            table.c.id,
            func.row_number().over(order_by=newest_first).label("lines"),
            func.sum(_Bytes(table.c.message)).over(order_by=newest_first, rows=(None, 0)).label("bytes"),
        )
        .where(log.owner_id == owner_id)
        .subquery()
    )
    beyond = select(counted.c.timestamp_ns, counted.c.id)
    beyond = beyond.where(or_(counted.c.lines > max_lines, counted.c.bytes > max_bytes))
    row = (await conn.execute(beyond.order_by(counted.c.lines).limit(1))).one_or_none()
    return (row.timestamp_ns, row.id) if row else None


async def delete_up_to(tx: WriteTx, log: LogTable, owner_id: str, last: Place, limit: int) -> int:
    """Delete at most `limit` lines, oldest first, up to and with the one at `last`; returns how many."""
    table = log.lines
    at_ns, id = last
    old = or_(table.c.timestamp_ns < at_ns, and_(table.c.timestamp_ns == at_ns, table.c.id <= id))
    oldest = select(table.c.id).where(log.owner_id == owner_id, old)
    oldest = oldest.order_by(table.c.timestamp_ns, table.c.id).limit(limit)
    return (await tx.conn.execute(delete(table).where(table.c.id.in_(oldest)))).rowcount
