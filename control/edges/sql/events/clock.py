"""The clock that stamps events and bounds served windows, so that a served window never changes.

Before a reader serves a window, it records the clock here, after all stamping transactions have ended. A later stamp
uses the recorded clock if that is ahead. The database enforces this order: neither a clock that is set nor a
transaction that hangs can put an event into a served window.

See docs/reference/events-and-webhooks.md#the-holdback.
"""

import logging
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ScalarSelect, Select, literal_column, select, text, update

from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.tables import event_clock

log = logging.getLogger(__name__)

_CLOCKS = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
}
_LOCK = 0x7011_6A7F  # any number: the same in every process, different from the migrations'
SET_BACK_MS = 5_000
"""A clock this far behind the recorded one has been set back; less is the record's granularity."""
_LOG_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One reading. `recorded_ms`: the latest clock that a reader has seen."""

    clock_ms: int
    recorded_ms: int

    @property
    def now_ms(self) -> int:
        return max(self.clock_ms, self.recorded_ms)


class EventClock:
    """The clock of one database."""

    def __init__(self) -> None:
        self.behind_s = 0.0
        """The seconds by which the clock was behind the recorded one at the last reading."""
        self._logged_at_s = float("-inf")

    async def read(self, conn: Connection) -> ClockReading:
        """The time, for a reader."""
        reading = await self._read(conn)
        behind_ms = reading.recorded_ms - reading.clock_ms
        self.behind_s = max(0, behind_ms) / 1e3
        if behind_ms > SET_BACK_MS and time.monotonic() - self._logged_at_s > _LOG_INTERVAL_S:
            self._logged_at_s = time.monotonic()
            log.error(
                "The database's clock was set back by %.1f s; events keep the later time until it catches up."
                " Check the server's time synchronization.",
                behind_ms / 1e3,
            )
        return reading

    async def _read(self, conn: Connection) -> ClockReading:
        return ClockReading(*(await conn.execute(_query(conn.dialect.name))).one())

    async def read_to_stamp(self, tx: WriteTx) -> ClockReading:
        """The time, for a transaction that stamps events. No reader records a later one before it ends."""
        if tx.conn.dialect.name == "postgresql":  # SQLite already serializes writers
            await tx.conn.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": _LOCK})
        return await self.read(tx.conn)

    async def record(self, store: Store, reading: ClockReading, tolerance_ms: int) -> None:
        """Ensure that no later stamp is earlier than `reading` minus the tolerance.

        Returns once every transaction that read the clock before has ended. Writes at most once per tolerance,
        however many readers there are.
        """
        if reading.clock_ms <= reading.recorded_ms + tolerance_ms:
            return
        later = update(event_clock).where(event_clock.c.latest_ms < reading.clock_ms)
        async with store.write() as tx:
            if tx.conn.dialect.name == "postgresql":
                await tx.conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            await tx.conn.execute(later.values(latest_ms=reading.clock_ms))


async def database_ms(conn: Connection) -> int:
    """The database's clock, unadjusted. Several processes measure leases by it."""
    now_ms: int = (await conn.execute(_database_clock(conn.dialect.name))).scalar_one()
    return now_ms


def database_clock(dialect: str) -> ScalarSelect[int]:
    """The same, for a query that needs it. As a subquery it is read once, before an index is searched by it."""
    return _database_clock(dialect).scalar_subquery()


def _database_clock(dialect: str) -> Select[int]:
    return select(literal_column(_CLOCKS[dialect], BigInteger))


def _query(dialect: str) -> Select[Any]:
    return select(literal_column(_CLOCKS[dialect], BigInteger), event_clock.c.latest_ms)
