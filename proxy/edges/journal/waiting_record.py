"""A record that waits for the one write of its event-loop tick, with the future of the call that waits for it."""

import asyncio
from typing import NamedTuple


class WaitingRecord(NamedTuple):
    """The open or the close of a call."""

    event_key: str
    record: bytes
    is_open: bool
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
