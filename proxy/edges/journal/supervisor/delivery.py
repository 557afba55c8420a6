"""Sends batches of events to control's ingest, and sends them again after control's database was restored.

Each request names the event that control committed last. A database that was restored to an earlier state lacks it, so
control refuses the batch. Then all shipped events are sent again, between batches of new ones; control ignores those
that it has. Reads no journal and settles nothing. See decision 0019.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from proxy.edges.journal.supervisor.shipped_events import ShippedEvents
from runtime.log_lines import cause_of

T = TypeVar("T")
REJECTED_NAME = "rejected.jsonl"
log = logging.getLogger(__name__)


class IngestUnavailableError(Exception):
    """Control has not confirmed the events. They are sent again later."""


class EventsRejectedError(Exception):
    """Control calls an event malformed. Sending it again would not help."""


class EventsMissingError(Exception):
    """Control no longer has the event that it committed last. It has taken nothing of the batch."""


class IngestClient(Protocol):
    """A client of control's ingest. `post` returns once the events are committed."""

    async def post(self, body: bytes) -> None: ...


class Delivery:
    """Sends one request at a time. Call `open` first. `post` and `look_back` may raise `IngestUnavailableError`."""

    def __init__(
        self, directory: Path, ingest: IngestClient, shipped: ShippedEvents, max_request: tuple[int, int]
    ) -> None:
        """`max_request`: the most events, and about the most bytes of events, in one request."""
        self._directory = directory
        self._ingest = ingest
        self._shipped = shipped
        self._max_events, self._max_bytes = max_request
        self._answered_at_s = float("-inf")
        self.rejected = 0
        self.resent = 0
        """Events sent again since start."""

    async def open(self) -> None:
        await in_thread(self._shipped.open)

    async def post(self, events: list[bytes]) -> None:
        """Send these events. Each leaves the list once control has committed it and it is kept for a resend."""
        for part in self._split(events):
            for committed in await self._post(part):
                await in_thread(self._shipped.keep, committed)
            del events[: len(part)]

    async def look_back(self, interval_s: float) -> None:
        """Send one batch of a resend, if one is due.

        First ask control whether it still has what it committed, if it has not answered for `interval_s`.
        """
        if self._shipped.last_key is not None and time.monotonic() - self._answered_at_s >= interval_s:
            await self._post([])
        if not self._shipped.resending:  # a thread costs as much as reading some hundred records
            return
        batch = await in_thread(self._shipped.next_to_resend)
        if batch is not None:
            await self._post(batch.events)
            await in_thread(self._shipped.resent, batch)
            self.resent += len(batch.events)

    def check_control(self) -> None:
        """Ask at the next `look_back`, whatever its interval: control's database may have been restored."""
        self._answered_at_s = float("-inf")

    async def _post(self, events: list[bytes]) -> list[list[bytes]]:
        """Send these events and return those that were committed. An event that control calls malformed is found by
        halving and moved to a file, so that it does not block the events after it."""
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
                await in_thread(self._move_to_rejected, events[0], str(error))
            return []
        self._answered_at_s = time.monotonic()
        return [events] if events else []

    def _body(self, events: list[bytes]) -> bytes:
        last_key = self._shipped.last_key
        after = b"" if last_key is None else b'"after":"%b",' % last_key.encode()
        return b'{%b"events":[%b]}' % (after, b",".join(events))

    def _split(self, events: Sequence[bytes]) -> list[list[bytes]]:
        """Split the events into requests."""
        parts: list[list[bytes]] = [[]]
        size = 0
        for encoded in events:
            size += len(encoded)
            if parts[-1] and (len(parts[-1]) >= self._max_events or size > self._max_bytes):
                parts.append([])
                size = len(encoded)
            parts[-1].append(encoded)
        return parts

    def _move_to_rejected(self, event: bytes, reason: str) -> None:
        self.rejected += 1
        log.error(
            "Control rejected an event as malformed (%s); it was moved to %s and is not billed. Report it as a bug.",
            reason,
            self._directory / REJECTED_NAME,
        )
        fd = os.open(self._directory / REJECTED_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, event + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run `work` in a thread. A cancelled call still waits for the thread: a file descriptor that is closed while the
    thread uses it may already belong to another file."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if (error := running.exception()) is not None:
            log.error(
                "Event shipper failed during shutdown (%s); unshipped events stay in the journal and are sent after the"
                " next start.",
                cause_of(error),
                exc_info=error,
            )
        raise
