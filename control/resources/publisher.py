"""Policy as the proxies read it: all that changed since a revision, in pages.

A row only ever moves to a later revision, so a walk in order of revision that ends at the end misses nothing, however
much changes meanwhile; it ends with the revision that was current when the last page was read.

See docs/reference/management-api.md#internal-api.
"""

import json
from dataclasses import dataclass

import orjson

from control.edges.sql import published_rows
from control.edges.sql.published_rows import PublishedRow, PublishedState
from control.edges.sql.store import Connection, Store, WriteTx
from control.time_slices import each
from policy.snapshot import Row, SnapshotPage

MAX_ROWS = 10_000
PAGE_CHARS = 4 * 1024 * 1024
"""A page of more JSON than this ends with the row that passed it."""
_FIRST_ROWS = 64
"""How many rows are read before it is known how large they are."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a reader is in its pages. `tombstones_from`: 0, or in a walk from nothing the revision it began at.

    `seen`: the revision and nonce at the page before; a database put back to an earlier state ends the walk.
    """

    epoch: str
    after: tuple[int, str, str]
    tombstones_from: int = 0
    seen: tuple[int, str] = (0, "")

    def encode(self) -> str:
        return json.dumps([self.epoch, *self.after, self.tombstones_from, *self.seen], separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "Walk":
        """ValueError when `text` is not what `encode` made."""
        fields = json.loads(text)
        if not isinstance(fields, list) or [type(field) for field in fields] != [str, int, str, str, int, int, str]:
            raise ValueError("not a walk")
        epoch, revision, kind, id, tombstones_from, *seen = fields
        return cls(epoch, (revision, kind, id), tombstones_from, (seen[0], seen[1]))


@dataclass(frozen=True, slots=True)
class Reader:
    """What a proxy says of itself: the epoch and revision it stands at, and where in its pages it is.

    `nonce`: of that revision; None from a proxy of an older version, which knows none.
    """

    epoch: str
    since: int
    walk: Walk | None
    limit: int
    nonce: str | None = None


async def read_page(store: Store, reader: Reader) -> SnapshotPage:
    """One page for this reader."""
    async with store.read() as conn:
        now = await published_rows.published_state(conn)
        if reader.walk is not None and await _goes_on(conn, now, reader.walk):
            return await _page(conn, now, reader.walk, False, reader.limit)
        reset = reader.walk is not None or await _must_start_over(conn, now, reader)
        walk = Walk(now.epoch, (0, "", ""), now.revision) if reset else Walk(now.epoch, (reader.since + 1, "", ""))
        return await _page(conn, now, walk, reset, reader.limit)


async def forget_tombstones(store: Store, retention_s: float) -> int:
    """Drop tombstones older than the retention; how many went."""

    async def work(tx: WriteTx) -> int:
        return await published_rows.forget_tombstones(tx, tx.now_ms - int(retention_s * 1000))

    return await store.transact(work)


async def _goes_on(conn: Connection, now: PublishedState, walk: Walk) -> bool:
    """Whether what the page before was read from is part of this history."""
    number, nonce = walk.seen
    return walk.epoch == now.epoch and await published_rows.nonce_of(conn, number) == nonce


async def _must_start_over(conn: Connection, now: PublishedState, reader: Reader) -> bool:
    """Another database, one that was put back to an earlier state, or deletions that nobody remembers.

    The number alone does not tell: a restored database may have come to the reader's revision again, or beyond it.
    """
    if reader.epoch != now.epoch or reader.since > now.revision or reader.since < now.floor:
        return True
    return reader.nonce is not None and await published_rows.nonce_of(conn, reader.since) != reader.nonce


async def _page(conn: Connection, now: PublishedState, walk: Walk, reset: bool, limit: int) -> SnapshotPage:
    shown, goes_on = await _some_rows(conn, walk, limit)
    following = None
    if goes_on:
        last = shown[-1]
        place, seen = (last.revision, last.kind, last.id), (now.revision, now.nonce)
        following = Walk(now.epoch, place, walk.tombstones_from, seen).encode()
    return SnapshotPage(now.epoch, now.revision, reset, tuple(await each(shown, _row)), following, now.nonce)


async def _some_rows(conn: Connection, walk: Walk, limit: int) -> tuple[list[PublishedRow], bool]:
    """The rows of a page, at most `limit` and not far beyond `PAGE_CHARS`; and whether more follow."""
    rows: list[PublishedRow] = []
    after, chars, at_once = walk.after, 0, _FIRST_ROWS
    while True:
        wanted = min(at_once, limit + 1 - len(rows))
        found = await published_rows.changes(conn, after, walk.tombstones_from, wanted)
        for row in found:
            if len(rows) == limit or chars > PAGE_CHARS:
                return rows, True
            rows.append(row)
            chars += len(row.body or "")
            after = (row.revision, row.kind, row.id)
        if len(found) < wanted:
            return rows, False
        at_once = max(1, min(limit, PAGE_CHARS * len(rows) // (chars + 1)))


def _row(row: PublishedRow) -> Row:
    return Row(row.kind, row.id, row.revision, None if row.body is None else orjson.loads(row.body))
