"""Brings batches of events to control's ingest, and once more where a restored database has lost them (decision 0019).

Each request names the event that control committed last. A database that lacks it was put back to an earlier state:
control refuses, takes nothing, and all that was kept is sent again, between the batches of new events. Control ignores
the events that it has. It reads no journal and settles nothing.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from proxy.edges.journal.supervisor.shipped_events import ShippedEvents

T = TypeVar("T")
REJECTED_NAME = "rejected.jsonl"
log = logging.getLogger(__name__)


class IngestUnavailableError(Exception):
    """Control has not confirmed the events; they are sent again."""


class EventsRejectedError(Exception):
    """Control calls an event malformed; sending it again would not help."""


class EventsMissingError(Exception):
    """Control no longer has the event that it committed last; it has taken nothing of the batch."""


class IngestClient(Protocol):
    """Control's ingest. Returns once the events are committed."""

    async def post(self, body: bytes) -> None: ...


class Delivery:
    """One request is under way at a time. `open` comes first; every method may raise `IngestUnavailableError`."""

    def __init__(self, directory: Path, ingest: IngestClient, shipped: ShippedEvents, largest: tuple[int, int]) -> None:
        """`largest`: how many events, and about how many bytes of them, one request carries at most."""
        self._directory = directory
        self._ingest = ingest
        self._shipped = shipped
        self._most_events, self._most_bytes = largest
        self._heard_at_s = float("-inf")
        self.rejected = 0
        self.resent = 0
        """Events that were sent again, since start."""

    async def open(self) -> None:
        await in_thread(self._shipped.open)

    async def post(self, events: Sequence[bytes]) -> None:
        """Returns when control has committed these, and they are kept."""
        for part in self._parts(events):
            for committed in await self._post(part):
                await in_thread(self._shipped.keep, committed)

    async def look_back(self, interval_s: float) -> None:
        """Ask whether control still has what it committed, if it was not asked for so long; send a batch of it again if
        it has not."""
        if self._shipped.last_key is not None and time.monotonic() - self._heard_at_s >= interval_s:
            await self._post([])
        batch = await in_thread(self._shipped.next_to_resend)
        if batch is not None:
            await self._post(batch.events)
            await in_thread(self._shipped.resent, batch)
            self.resent += len(batch.events)

    def doubt(self) -> None:
        """Ask at the next look: control's database may have been restored."""
        self._heard_at_s = float("-inf")

    async def _post(self, events: list[bytes]) -> list[list[bytes]]:
        """Send these; which of them were committed. One that control calls malformed is set aside, lest it hold up all
        that come after it."""
        try:
            await self._ingest.post(self._body(events))
        except EventsMissingError:
            await in_thread(self._shipped.begin_resend)
            return await self._post(events)
        except EventsRejectedError as error:
            if len(events) > 1:
                middle = len(events) // 2
                return await self._post(events[:middle]) + await self._post(events[middle:])
            if events:
                await in_thread(self._set_aside, events[0], str(error))
            return []
        self._heard_at_s = time.monotonic()
        return [events] if events else []

    def _body(self, events: list[bytes]) -> bytes:
        last_key = self._shipped.last_key
        after = b"" if last_key is None else b'"after":"%b",' % last_key.encode()
        return b'{%b"events":[%b]}' % (after, b",".join(events))

    def _parts(self, events: Sequence[bytes]) -> list[list[bytes]]:
        """Cut into what one request may carry."""
        parts: list[list[bytes]] = [[]]
        size = 0
        for encoded in events:
            size += len(encoded)
            if parts[-1] and (len(parts[-1]) >= self._most_events or size > self._most_bytes):
                parts.append([])
                size = len(encoded)
            parts[-1].append(encoded)
        return parts

    def _set_aside(self, event: bytes, reason: str) -> None:
        self.rejected += 1
        log.error("control rejects an event (%s): kept in %s", reason, REJECTED_NAME)
        fd = os.open(self._directory / REJECTED_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, event + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run `work` off the loop. Cancelled, it still waits for the thread: what that works on must not be let go of, for
    a descriptor closed under it, or twice, may by then be another's."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if (error := running.exception()) is not None:
            log.error("the shipper stumbled while it was stopped", exc_info=error)
        raise
