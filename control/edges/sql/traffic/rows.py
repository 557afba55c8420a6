"""Queries on `traffic`: add what proxies counted, each batch once; read series; delete what is old.

Whoever adds locks its sender's row first, then the steps in the order of their key, so no two senders deadlock.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from sqlalchemy import ColumnElement, FromClause, Select, Text, TextClause, cast, delete, func, literal, select, text

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.traffic.tables import FIGURES, traffic, traffic_senders
from control.long_work import OPERATOR, beside
from control.records.traffic import KEPT, StepRange, Steps
from policy.traffic import TrafficRow

_ROWS_PER_ITEM = 10
"""The number of rows that are encoded in the time of one item of long work."""
_DELETED_STEPS = 10
"""Steps that one transaction deletes."""
Points = str
"""JSON text: an array per step that has figures, of its start and the figures in the order of `FIGURES`."""


async def note_batch(tx: WriteTx, sender: str, number: int, now_ms: int) -> bool:
    """Remember that this batch is added. False if it was added before."""
    new = {"sender": sender, "number": number, "now_ms": now_ms}
    return (await tx.conn.execute(_NOTE, new)).first() is not None


_NOTE = text(
    "INSERT INTO traffic_senders (sender, number, added_at_ms) VALUES (:sender, :number, :now_ms)"
    " ON CONFLICT (sender) DO UPDATE SET number = excluded.number, added_at_ms = excluded.added_at_ms"
    " WHERE traffic_senders.number < excluded.number RETURNING sender"
)


async def add_rows(tx: WriteTx, rows: Sequence[TrafficRow], now_ms: int) -> None:
    """Add to the steps of all lengths. Rows of workspaces that do not exist are ignored.

    A proxy's clock may be ahead: what it says of the future is added to the current step.
    """
    dialect = tx.conn.dialect.name
    steps_json = await beside(OPERATOR, len(rows) // _ROWS_PER_ITEM, partial(_sent, rows, dialect, now_ms))
    await tx.conn.execute(_ADD[dialect], {"rows": steps_json})


def _sent(rows: Sequence[TrafficRow], dialect: str, now_ms: int) -> str:
    """Encode rows as JSON: arrays for SQLite, objects for PostgreSQL, which reads an array once per value."""
    values = [(row.workspace_id, row.slug, min(row.minute_ms, now_ms), *row.sums, *row.first_bytes) for row in rows]
    if dialect == "sqlite":
        return orjson.dumps(values).decode()
    return orjson.dumps([dict(zip(_SENT, row, strict=True)) for row in values]).decode()


_SENT = ("workspace_id", "slug", "at_ms", *FIGURES)


def _add(select_sql: str) -> TextClause:
    """Build a statement with one parameter for any number of rows: binding each value costs more than the insert."""
    key = "workspace_id, step_s, start_ms, slug"
    lengths = " UNION ALL ".join(f"SELECT {steps.length_s} AS step_s" for steps in KEPT)
    sums = ", ".join(f"SUM({name})" for name in FIGURES)
    added = ", ".join(f"{name} = traffic.{name} + excluded.{name}" for name in FIGURES)
    return text(
        f"INSERT INTO traffic ({key}, {', '.join(FIGURES)}) WITH sent AS MATERIALIZED ({select_sql})"  # noqa: S608 (ours)
        f" SELECT workspace_id, step_s, at_ms - at_ms % (step_s * 1000), slug, {sums}"
        f" FROM sent CROSS JOIN ({lengths}) AS lengths"
        " WHERE EXISTS (SELECT 1 FROM workspaces WHERE workspaces.id = sent.workspace_id)"
        " GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
        f" ON CONFLICT ({key}) DO UPDATE SET {added}"
    )


_EXTRACTED = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(_SENT))
_TYPED = ", ".join(f"{name} {'text' if name in ('workspace_id', 'slug') else 'bigint'}" for name in _SENT)
_ADD = {
    "sqlite": _add(f"SELECT {_EXTRACTED} FROM json_each(:rows)"),  # noqa: S608 (ours)
    "postgresql": _add(f"SELECT * FROM json_to_recordset(CAST(:rows AS json)) AS r({_TYPED})"),  # noqa: S608 (ours)
}


async def busiest_slugs(conn: Connection, workspace_id: str, span: StepRange, limit: int) -> list[str]:
    """The slugs with the most calls in the span, most first."""
    calls = func.sum(traffic.c.calls)
    query = select(traffic.c.slug).where(*_within(workspace_id, span), traffic.c.slug != "")
    query = query.group_by(traffic.c.slug).order_by(calls.desc(), traffic.c.slug).limit(limit)
    return list((await conn.execute(query)).scalars())


async def points_of(conn: Connection, workspace_id: str, span: StepRange, slugs: Sequence[str]) -> dict[str, Points]:
    """The steps of each of these slugs in the span. A slug without calls is absent."""
    columns = (traffic.c.slug, traffic.c.start_ms, *_figures())
    query = select(*columns).where(*_within(workspace_id, span), one_of(traffic.c.slug, slugs))
    return await _by_slug(conn, query)


async def points_of_others(conn: Connection, workspace_id: str, span: StepRange, slugs: Sequence[str]) -> Points | None:
    """The sums over everything else in the span, calls without a slug included."""
    columns = (literal("").label("slug"), traffic.c.start_ms, *(func.sum(one).label(one.name) for one in _figures()))
    query = select(*columns).where(*_within(workspace_id, span), ~one_of(traffic.c.slug, slugs))
    return (await _by_slug(conn, query.group_by(traffic.c.start_ms))).get("")


async def _by_slug(conn: Connection, query: Select[Any]) -> dict[str, Points]:
    """Read the points as one JSON text per slug, which costs a hundredth of reading its steps as rows."""
    steps: FromClause = query.subquery()
    array, collect = _JSON[conn.dialect.name]
    point = getattr(func, array)(steps.c.start_ms, *(steps.c[name] for name in FIGURES))
    grouped = select(steps.c.slug, cast(getattr(func, collect)(point), Text)).group_by(steps.c.slug)
    return {slug: points for slug, points in await conn.execute(grouped)}  # noqa: C416 (a Row is no tuple to mypy)


_JSON = {"sqlite": ("json_array", "json_group_array"), "postgresql": ("json_build_array", "json_agg")}


def _figures() -> list[Any]:
    return [traffic.c[name] for name in FIGURES]


def _within(workspace_id: str, span: StepRange) -> tuple[ColumnElement[bool], ...]:
    return (
        traffic.c.workspace_id == workspace_id,
        traffic.c.step_s == span.steps.length_s,
        traffic.c.start_ms >= span.first_ms,
        traffic.c.start_ms < span.end_ms,
    )


async def delete_steps(tx: WriteTx, workspace_id: str, steps: Steps, before_ms: int) -> int:
    """Delete the oldest steps that began before then, a few at a time; returns how many rows."""
    where = (traffic.c.workspace_id == workspace_id, traffic.c.step_s == steps.length_s)
    oldest_ms = (await tx.conn.execute(select(func.min(traffic.c.start_ms)).where(*where))).scalar()
    if oldest_ms is None or oldest_ms >= before_ms:
        return 0
    until_ms = min(before_ms, oldest_ms + _DELETED_STEPS * steps.length_ms)
    return (await tx.conn.execute(delete(traffic).where(*where, traffic.c.start_ms < until_ms))).rowcount


async def forget_senders(tx: WriteTx, before_ms: int) -> int:
    """Forget those that have sent nothing since then: no batch of theirs is on its way any more."""
    old = delete(traffic_senders).where(traffic_senders.c.added_at_ms < before_ms)
    return (await tx.conn.execute(old)).rowcount
