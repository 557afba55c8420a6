"""Puts the events of parallel tool calls in order: each part is complete before the next one begins.

Pure. Some vendors interleave the arguments of several calls; Messages and Responses callers read one part at a time.
What comes while a call is open waits until the arguments of that call are a whole JSON object.
"""

from collections import deque

from proxy.dialects.middle.answer import AnswerEvent, Failed, PartEnded, Stopped, ToolCallDelta, ToolCallStarted
from proxy.dialects.middle.gathering import Budget, ObjectProgress

_OF_CALLS = frozenset((ToolCallStarted, ToolCallDelta))


class PartOrder:
    """Orders the events of one answer. A `PartEnded` follows each tool call."""

    __slots__ = ("_budget", "_deltas", "_open", "_progress", "_queue")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._open: ToolCallStarted | None = None
        self._progress = ObjectProgress()
        self._queue: deque[AnswerEvent] = deque()
        """Events that wait for the end of the open call; deltas of calls are in `_deltas`."""
        self._deltas: dict[int, list[ToolCallDelta]] = {}
        """The deltas of each call that waits, by its number."""

    def feed(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        """The events that may go on now. Raises `UpstreamCutError` where too much would have to wait."""
        if self._open is None and _OF_CALLS.isdisjoint(map(type, events)):
            return events
        going: list[AnswerEvent] = []
        for event in events:
            self._handle(event, going)
        return going

    def _handle(self, event: AnswerEvent, going: list[AnswerEvent]) -> None:
        if self._open is None or (isinstance(event, ToolCallDelta) and event.number == self._open.number):
            self._pass(event, going)
        elif isinstance(event, Stopped):
            self._release_all(going)
            going.append(event)
        elif isinstance(event, Failed):  # what waits belongs to calls that are never complete
            going.append(event)
        elif isinstance(event, PartEnded):
            self._release(going)
        else:
            self._wait(event)
            while self._progress.is_complete and self._queue and self._open is not None:
                self._release(going)

    def _pass(self, event: AnswerEvent, going: list[AnswerEvent]) -> None:
        if isinstance(event, ToolCallStarted):
            self._open = event
            self._progress = ObjectProgress()
        elif isinstance(event, ToolCallDelta):
            if self._open is None:
                return  # what follows a whole object is no part of it
            if not self._open.custom:
                self._progress.add(event.text)
        going.append(event)

    def _wait(self, event: AnswerEvent) -> None:
        if not isinstance(event, ToolCallDelta):
            self._budget.spend(1)
            self._queue.append(event)
            if isinstance(event, ToolCallStarted):
                self._deltas.setdefault(event.number, [])
        elif event.number in self._deltas:
            self._budget.spend(len(event.text))
            self._deltas[event.number].append(event)

    def _release(self, going: list[AnswerEvent]) -> None:
        """End the open call. What waited goes on, up to the next call and its deltas so far."""
        going.append(PartEnded())
        self._open = None
        self._pass_waiting(going)

    def _pass_waiting(self, going: list[AnswerEvent]) -> None:
        while self._queue and self._open is None:
            self._pass(self._queue.popleft(), going)
        if self._open is not None:
            for delta in self._deltas.pop(self._open.number, ()):
                self._pass(delta, going)

    def _release_all(self, going: list[AnswerEvent]) -> None:
        """The answer is complete: end the open call, then each call that waited, in the order in which they began."""
        self._queue = deque(sorted(self._queue, key=lambda event: not isinstance(event, ToolCallStarted)))
        while self._open is not None:
            self._release(going)
