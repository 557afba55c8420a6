"""The partitions of `events` that a time window needs, and the order in which a page reads them.

A partition holds the keys of one day, and a ULID's day is known from the key. `event_partitions` bounds the timestamps
in each; the database itself keeps these bounds. So nothing outside a `PartitionedWindow` has a timestamp within its
times.

See docs/decisions/0045-event-partitions.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import FromClause, select, text

from control.edges.sql.store import Connection
from control.edges.sql.tables import event_partitions, events

REST = "events_rest"
_MOST_SPANS = 3
"""The most spans of one statement: each number of spans is another statement."""
_COLUMNS = ", ".join(column.name for column in events.columns)


class Partition(NamedTuple):
    """A row of `event_partitions`: the keys in [first_key, beyond_key), the timestamps in [earliest_ms, until_ms)."""

    name: str
    first_key: str
    beyond_key: str | None
    earliest_ms: int
    until_ms: int

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        return self.earliest_ms < end_ms and start_ms < self.until_ms

    def is_past(self, before_ms: int) -> bool:
        """Return whether it can be dropped: its events are all earlier, and no event goes there for want of another."""
        return self.beyond_key is not None and self.until_ms <= before_ms


class KeyRange(NamedTuple):
    """The keys of neighbouring partitions."""

    first_key: str
    beyond_key: str


@dataclass(frozen=True, slots=True)
class PartitionedWindow:
    """A time window, and the partitions that hold all its events: those of `spans`, and `REST` with `rest`.

    On SQLite it has no spans: its events are in one table.
    """

    start_ms: int
    end_ms: int
    spans: Sequence[KeyRange] = ()
    rest: bool = False

    @property
    def sql(self) -> str:
        """The table expression to select from, with the parameters of `bounds`."""
        pieces = [
            f"SELECT {_COLUMNS} FROM events WHERE idempotency_key >= :first{n} AND idempotency_key < :beyond{n}"  # noqa: S608 (ours)
            for n in range(len(self.spans))
        ]
        pieces += [f"SELECT {_COLUMNS} FROM {REST}"] * self.rest  # noqa: S608 (ours)
        return f"({' UNION ALL '.join(pieces)})" if pieces else "events"

    @property
    def bounds(self) -> dict[str, str]:
        """The parameters of `sql`."""
        firsts = {f"first{n}": span.first_key for n, span in enumerate(self.spans)}
        return firsts | {f"beyond{n}": span.beyond_key for n, span in enumerate(self.spans)}

    def table(self) -> FromClause:
        """The same for SQLAlchemy Core, with the columns of `events`."""
        if not self.bounds and not self.rest:
            return events
        return text(self.sql[1:-1]).bindparams(**self.bounds).columns(*events.columns).subquery("e")


async def partitions_of(conn: Connection) -> list[Partition]:
    """All partitions, as this connection sees them; none on SQLite.

    From here to its end the transaction plans each statement for its values: a plan for any values would be one for
    all partitions, and PostgreSQL takes it after a few times.
    """
    if conn.dialect.name == "postgresql":
        await conn.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))
    columns = [event_partitions.c[name] for name in Partition._fields]
    return [Partition(*row) for row in await conn.execute(select(*columns).order_by(event_partitions.c.first_key))]


def part_of(partitions: Sequence[Partition], start_ms: int, end_ms: int) -> PartitionedWindow | None:
    """The whole window as one part; None if it cannot have events."""
    if not partitions:
        return PartitionedWindow(start_ms, end_ms)
    overlaps = [one for one in partitions if one.overlaps(start_ms, end_ms)]
    spans = _bounded(list(_key_ranges(overlaps)))
    return (
        PartitionedWindow(start_ms, end_ms, spans, any(one.beyond_key is None for one in overlaps))
        if overlaps
        else None
    )


def parts_of(partitions: Sequence[Partition], start_ms: int, end_ms: int) -> Iterator[PartitionedWindow]:
    """The window in consecutive parts, the first of at most a day, each other twice as long as the one before.

    A page that is soon full reads few partitions; one that is not reads each of them once or twice.
    """
    edges = sorted({one.earliest_ms for one in partitions if start_ms < one.earliest_ms < end_ms})
    days = 1
    while start_ms < end_ms:
        until_ms = edges[days - 1] if days <= len(edges) else end_ms
        edges = edges[days:]
        days = days * 2
        if (part := part_of(partitions, start_ms, until_ms)) is not None:
            yield part
        start_ms = until_ms


def _key_ranges(partitions: Sequence[Partition]) -> Iterator[KeyRange]:
    """Yield neighbouring partitions as one span. The partitions are in the order of their keys."""
    pending: KeyRange | None = None
    for one in partitions:
        if one.beyond_key is None:
            continue
        if pending is not None and pending.beyond_key == one.first_key:
            pending = KeyRange(pending.first_key, one.beyond_key)
            continue
        if pending is not None:
            yield pending
        pending = KeyRange(one.first_key, one.beyond_key)
    if pending is not None:
        yield pending


def _bounded(spans: list[KeyRange]) -> list[KeyRange]:
    """Return at most `_MOST_SPANS` spans: the oldest ones become one, with what is between them."""
    surplus = len(spans) - _MOST_SPANS
    if surplus <= 0:
        return spans
    return [KeyRange(spans[0].first_key, spans[surplus].beyond_key), *spans[surplus + 1 :]]
