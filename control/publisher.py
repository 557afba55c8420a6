"""Policy as the proxies read it: all that changed since a revision, in pages (architecture "Snapshot").

A row only ever moves to a later revision, so a walk in order of revision that ends at the end misses nothing, however
much changes meanwhile; it ends with the revision that was current when the last page was read.
"""

import json
from dataclasses import dataclass

import orjson

from control.edges import published_rows
from control.edges.published_rows import PublishedRow, Standing
from control.edges.store import Connection, Store, WriteTx
from policy.snapshot import Delta, Row

MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a reader is in its pages. `tombstones_from`: 0, or in a walk from nothing the revision it began at."""

    epoch: str
    after: tuple[int, str, str]
    tombstones_from: int = 0

    def encode(self) -> str:
        return json.dumps([self.epoch, *self.after, self.tombstones_from], separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "Walk":
        """ValueError when `text` is not what `encode` made."""
        fields = json.loads(text)
        if not isinstance(fields, list) or [type(field) for field in fields] != [str, int, str, str, int]:
            raise ValueError("not a walk")
        epoch, revision, kind, id, tombstones_from = fields
        return cls(epoch, (revision, kind, id), tombstones_from)


@dataclass(frozen=True, slots=True)
class Reader:
    """What a proxy says of itself: the epoch and revision it stands at, and where in its pages it is."""

    epoch: str
    since: int
    walk: Walk | None
    limit: int


async def read_delta(store: Store, reader: Reader) -> Delta:
    """One page for this reader."""
    async with store.read() as conn:
        now = await published_rows.standing(conn)
        if reader.walk is not None and reader.walk.epoch == now.epoch:
            return await _page(conn, now, reader.walk, False, reader.limit)
        reset = reader.walk is not None or _must_start_over(now, reader)
        walk = Walk(now.epoch, (0, "", ""), now.revision) if reset else Walk(now.epoch, (reader.since + 1, "", ""))
        return await _page(conn, now, walk, reset, reader.limit)


async def forget_tombstones(store: Store, retention_s: float) -> int:
    """Drop tombstones older than the retention; how many went."""

    async def work(tx: WriteTx) -> int:
        return await published_rows.forget_tombstones(tx, tx.now_ms - int(retention_s * 1000))

    return await store.transact(work)


def _must_start_over(now: Standing, reader: Reader) -> bool:
    """Another database, one that was put back to an earlier state, or deletions that nobody remembers."""
    return reader.epoch != now.epoch or reader.since > now.revision or reader.since < now.floor


async def _page(conn: Connection, now: Standing, walk: Walk, reset: bool, limit: int) -> Delta:
    found = await published_rows.changes(conn, walk.after, walk.tombstones_from, limit + 1)
    shown = found[:limit]
    following = None
    if len(found) > limit:
        last = shown[-1]
        following = Walk(now.epoch, (last.revision, last.kind, last.id), walk.tombstones_from).encode()
    return Delta(now.epoch, now.revision, reset, tuple(map(_row, shown)), following)


def _row(row: PublishedRow) -> Row:
    return Row(row.kind, row.id, row.revision, None if row.body is None else orjson.loads(row.body))
