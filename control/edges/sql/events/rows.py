"""Queries on `events`: pages by (timestamp, idempotency key) at a cost that does not grow with the table.

Each page reads one index range: for the workspace, or one per requested entity or (key, entity). The database merges
the ranges' first rows. No query counts rows or uses OFFSET. On PostgreSQL a range is read in the partitions that its
time needs, the earliest first (`partitions.py`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from sqlalchemy import FromClause, Select, and_, column, select, text
from sqlalchemy import values as value_rows

from control.edges.sql.events.partitions import PartitionedWindow, partitions_of, parts_of
from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import Id, events
from control.records.events import PLAIN_FIELDS, EventPosition, EventWindow, ShownEvent

_WIDTHS = (1, 4, 32)
"""The numbers of ranges that one statement merges. Few numbers: SQLAlchemy and the drivers cache each statement, at
100 kB per range."""
_ORDER = "ORDER BY timestamp_ms, idempotency_key LIMIT :limit"
_EQUAL = ("external_entity_id", "api_key_prefix")
_SHOWN = {False: ", ".join(PLAIN_FIELDS), True: ", ".join(ShownEvent._fields)}
"""The columns of a page, with details or without."""


@dataclass(frozen=True, slots=True)
class EventQuery:
    """A statement, and the values of its parameters."""

    sql: str
    values: Mapping[str, Any]


_KEPT_WHOLE_MS = 2 * 86_400_000
"""A day within this long of its retention's end is left until it can be dropped whole."""
Range = tuple[str, ...]
"""The values that all its events share besides the workspace: none; the entity; entity and key."""


async def page_of_events(
    conn: Connection, window: EventWindow, after: EventPosition | None, limit: int
) -> list[ShownEvent]:
    """The first `limit` rows after `after`, in order."""
    rows: list[ShownEvent] = []
    start_ms = window.start_ms if after is None else after[0]
    for part in parts_of(await partitions_of(conn), start_ms, window.end_ms):
        behind = after if after is not None and part.start_ms == after[0] else None
        rows += await _page_of_part(conn, window, part, behind, limit - len(rows))
        if len(rows) == limit:
            break
    return rows


async def _page_of_part(
    conn: Connection, window: EventWindow, part: PartitionedWindow, after: EventPosition | None, limit: int
) -> list[ShownEvent]:
    rows: list[ShownEvent] = []
    for query in await queries_of(conn, window, part, after, limit):
        rows += starmap(ShownEvent, await conn.execute(text(query.sql), query.values))
        rows.sort()
        del rows[limit:]  # per statement: a thousand ranges may have a million rows
    return rows


async def queries_of(
    conn: Connection, window: EventWindow, part: PartitionedWindow, after: EventPosition | None, limit: int
) -> list[EventQuery]:
    """The statements for the first `limit` rows of one part. Each gives its own first rows, in order."""
    values: dict[str, Any] = {"workspace": window.workspace_id, "end": part.end_ms, "limit": limit, **part.bounds}
    if after is None:
        start = "e.timestamp_ms >= :start"
        values["start"] = part.start_ms
    else:
        start = "(e.timestamp_ms, e.idempotency_key) > (:after_ms, :after_key)"
        values["after_ms"], values["after_key"] = after
    columns = _SHOWN[window.with_details]
    select_sql = f"SELECT {columns} FROM {part.sql} AS e WHERE e.workspace_id = :workspace AND {start}"  # noqa: S608 (ours)
    return [
        _merged(f"{select_sql} AND e.timestamp_ms < :end", ranges, values)
        for ranges in in_widths(await _ranges(conn, window, part))
    ]


def in_widths(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Split the ranges into parts of one of `_WIDTHS`, padded with empty names, which match no event."""
    for start in range(0, len(ranges), _WIDTHS[-1]):
        part = ranges[start : start + _WIDTHS[-1]]
        width = next(width for width in _WIDTHS if len(part) <= width)
        yield [*part, *[("",) * len(part[0])] * (width - len(part))]


def _merged(select_sql: str, ranges: Sequence[Range], values: Mapping[str, Any]) -> EventQuery:
    """Merge the first rows of several ranges in one statement. It is text: SQLAlchemy would take 1 ms per range."""
    range_values = {f"{_EQUAL[n]}{place}": value for place, one in enumerate(ranges) for n, value in enumerate(one)}
    texts = [
        select_sql + "".join(f" AND e.{name} = :{name}{place}" for name in _EQUAL[: len(one)]) + f" {_ORDER}"
        for place, one in enumerate(ranges)
    ]
    if len(texts) == 1:
        return EventQuery(texts[0], {**values, **range_values})
    union = " UNION ALL ".join(f"SELECT * FROM ({one}) AS r{place}" for place, one in enumerate(texts))  # noqa: S608
    return EventQuery(f"SELECT * FROM ({union}) AS u {_ORDER}", {**values, **range_values})  # noqa: S608 (ours)


async def _ranges(conn: Connection, window: EventWindow, part: PartitionedWindow) -> list[Range]:
    entities = sorted(set(window.external_entity_ids))
    if not window.api_keys:
        return [(entity,) for entity in entities] or [()]
    pairs = await _pairs_of_keys(conn, window, part)
    return [pair for pair in pairs if not entities or pair[0] in entities]


async def _pairs_of_keys(conn: Connection, window: EventWindow, part: PartitionedWindow) -> list[Range]:
    """Each (entity, key) that has events, by an index skip scan. A key normally has one entity."""
    pairs: list[Range] = []
    front: list[Range] = [("", key) for key in sorted(set(window.api_keys))]
    while front:
        next_front: list[Range] = []
        for ranges in in_widths(front):
            rows = await conn.execute(_next_entities(part.table(), window.workspace_id, ranges))
            next_front += [(row.entity, row.key) for row in rows if row.entity is not None]
        pairs += next_front
        front = next_front
    return pairs


def _next_entities(table: FromClause, workspace_id: str, front: list[Range]) -> Select[Any]:
    pairs = value_rows(column("entity", Id), column("key", Id)).data(front).cte("known")
    beyond = and_(
        table.c.workspace_id == workspace_id,
        table.c.api_key_prefix == pairs.c.key,
        table.c.external_entity_id > pairs.c.entity,
    )
    first = select(table.c.external_entity_id).where(beyond).order_by(table.c.external_entity_id).limit(1)
    return select(pairs.c.key, first.correlate(pairs).scalar_subquery().label("entity"))


async def events_by_key(conn: Connection, keys: Collection[str]) -> dict[str, Any]:
    """The events with these idempotency keys, as far as they are stored."""
    if not keys:
        return {}
    # The bounds tell PostgreSQL which partitions it needs before it looks at the keys.
    key = events.c.idempotency_key
    query = select(events).where(one_of(key, keys), key >= min(keys), key <= max(keys))
    return {row.idempotency_key: row for row in await conn.execute(query)}


async def delete_events_before(tx: WriteTx, workspace_id: str, before_ms: int, limit: int) -> int:
    """Delete at most `limit` of a workspace's oldest events; returns how many. Leaves those of days that
    `upkeep.drop_days` drops whole."""
    deleted = 0
    for table in await _tables_to_sweep(tx.conn, before_ms):
        old = f"SELECT idempotency_key FROM {table} WHERE workspace_id = :workspace AND timestamp_ms < :before"  # noqa: S608 (ours)
        keys = f"{old} ORDER BY timestamp_ms, idempotency_key LIMIT :limit"
        statement = text(f"DELETE FROM {table} WHERE idempotency_key IN ({keys})")  # noqa: S608 (ours)
        values = {"workspace": workspace_id, "before": before_ms, "limit": limit - deleted}
        deleted += (await tx.conn.execute(statement, values)).rowcount
    return deleted


async def _tables_to_sweep(conn: Connection, before_ms: int) -> list[str]:
    """`events` on SQLite; on PostgreSQL the partitions that are not of one day, and days with events far later."""
    partitions = await partitions_of(conn)
    remaining = (one for one in partitions if not one.is_past(before_ms))
    swept = [one.name for one in remaining if not one.first_key or one.earliest_ms < before_ms - _KEPT_WHOLE_MS]
    return swept if partitions else ["events"]
