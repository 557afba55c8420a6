"""The logs of deployments and of training jobs. Bounded per owner in lines, bytes and age.

A log is cut back by the request that made it grow, in small transactions, once it may be a tenth above its bounds.

See docs/reference/management-api.md#deployment-logs.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from control.edges.sql import log_rows as rows
from control.edges.sql.log_rows import LogTable, Place
from control.edges.sql.store import Store, WriteTx, in_batches, now_ms
from control.records.logs import NS_PER_MS, LogFilter, LogLine
from control.records.times import Millisecond
from control.resources.millisecond_room import MillisecondRoom

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
"""The levels, from the least important up."""
MAX_MESSAGE_CHARS = 16_384
LINES_AT_ONCE = 1000
"""The most lines that one call writes."""
LINES_PER_MS = 500
"""The most lines at one millisecond of a log. Later ones get the next, so that a page can hold all lines of each
that it shows."""
MAX_NS = 9 * 10**18 - 1
"""The latest time that a line may say. A column holds later ones, which lines may get that find no room."""
_DAY_NS = 86_400_000 * NS_PER_MS
_WRITTEN_AT_ONCE = 200
_DELETED_AT_ONCE = 500
"""The lines that one transaction deletes: SQLite has one writer, and others wait for it."""
_GROWTH = 10
"""A log is cut back after it grew by this fraction of a bound."""
_CUT = " … (cut)"
_LAST_ID = 2**63 - 1
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The bounds of each log. `max_bytes`: of its messages in UTF-8."""

    max_lines: int = 100_000
    max_bytes: int = 64 * 1024 * 1024
    retention_days: float = 7.0


def now_ns() -> int:
    return now_ms() * NS_PER_MS


def printable(message: str) -> str:
    r"""The message as it is stored: a control character other than tab and line feed is written as `\x1b`.

    A log is read on terminals, where such characters would act. A message beyond the bound is cut.
    """
    text = message[: MAX_MESSAGE_CHARS + 1].replace("\r\n", "\n").rstrip("\n")
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - len(_CUT)] + _CUT


def with_printable_message(line: LogLine) -> LogLine:
    return replace(line, message=printable(line.message))


class Logs:
    """The logs of one table. Several processes may write them. `write` and `read` name a log by its owner's id."""

    def __init__(self, store: Store, table: LogTable, bounds: LogBounds) -> None:
        self._store = store
        self._table = table
        self._bounds = bounds
        self._turn = asyncio.Lock()
        """The lock of this process' transactions: a flood of lines takes at most every other turn of the database."""
        self._new_lines: Counter[str] = Counter()
        self._new_bytes: Counter[str] = Counter()
        """The bytes that this process has written since the owner's log was cut back."""

    async def write(self, lines: Sequence[tuple[str, LogLine]]) -> None:
        """Write (owner's id, line); lines of unknown owners are dropped."""
        for start in range(0, len(lines), _WRITTEN_AT_ONCE):
            part = [(id, with_printable_message(line)) for id, line in lines[start : start + _WRITTEN_AT_ONCE]]
            async with self._turn:
                await self._store.transact(partial(self.insert, lines=part))
            await self.note_written(part)

    async def insert(self, tx: WriteTx, lines: Sequence[tuple[str, LogLine]], in_order_of: str | None = None) -> None:
        """Write printable lines in the caller's transaction. Call `note_written` after its commit.

        `in_order_of`: the replica that they are all of, if its lines come in their order. Then none gets a millisecond
        that has lines of it from before: somebody who reads on may have read that one.
        """
        owners = await rows.lock_owners(tx, self._table, {id for id, _ in lines})
        owned = [(id, line) for id, line in lines if id in owners]
        if owned:
            await rows.insert_lines(tx, self._table, await self._spread(tx, owned, in_order_of))

    async def _spread(
        self, tx: WriteTx, lines: Sequence[tuple[str, LogLine]], replica: str | None
    ) -> list[tuple[str, LogLine]]:
        """The lines by time. One whose millisecond is full is moved to the beginning of the next that has room."""
        ordered = sorted(lines, key=lambda pair: pair[1].timestamp_ns)
        own = [(id, line.timestamp_ns // NS_PER_MS) for id, line in ordered]
        room = MillisecondRoom(LINES_PER_MS, partial(self._count, tx, replica))
        await room.look_at(dict.fromkeys(own))
        spread = list[tuple[str, LogLine]]()
        for (id, line), (_, ms) in zip(ordered, own, strict=True):
            free_ms = await room.assign(id, ms)
            spread.append((id, line if free_ms == ms else replace(line, timestamp_ns=free_ms * NS_PER_MS)))
        return spread

    async def _count(
        self, tx: WriteTx, replica: str | None, milliseconds: Collection[Millisecond]
    ) -> dict[Millisecond, int]:
        """The lines in each of these milliseconds; as many as fit where the replica has some already."""
        counts = await rows.count_lines(tx.conn, self._table, milliseconds)
        if replica is None or not any(counts.values()):
            return counts
        own = await rows.count_lines(tx.conn, self._table, milliseconds, replica)
        return {place: LINES_PER_MS if own[place] else lines for place, lines in counts.items()}

    async def note_written(self, lines: Sequence[tuple[str, LogLine]]) -> None:
        """Cut back the logs that may have grown beyond their bounds."""
        for id, line in lines:
            self._new_lines[id] += 1
            self._new_bytes[id] += len(line.message.encode())
        for id in dict.fromkeys(id for id, _ in lines):
            if self._may_be_full(id):
                await self.cut_back(id)

    async def read(self, owner_id: str, selection: LogFilter) -> list[LogLine]:
        async with self._store.read() as conn:
            return await rows.read_page(conn, self._table, owner_id, selection)

    async def prune(self) -> int:
        """Cut back every log; delete those of deleted owners. Returns the number of deleted lines."""
        deleted = 0
        id = ""
        while True:
            async with self._store.read() as conn:
                owner = await rows.logged_after(conn, self._table, id)
            if owner is None:
                return deleted
            id = owner
            deleted += await self.cut_back(id)

    async def cut_back(self, owner_id: str) -> int:
        """Delete what is beyond the bounds, and everything if the owner was deleted. Returns the number of lines."""
        del self._new_lines[owner_id], self._new_bytes[owner_id]
        last = await self._newest_to_delete(owner_id)
        return await in_batches(self._store, partial(self._delete, owner_id=owner_id, last=last))

    def _may_be_full(self, owner_id: str) -> bool:
        many_lines = self._new_lines[owner_id] > self._bounds.max_lines / _GROWTH
        return many_lines or self._new_bytes[owner_id] > self._bounds.max_bytes / _GROWTH

    async def _newest_to_delete(self, owner_id: str) -> Place:
        async with self._store.read() as conn:
            if not await rows.owner_exists(conn, self._table, owner_id):
                return _LAST_ID, _LAST_ID
            bounds = self._bounds
            beyond = await rows.newest_beyond(conn, self._table, owner_id, bounds.max_lines, bounds.max_bytes)
        too_old_ns = now_ns() - int(bounds.retention_days * _DAY_NS)
        return max(beyond or (0, 0), (too_old_ns, _LAST_ID))

    async def _delete(self, tx: WriteTx, owner_id: str, last: Place) -> int:
        return await rows.delete_up_to(tx, self._table, owner_id, last, _DELETED_AT_ONCE)
