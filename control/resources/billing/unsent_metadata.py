"""Deletes request metadata that no webhook message carries, and so nothing shows, in portions that a restart keeps.

A message may be sent again as long as it is stored. It was stored with its events, whose timestamps are at most a
holdback before its own: what is older than a workspace's oldest message, less a holdback, is in no message.
"""

import logging
from dataclasses import dataclass, replace
from functools import partial

from control.edges.sql.billing.hourly_progress import portion_end
from control.edges.sql.events.request_metadata import delete_metadata, deleted_until
from control.edges.sql.store import Store
from control.edges.sql.webhook_rows import oldest_deliveries
from control.edges.sql.workspace_rows import all_workspaces
from control.records.events import EventWindow
from control.resources.billing.progress_log import ProgressLog
from control.resources.billing_events import EventReader

log = logging.getLogger(__name__)

EVENTS_AT_ONCE = 250
"""The events of one transaction. With 60 KB each, SQLite lets nobody else write for tens of milliseconds."""
_REACHED = "Request metadata that no webhook is sent is being deleted, of workspace %s up to %s."
_ENDED = "Request metadata that no webhook is sent is deleted up to %s."
_FAR_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class UnsentMetadata:
    """The metadata in one database. Several processes may delete it at once."""

    store: Store
    events: EventReader
    events_at_once: int = EVENTS_AT_ONCE

    async def delete(self) -> int:
        """Delete what no message carries; returns of how many events."""
        window = await self.events.fixed(EventWindow("", 0, _FAR_MS))  # no event comes in for it any more
        async with self.store.read() as conn:
            oldest_ms = await oldest_deliveries(conn)
            workspace_ids = [record.id for record in await all_workspaces(conn)]
        holdback_ms = int(self.events.holdback_s * 1000)
        progress = ProgressLog(log, _REACHED, _ENDED)
        deleted = 0
        for id in workspace_ids:
            until_ms = min(window.end_ms, oldest_ms.get(id, _FAR_MS) - holdback_ms)
            deleted += await self._delete_until(id, until_ms, progress)
        progress.ends(window.end_ms)
        return deleted

    async def _delete_until(self, workspace_id: str, until_ms: int, progress: ProgressLog) -> int:
        total = 0
        while True:
            async with self.store.read() as conn:
                start_ms = await deleted_until(conn, workspace_id)
                window = EventWindow(workspace_id, start_ms, max(start_ms, until_ms))
                end_ms = await portion_end(conn, window, self.events_at_once)
            if end_ms is None:
                return total
            progress.reaches(workspace_id, end_ms)
            portion = replace(window, end_ms=end_ms)
            total += await self.store.transact(partial(delete_metadata, window=portion))
