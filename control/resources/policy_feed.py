"""Policy as the proxies read it: every row that changed since a revision, in pages.

A change only ever moves a row to a later revision. So pages in order of revision miss nothing, however much changes
meanwhile. The last page names the revision that was current when it was read.

See docs/reference/management-api.md#internal-api.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import orjson

from control.edges.sql import published_rows
from control.edges.sql.published_rows import PublishedRow, PublishedState
from control.edges.sql.store import Connection, Store, WriteTx, now_ms
from control.errors import DatabaseUnavailableError, OlderProxiesError
from control.long_work import CHARS_PER_ITEM, OPERATOR, beside
from policy.keys.settings import NO_SETTINGS, KeySettings
from policy.limits.kinds import KIND_NUMBER, KINDS
from policy.limits.limit import Limit, SlugLimits
from policy.snapshot import Row, SnapshotPage
from policy.spend.levels import POLICY_LEVEL, PolicyLevel
from policy.spend.limits import SpendLimit, level_of

MAX_ROWS = 10_000
PAGE_CHARS = 4 * 1024 * 1024
"""A page ends with the row that takes its JSON beyond this."""
FIRST_KINDS = 6
"""The number of kinds of limits that a proxy knows which does not say it."""
NOTED_AGAIN_MS = 60_000
ASKED_WITHIN_MS = 86_400_000
_FIRST_ROWS = 64
"""The number of rows that are read before their size is known."""


@dataclass(frozen=True, slots=True)
class FeedCursor:
    """The start of the next page. `tombstones_from`: 0, or the revision at which a read from the start began.

    `state`: the revision and nonce at the page before; they tell when the database was restored in between.
    """

    epoch: str
    after: tuple[int, str, str]
    tombstones_from: int = 0
    state: tuple[int, str] = (0, "")

    def encode(self) -> str:
        return json.dumps([self.epoch, *self.after, self.tombstones_from, *self.state], separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "FeedCursor":
        """Decode a cursor. Raises ValueError when `text` is not what `encode` made."""
        fields = json.loads(text)
        if not isinstance(fields, list) or [type(field) for field in fields] != [str, int, str, str, int, int, str]:
            raise ValueError("not a cursor of this feed")
        epoch, revision, kind, id, tombstones_from, *last_page = fields
        return cls(epoch, (revision, kind, id), tombstones_from, (last_page[0], last_page[1]))


@dataclass(frozen=True, slots=True)
class FeedReader:
    """The position of a proxy: the epoch and revision that it has, and the cursor of the page before.

    `nonce`: of that revision; None from a proxy of an older version, which knows none.
    """

    epoch: str
    since: int
    cursor: FeedCursor | None
    limit: int
    nonce: str | None = None


async def read_page(store: Store, reader: FeedReader) -> SnapshotPage:
    """One page of changes for this reader."""
    async with store.read() as conn:
        now = await published_rows.published_state(conn)
        if reader.cursor is not None and await _is_same_history(conn, now, reader.cursor):
            return await _page_from(conn, now, reader.cursor, False, reader.limit)
        reset = reader.cursor is not None or await _must_start_over(conn, now, reader)
        if reset:
            cursor = FeedCursor(now.epoch, (0, "", ""), now.revision)
        else:
            cursor = FeedCursor(now.epoch, (reader.since + 1, "", ""))
        return await _page_from(conn, now, cursor, reset, reader.limit)


async def delete_old_tombstones(store: Store, retention_s: float) -> int:
    """Delete tombstones older than the retention; how many were deleted."""

    async def work(tx: WriteTx) -> int:
        return await published_rows.forget_tombstones(tx, tx.now_ms - int(retention_s * 1000))

    return await store.transact(work)


async def _is_same_history(conn: Connection, now: PublishedState, cursor: FeedCursor) -> bool:
    """Return whether the page before was read from this database's history."""
    number, nonce = cursor.state
    return cursor.epoch == now.epoch and await published_rows.nonce_of(conn, number) == nonce


async def _must_start_over(conn: Connection, now: PublishedState, reader: FeedReader) -> bool:
    """Return whether the reader has another database, a state from before a restore, or misses deleted tombstones.

    The revision alone cannot show a restore: the restored database may have reached the same number again.
    """
    if reader.epoch != now.epoch or reader.since > now.revision or reader.since < now.floor:
        return True
    return reader.nonce is not None and await published_rows.nonce_of(conn, reader.since) != reader.nonce


async def _page_from(
    conn: Connection, now: PublishedState, cursor: FeedCursor, reset: bool, limit: int
) -> SnapshotPage:
    published, more = await _some_rows(conn, cursor, limit)
    following = None
    if more:
        last = published[-1]
        place = (last.revision, last.kind, last.id)
        page = (now.revision, now.nonce)
        following = FeedCursor(now.epoch, place, cursor.tombstones_from, page).encode()
    chars = sum(len(row.body or "") for row in published)
    rows = await beside(OPERATOR, len(published) + chars // CHARS_PER_ITEM, partial(_rows, published))
    return SnapshotPage(now.epoch, now.revision, reset, rows, following, now.nonce)


async def _some_rows(conn: Connection, cursor: FeedCursor, limit: int) -> tuple[list[PublishedRow], bool]:
    """The rows of a page, at most `limit` and little more than `PAGE_CHARS`; and whether more follow."""
    rows: list[PublishedRow] = []
    after = cursor.after
    chars = 0
    batch = _FIRST_ROWS
    while True:
        most = min(batch, limit + 1 - len(rows))
        batch_rows = await published_rows.changes(conn, after, cursor.tombstones_from, most)
        for row in batch_rows:
            if len(rows) == limit or chars > PAGE_CHARS:
                return rows, True
            rows.append(row)
            chars += len(row.body or "")
            after = (row.revision, row.kind, row.id)
        if len(batch_rows) < most:
            return rows, False
        batch = max(1, min(limit, PAGE_CHARS * len(rows) // (chars + 1)))


def _rows(published: Sequence[PublishedRow]) -> tuple[Row, ...]:
    bodies = (None if row.body is None else orjson.loads(row.body) for row in published)
    return tuple(Row(row.kind, row.id, row.revision, body) for row, body in zip(published, bodies, strict=True))


class OlderProxies:
    """Notes when proxies ask for policy that know fewer limits than this version, at most once a minute."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted_ms: dict[tuple[int, int], int] = {}

    async def note(self, limit_kinds: int, level: int) -> None:
        """Note that a proxy asks which knows so many kinds of limits, and has this `PolicyLevel`."""
        at_ms = now_ms()
        knows_all = limit_kinds >= len(KINDS) and level >= POLICY_LEVEL
        proxy = (limit_kinds, level)
        if knows_all or at_ms < self._noted_ms.get(proxy, 0) + NOTED_AGAIN_MS:
            return
        self._noted_ms[proxy] = at_ms

        async def work(tx: WriteTx) -> None:
            if limit_kinds < len(KINDS):
                await published_rows.note_older_proxy(tx, limit_kinds)
            if level < POLICY_LEVEL:
                await published_rows.note_proxy_level(tx, level)

        with suppress(DatabaseUnavailableError):  # a database that cannot be written stores no limit either
            await self._store.transact(work)


async def check_known_to_proxies(tx: WriteTx, models: Sequence[SlugLimits]) -> None:
    """Raise `OlderProxiesError` if a proxy that has asked within a day does not know a kind of limit."""
    newest = max((limit for entry in models for limit in entry.limits), key=_number, default=None)
    if newest is None or _number(newest) <= FIRST_KINDS:
        return
    fewest = await published_rows.fewest_known_kinds(tx.conn, tx.now_ms - ASKED_WITHIN_MS)
    if fewest is not None and fewest < _number(newest):
        raise OlderProxiesError(f"limits of {newest.type} per {newest.unit}")


async def check_spend_known_to_proxies(tx: WriteTx, limits: Sequence[SpendLimit]) -> None:
    """Raise `OlderProxiesError` if a proxy that has asked within a day does not know such spend limits."""
    if not limits:
        return
    lowest = await _lowest_level(tx)
    if lowest < level_of(limits):
        raise OlderProxiesError("spend limits" if lowest == 0 else "HARD spend limits")


async def check_balances_known_to_proxies(tx: WriteTx) -> None:
    """Raise `OlderProxiesError` if a proxy that has asked within a day does not know balances."""
    if await _lowest_level(tx) < PolicyLevel.BALANCES:
        raise OlderProxiesError("prepaid balances")


async def check_key_settings_known_to_proxies(tx: WriteTx, settings: KeySettings) -> None:
    """Raise `OlderProxiesError` if a proxy that has asked within a day would ignore these settings of a key."""
    if settings != NO_SETTINGS and await _lowest_level(tx) < PolicyLevel.KEY_SETTINGS:
        raise OlderProxiesError("settings of keys")


async def check_roles_known_to_proxies(tx: WriteTx) -> None:
    """Raise `OlderProxiesError` if a proxy that has asked within a day would ignore the role of a key."""
    if await _lowest_level(tx) < PolicyLevel.KEY_SETTINGS:
        raise OlderProxiesError("roles of keys")


async def _lowest_level(tx: WriteTx) -> int:
    """The level of the oldest proxy that has asked within a day."""
    lowest = await published_rows.lowest_proxy_level(tx.conn, tx.now_ms - ASKED_WITHIN_MS)
    return POLICY_LEVEL if lowest is None else lowest


def _number(limit: Limit) -> int:
    return KIND_NUMBER[limit.type, limit.unit]
