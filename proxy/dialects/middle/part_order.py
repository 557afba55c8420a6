"""Puts the events of parallel tool calls in order: each part is complete before the next one begins.

Pure. Some vendors interleave the arguments of several calls; Messages and Responses callers read one part at a time.
What comes while a call is open waits until the arguments of that call are a whole JSON object.
"""

from proxy.dialects.middle.answer import Event, Failed, PartEnded, Stopped, ToolCallDelta, ToolCallStarted
from proxy.dialects.middle.gathering import Budget, ObjectProgress

_OF_CALLS = frozenset((ToolCallStarted, ToolCallDelta))


class PartOrder:
    """Orders the events of one answer. A `PartEnded` follows each tool call."""

    __slots__ = ("_budget", "_open", "_progress", "_waiting")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._open: ToolCallStarted | None = None
        self._progress = ObjectProgress()
        self._waiting: list[Event] = []

    def feed(self, events: list[Event]) -> list[Event]:
        """The events that may go on now. Raises `UpstreamCutError` where too much would have to wait."""
        if self._open is None and _OF_CALLS.isdisjoint(map(type, events)):
            return events
        going: list[Event] = []
        for event in events:
            self._take(event, going)
        return going

    def _take(self, event: Event, going: list[Event]) -> None:
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
            self._budget.spend(len(event.text) if isinstance(event, ToolCallDelta) else 1)
            self._waiting.append(event)
            if self._progress.is_complete:
                self._release(going)

    def _pass(self, event: Event, going: list[Event]) -> None:
        if isinstance(event, ToolCallStarted):
            self._open, self._progress = event, ObjectProgress()
        elif isinstance(event, ToolCallDelta):
            if self._open is None:
                return  # what follows a whole object is no part of it
            if not self._open.custom:
                self._progress.add(event.text)
        going.append(event)

    def _release(self, going: list[Event]) -> None:
        """End the open call; what waited goes on, or waits for the next call."""
        going.append(PartEnded())
        self._open = None
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._take(event, going)

    def _release_all(self, going: list[Event]) -> None:
        """The answer is complete: end the open call, then each call that waited, in the order in which they began."""
        self._waiting = _by_call(self._waiting)
        while self._open is not None:
            self._release(going)


def _by_call(events: list[Event]) -> list[Event]:
    """The events of each call together; all other events after them."""
    order = {event.number: place for place, event in enumerate(events) if isinstance(event, ToolCallStarted)}
    return sorted(events, key=lambda event: _place(event, order, len(events)))


def _place(event: Event, order: dict[int, int], last: int) -> int:
    return order.get(event.number, last) if isinstance(event, ToolCallStarted | ToolCallDelta) else last
