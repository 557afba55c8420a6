"""Delivers each event of the list once: what was delivered is recorded before the next batch is sent.

A forwarder that dies between delivery and record sends the same events again with the same ids, and the receiver drops
those that it has. See docs/reference/forwarding.md#exactly-once.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from commands.errors import ManagementError
from commands.forward.event_batches import Batch, EventList
from commands.forward.retries import Retries
from commands.records.billing_events import Event
from commands.records.progress import Progress
from commands.records.receiver import Receiver, ReceiverAwayError, ReceiverError, RefusedEvent


class RefusedEventError(ManagementError):
    """The receiver refuses an event for good, and there is no file for such events."""


class InDoubtError(ManagementError):
    """Events may have been delivered, so long ago that the receiver would count them again."""


class State(Protocol):
    """The durable record of deliveries: `commands/edges/forwarding/forwarder_state.py`."""

    @property
    def progress(self) -> Progress: ...

    def known(self, keys: Sequence[str]) -> set[str]: ...

    def save(self, progress: Progress, delivered: Iterable[str] = ()) -> None: ...

    def note_doubt(self, since_s: float | None) -> None: ...


class DeadLetters(Protocol):
    """A file of refused events."""

    @property
    def length(self) -> int: ...

    def open(self, length: int | None) -> None: ...

    def append(self, values: Sequence[Any]) -> int: ...


@dataclass(frozen=True, slots=True)
class Options:
    """`follow_s`: look for new events that often, for ever; None: end when all that is final was delivered."""

    retries: Retries
    tell: Callable[[Progress], None]
    follow_s: float | None = None
    dead_letters: DeadLetters | None = None
    resends_in_doubt: bool = False


class Forwarder:
    """One run over a list, from where the state says to its end, or for ever."""

    def __init__(self, events: EventList, receiver: Receiver, state: State, options: Options) -> None:
        self._events = events
        self._receiver = receiver
        self._state = state
        self._options = options

    async def run(self) -> None:
        """Raises ManagementError: what was delivered is recorded, and the next run goes on from there."""
        self._recover()
        while True:
            async for batch in self._events.batches(self._state.progress.position, self._receiver.batch_events):
                await self._forward(batch)
                self._options.tell(self._state.progress)
            if self._options.follow_s is None or self._events.is_over(self._state.progress.position):
                return
            await asyncio.sleep(self._options.follow_s)

    def _recover(self) -> None:
        """Bring the receiver and the state together: a forwarder may have died between the two."""
        progress = self._state.progress
        recovery = self._receiver.recover(progress.mark)
        if recovery is not None:
            forwarded = progress.forwarded + len(recovery.keys)
            progress = replace(progress, position=recovery.position, mark=recovery.mark, forwarded=forwarded)
            self._state.save(progress, recovery.keys)
        elif progress.mark is None:
            self._state.save(replace(progress, mark=0))
        if self._options.dead_letters is not None:
            self._begin_dead_letters(self._options.dead_letters)
        if self._options.resends_in_doubt:
            self._state.note_doubt(None)

    def _begin_dead_letters(self, letters: DeadLetters) -> None:
        """Record the length before the first letter: one that is not recorded is cut off, and written again."""
        letters.open(self._state.progress.dead_letter_bytes)
        if letters.length != self._state.progress.dead_letter_bytes:
            self._state.save(replace(self._state.progress, dead_letter_bytes=letters.length))

    async def _forward(self, batch: Batch) -> None:
        repeats = self._state.known([event.key for event in batch.events])
        fresh = [event for event in batch.events if event.key not in repeats]
        refused, mark = await self._deliver(fresh) if fresh else ([], self._state.progress.mark)
        if refused and self._options.dead_letters is None:
            self._stop(fresh, refused)
        progress = self._state.progress
        progress = replace(
            progress,
            position=batch.after,
            forwarded=progress.forwarded + len(fresh) - len(refused),
            repeated=progress.repeated + len(repeats),
            dead_letters=progress.dead_letters + len(refused),
            dead_letter_bytes=self._bury(refused),
            mark=mark,
            in_doubt_since_s=None,
        )
        self._state.save(progress, [event.key for event in fresh])

    async def _deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int | None]:
        async def delivery_attempt() -> tuple[list[RefusedEvent], int]:
            doubt_s = self._doubt(events)
            try:
                return await self._receiver.deliver(events)
            except (ReceiverAwayError, ReceiverError) as error:
                if doubt_s is None and not error.is_in_doubt:
                    self._state.note_doubt(None)
                raise

        return await self._options.retries.until_done(delivery_attempt)

    def _doubt(self, events: Sequence[Event]) -> float | None:
        """Return since when it is unknown whether the receiver has some of these events; from now on it is unknown."""
        since_s = self._state.progress.in_doubt_since_s
        remembers_s = self._receiver.remembers_s
        if remembers_s is None:
            return None
        now_s = time.time()
        if since_s is not None and now_s - since_s > remembers_s:
            raise InDoubtError(
                f"events from {events[0].key} ({events[0].timestamp}) on were sent {(now_s - since_s) / 3600:.0f} hours"
                f" ago without an answer, and the receiver forgets ids after {remembers_s / 3600:.0f} hours.\n"
                "Look there whether it has them. If it has none, run this again with --resend-in-doubt"
            )
        self._state.note_doubt(since_s or now_s)
        return since_s

    def _stop(self, events: Sequence[Event], refused: Sequence[RefusedEvent]) -> None:
        """Raise RefusedEventError. What was taken is recorded first: the receiver may have forgotten it by the time
        that the refused event is mended."""
        keys = {one.event.key for one in refused}
        progress = self._state.progress
        keys_taken = [event.key for event in events if event.key not in keys]
        doubt_s = progress.in_doubt_since_s if any(one.is_partly_taken for one in refused) else None
        forwarded = progress.forwarded + len(keys_taken)
        self._state.save(replace(progress, forwarded=forwarded, in_doubt_since_s=doubt_s), keys_taken)
        first = refused[0]
        raise RefusedEventError(
            f"the receiver refuses event {first.event.key} ({first.event.entity!r}, {first.event.timestamp}):"
            f" {first.reason}.\nMend it there, or give --dead-letter FILE to put such events aside"
        )

    def _bury(self, refused: Sequence[RefusedEvent]) -> int | None:
        if not refused or self._options.dead_letters is None:
            return self._state.progress.dead_letter_bytes
        return self._options.dead_letters.append([{"reason": one.reason, "event": one.event.listed} for one in refused])
