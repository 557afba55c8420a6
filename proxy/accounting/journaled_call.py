"""A call in the journal: its open record, then its close record, and what waits for the one or the other. No I/O."""

from collections.abc import Callable
from typing import Protocol

GoOn = Callable[[Exception | None], None]
"""Callback of a record: gets None once it is written, else why it was refused. Must not raise."""


class UnwrittenRecord(Protocol):
    """A record that the journal writes in a moment."""

    def then(self, go_on: GoOn) -> None:
        """Call `go_on` once the record is written or refused; at once if that is known. One at a time."""
        ...


class JournaledCall:
    """The record of a call that was added last, for the journal to write.

    At most one waits: a call is closed only once its open is written or refused. The journal sets all but `go_on`.
    """

    is_written = False
    refused: Exception | None = None
    """Reason why the record was not written."""
    ends = False
    """The record is the close, which is tried again alone where an open is refused."""
    go_on: GoOn | None = None
    """Set by `then`."""

    def then(self, go_on: GoOn) -> None:
        """See `UnwrittenRecord`."""
        if self.is_written or self.refused is not None:
            go_on(self.refused)
        else:
            self.go_on = go_on

    def tell(self, refused: Exception | None = None) -> None:
        """The record is written, or `refused`."""
        self.is_written = refused is None
        self.refused = refused
        go_on = self.go_on
        self.go_on = None  # it refers to the call, which refers to this
        if go_on is not None:
            go_on(refused)
