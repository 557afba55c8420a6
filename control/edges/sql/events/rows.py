"""Queries on `events`: pages by (timestamp, idempotency key) at a cost that does not grow with the table.

Each page reads one index range: for the workspace, or one per requested entity or (key, entity). The database merges
the ranges' first rows. No query counts rows or uses OFFSET.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Select, and_, column, delete, select, tuple_, union_all, values

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import Id, events
from control.resources.records import EventPosition, Window

_WIDTHS = (1, 4, 32)
"""The numbers of ranges that one statement merges. Few numbers: SQLAlchemy and the drivers cache each statement, at
100 kB per range."""
_SHOWN = (
    *(events.c.timestamp_ms, events.c.idempotency_key, events.c.request_id, events.c.model_slug),
    *(events.c.external_entity_id, events.c.api_key_prefix),
    *(events.c.input_tokens, events.c.output_tokens, events.c.cached_input_tokens),
)
_ORDER = (events.c.timestamp_ms, events.c.idempotency_key)
_EQUAL = (events.c.external_entity_id, events.c.api_key_prefix)
Range = tuple[str, ...]
"""The values that all its events share besides the workspace: none; the entity; entity and key."""


async def page_of_events(conn: Connection, window: Window, after: EventPosition | None, limit: int) -> list[Any]:
    """The first `limit` rows after `after`, in order."""
    rows: list[Any] = []
    for ranges in in_widths(await _ranges(conn, window)):
        query = merged([_range(window, one, after, limit) for one in ranges], limit)
        rows += (await conn.execute(query)).all()
        rows.sort(key=lambda row: (row.timestamp_ms, row.idempotency_key))
        del rows[limit:]  # per statement: a thousand ranges may have a million rows
    return rows


def in_widths(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Split the ranges into parts of one of `_WIDTHS`, padded with empty names, which match no event."""
    for start in range(0, len(ranges), _WIDTHS[-1]):
        part = ranges[start : start + _WIDTHS[-1]]
        width = next(width for width in _WIDTHS if len(part) <= width)
        yield [*part, *[("",) * len(part[0])] * (width - len(part))]


def merged(ranges: Sequence[Select[Any]], limit: int) -> Any:
    """One statement for the first rows of several ranges."""
    if len(ranges) == 1:
        return ranges[0]
    union = union_all(*(select(one.subquery()) for one in ranges)).subquery()
    return select(union).order_by(union.c.timestamp_ms, union.c.idempotency_key).limit(limit)


def _range(window: Window, equal: Range, after: EventPosition | None, limit: int) -> Select[Any]:
    start = events.c.timestamp_ms >= window.start_ms if after is None else tuple_(*_ORDER) > after
    theirs = [column == value for column, value in zip(_EQUAL, equal, strict=False)]
    within = and_(events.c.workspace_id == window.workspace_id, *theirs, start, events.c.timestamp_ms < window.end_ms)
    return select(*_SHOWN).where(within).order_by(*_ORDER).limit(limit)


async def _ranges(conn: Connection, window: Window) -> list[Range]:
    entities = sorted(set(window.external_entity_ids))
    if not window.api_keys:
        return [(entity,) for entity in entities] or [()]
    pairs = await _pairs_of_keys(conn, window.workspace_id, sorted(set(window.api_keys)))
    return [pair for pair in pairs if not entities or pair[0] in entities]


async def _pairs_of_keys(conn: Connection, workspace_id: str, keys: list[str]) -> list[Range]:
    """Each (entity, key) that has events, by an index skip scan. A key normally has one entity."""
    pairs: list[Range] = []
    front: list[Range] = [("", key) for key in keys]
    while front:
        found: list[Range] = []
        for part in in_widths(front):
            rows = await conn.execute(_next_entities(workspace_id, part))
            found += [(row.entity, row.key) for row in rows if row.entity is not None]
        pairs += found
        front = found
    return pairs


def _next_entities(workspace_id: str, front: list[Range]) -> Select[Any]:
    known = values(column("entity", Id), column("key", Id)).data(front).cte("known")
    beyond = and_(
        events.c.workspace_id == workspace_id,
        events.c.api_key_prefix == known.c.key,
        events.c.external_entity_id > known.c.entity,
    )
    first = select(events.c.external_entity_id).where(beyond).order_by(events.c.external_entity_id).limit(1)
    return select(known.c.key, first.correlate(known).scalar_subquery().label("entity"))


async def delete_events_before(tx: WriteTx, workspace_id: str, before_ms: int, limit: int) -> int:
    """Delete at most `limit` of a workspace's oldest events; returns how many."""
    old = and_(events.c.workspace_id == workspace_id, events.c.timestamp_ms < before_ms)
    keys = select(events.c.idempotency_key).where(old).order_by(*_ORDER).limit(limit)
    return (await tx.conn.execute(delete(events).where(events.c.idempotency_key.in_(keys)))).rowcount
