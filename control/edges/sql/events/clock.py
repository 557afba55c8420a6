"""The time by which events are stamped and served, so that a served window never changes.

Who serves a window first notes the clock here, once all transactions that stamp are through; who stamps later takes the
later of the note and the clock. So the promise rests on an order that the database keeps: a clock that is set back or
forward, or a transaction that hangs, cannot put an event into a window that is gone.

See docs/reference/events-and-webhooks.md#the-holdback.
"""

import logging
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Select, literal_column, select, text, update

from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.tables import event_clock

log = logging.getLogger(__name__)

_CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
}
_LOCK = 0x7011_6A7F  # any number, the same in every process, not the migrations'
SET_BACK_MS = 5_000
"""A clock this far behind the note has been set back; less is the granularity of the note."""
_TELL_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at the clock. `noted_ms`: the latest that a reader was shown."""

    clock_ms: int
    noted_ms: int

    @property
    def now_ms(self) -> int:
        return max(self.clock_ms, self.noted_ms)


class EventClock:
    """The clock of one database. `offset_ms` is for tests: as if the database's clock were set that much forward."""

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms
        self.behind_s = 0.0
        """How far the clock was behind its own latest when it was last looked at."""
        self._told_at_s = float("-inf")

    async def look(self, conn: Connection) -> Moment:
        """What time it is, for a reader."""
        row = (await conn.execute(_query(conn.dialect.name))).one()
        moment = Moment(row[0] + self.offset_ms, row[1])
        behind_ms = moment.noted_ms - moment.clock_ms
        self.behind_s = max(0, behind_ms) / 1e3
        if behind_ms > SET_BACK_MS and time.monotonic() - self._told_at_s > _TELL_EVERY_S:
            self._told_at_s = time.monotonic()
            log.error("the database's clock is %.1f s behind itself: events are stamped by its latest", behind_ms / 1e3)
        return moment

    async def look_to_stamp(self, tx: WriteTx) -> Moment:
        """What time it is, for a transaction that stamps: nobody notes a later one until it is through."""
        if tx.conn.dialect.name == "postgresql":  # on SQLite, writers take turns as it is
            await tx.conn.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": _LOCK})
        return await self.look(tx.conn)

    async def note(self, store: Store, moment: Moment, tolerance_ms: int) -> None:
        """See to it that no later stamp is by an earlier clock than `moment`, less the tolerance.

        Returns once every transaction that looked before is through: one write in so long, however many readers.
        """
        if moment.clock_ms <= moment.noted_ms + tolerance_ms:
            return
        later = update(event_clock).where(event_clock.c.latest_ms < moment.clock_ms)
        async with store.write() as tx:
            if tx.conn.dialect.name == "postgresql":
                await tx.conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            await tx.conn.execute(later.values(latest_ms=moment.clock_ms))


async def database_ms(conn: Connection) -> int:
    """The database's clock as it is: what several processes measure leases by."""
    now_ms: int = (await conn.execute(select(literal_column(_CLOCKS[conn.dialect.name], BigInteger)))).scalar_one()
    return now_ms


def _query(dialect: str) -> Select[Any]:
    return select(literal_column(_CLOCKS[dialect], BigInteger), event_clock.c.latest_ms)
