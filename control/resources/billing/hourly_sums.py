"""Adds up the events of each hour once it is final: a holdback after its end, none of its events can change.

A crash or a restart loses nothing: each portion is one transaction, and the next one begins where it ended. The same
code adds up what was there before there were sums.

See docs/decisions/0065-hourly-sums.md.
"""

import asyncio
import logging
from dataclasses import dataclass, field, replace
from functools import partial

from control.edges.sql.billing.hourly_progress import (
    HOUR_MS,
    add_events,
    begin_sums,
    full_hour_from,
    portion_end,
    summed_hours,
)
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Connection, Store
from control.edges.sql.workspace_rows import all_workspaces
from control.errors import DatabaseUnavailableError
from control.records.events import EventWindow
from control.resources.billing.progress_log import ProgressLog
from control.resources.billing_events import EventReader
from policy.prices import DAY_MS

log = logging.getLogger(__name__)

LOOK_EVERY_S = 60.0
EVENTS_AT_ONCE = 5_000
"""The events of one transaction: tens of milliseconds, in which SQLite lets nobody else write."""
_CONSEQUENCE = f"reports read events instead, which are kept meanwhile. Retrying in {LOOK_EVERY_S:.0f} s."
_REACHED = "Hourly usage sums are being made, of workspace %s up to %s; reports read the rest from events."
_ENDED = "Hourly usage sums are complete up to %s."
_FAR_MS = 1 << 62


@dataclass(slots=True)
class HourlySumMaker:
    """Makes the sums of one database. Several processes may do so at once. `retention_days`: of events.

    `events_at_once`: in one transaction.
    """

    store: Store
    events: EventReader
    retention_days: float
    events_at_once: int = EVENTS_AT_ONCE
    _made_ms: int = field(default=0, init=False)
    """All hours before this one are added up."""

    async def make_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.make()
            except DatabaseUnavailableError as error:
                log.warning("Making hourly usage sums failed (%s); %s Check the database.", error.reason, _CONSEQUENCE)
            except Exception:  # a bug must not end it: reports would read ever more events
                log.exception("Making hourly usage sums failed; %s Please report this bug.", _CONSEQUENCE)

    async def make(self) -> None:
        """Add up all hours that are final. A portion of each workspace in turn, so that none waits for a large one."""
        window = await self.events.fixed(EventWindow("", 0, _FAR_MS))
        final_ms = window.end_ms - window.end_ms % HOUR_MS
        if final_ms <= self._made_ms:
            return
        async with self.store.read() as conn:
            behind = [record.id for record in await all_workspaces(conn)]
        progress = ProgressLog(log, _REACHED, _ENDED)
        while behind:
            behind = [id for id in behind if await self._add_portion(id, final_ms, progress)]
        progress.ends(final_ms)
        self._made_ms = final_ms

    async def _add_portion(self, workspace_id: str, final_ms: int, progress: ProgressLog) -> bool:
        """Add the workspace's next events. False if it has no others before `final_ms`."""
        async with self.store.read() as conn:
            summed = await summed_hours(conn, workspace_id)
            start_ms = summed.until_ms if summed.is_begun else await self._first_hour(conn)
            window = EventWindow(workspace_id, start_ms, final_ms)
            end_ms = await portion_end(conn, window, self.events_at_once)
        if end_ms is None:
            return False
        if not summed.is_begun:  # before its events are looked at: from now on none of them is deleted
            await self.store.transact(partial(begin_sums, workspace_id=workspace_id, start_ms=start_ms))
            return True
        progress.reaches(workspace_id, end_ms)
        added = await self.store.transact(partial(add_events, window=replace(window, end_ms=end_ms)))
        return end_ms < final_ms or not added

    async def _first_hour(self, conn: Connection) -> int:
        """The first hour that has surely all its events: control's version before may still delete for a while."""
        return full_hour_from(await database_ms(conn) - int(self.retention_days * DAY_MS)) + HOUR_MS
