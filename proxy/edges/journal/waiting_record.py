"""Records that wait for the one write of their event-loop tick, and the calls that wait for them."""

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple


class WaitingOpen:
    """The open record of a call. Implements `proxy.exchange.OpenRecord`."""

    __slots__ = ("_go_on", "_refused", "event_key", "is_written", "record")

    def __init__(self, event_key: str, record: bytes) -> None:
        self.event_key = event_key
        self.record = record
        self.is_written = False
        self._refused: Exception | None = None
        self._go_on: Callable[[Exception | None], None] | None = None

    def then(self, go_on: Callable[[Exception | None], None]) -> None:
        """Call `go_on` when the record is written, with None, or with why it was refused; at once if that is known."""
        if self.is_written or self._refused is not None:
            go_on(self._refused)
        else:
            self._go_on = go_on

    def tell(self, refused: Exception | None = None) -> None:
        """The record is written, or `refused`."""
        self.is_written, self._refused = refused is None, refused
        go_on, self._go_on = self._go_on, None  # it refers to the call, which refers to this
        if go_on is not None:
            go_on(refused)


class WaitingClose(NamedTuple):
    """The close record of a call."""

    event_key: str
    record: bytes
    written: asyncio.Future[None]
    """One per record: a cancelled task cancels the future that it awaits."""

    def tell(self, failure: Exception | None = None) -> None:
        """Wake the call. `failure`: why the record was not written."""
        if self.written.done():  # the call was cancelled
            return
        if failure is None:
            self.written.set_result(None)
        else:
            self.written.set_exception(failure)
            self.written.exception()  # mark it as retrieved: nobody awaits the end of a cancelled call; it is logged


WaitingRecord = WaitingOpen | WaitingClose
record_of = attrgetter("record")
