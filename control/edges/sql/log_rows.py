"""Queries on logs: insert lines, read those that match, find and delete what is beyond the bounds.

`LogTable` says whose log it is: a deployment's or a training job's. A line's place is (timestamp, id): lines of one
timestamp stay in the order in which they arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Integer, Table, and_, delete, exists, func, literal, or_, select, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import deployment_logs, deployments
from control.edges.sql.training.tables import training_jobs, training_logs
from control.resources.records import LogFilter, LogLine

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
    """Where a text occurs in another, counted from 1; 0 if it does not. Compares exactly: no wildcards, no case."""

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


async def insert_lines(tx: WriteTx, log: LogTable, lines: Sequence[tuple[str, LogLine]]) -> None:
    """Insert (owner's id, line) in this order. Drops lines of owners that do not exist."""
    rows = [[id, *(getattr(line, name) for name in _COLUMNS)] for id, line in lines]
    insert = _insert_text(log, *_SOURCES[tx.conn.dialect.name])
    await tx.conn.execute(text(insert), {"rows": orjson.dumps(rows).decode()})


def _insert_text(log: LogTable, value: str, source: str, order: str) -> str:
    """One statement with one parameter for any number of rows: binding each value costs more than the insert."""
    types = ("text", "bigint", "text", "text", "text", "text")
    values = [value.format(place=place, type=type) for place, type in enumerate(types)]
    return (
        f"INSERT INTO {log.lines.name} ({', '.join((log.owner, *_COLUMNS))})"  # noqa: S608
        f" SELECT {', '.join(values)} FROM {source}"
        f" WHERE EXISTS (SELECT 1 FROM {log.owners.name} WHERE {log.owners.name}.id = {values[0]}) ORDER BY {order}"
    )


_SOURCES = {
    "sqlite": ("json_extract(r.value, '$[{place}]')", "json_each(:rows) AS r", "r.key"),
    "postgresql": (
        "CAST(r.value ->> {place} AS {type})",
        "json_array_elements(CAST(:rows AS json)) WITH ORDINALITY AS r (value, place)",
        "r.place",
    ),
}
"""By database: how a value is read from a row, where the rows are, and their order."""


# --- read ------------------------------------------------------------------------------------------------------------


async def read_lines(conn: Connection, log: LogTable, owner_id: str, wanted: LogFilter) -> list[LogLine]:
    table = log.lines
    query = select(*(table.c[name] for name in _COLUMNS)).where(*_conditions(log, owner_id, wanted))
    if wanted.newest_first:
        query = query.order_by(table.c.timestamp_ns.desc(), table.c.id.desc())
    else:
        query = query.order_by(table.c.timestamp_ns, table.c.id)
    return [LogLine(*row) for row in await conn.execute(query.limit(wanted.limit))]


def _conditions(log: LogTable, owner_id: str, wanted: LogFilter) -> list[ColumnElement[bool]]:
    table = log.lines
    found = [log.owner_id == owner_id]
    if wanted.start_ns is not None:
        found.append(table.c.timestamp_ns >= wanted.start_ns)
    if wanted.end_ns is not None:
        found.append(table.c.timestamp_ns < wanted.end_ns)
    if wanted.levels is not None:
        found.append(one_of(table.c.level, wanted.levels))
    if wanted.request_id is not None:
        found.append(table.c.request_id == wanted.request_id)
    if wanted.replica is not None:
        found.append(table.c.replica == wanted.replica)
    found += [_Position(table.c.message, literal(part)) > 0 for part in wanted.includes]
    found += [_Position(table.c.message, literal(part)) == 0 for part in wanted.excludes]
    return found


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
