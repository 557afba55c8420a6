"""Measures how long the journal's thread has been waiting for the disk: the event loop must not wait with it."""

import contextlib
import time
from collections.abc import Iterator

from proxy.edges.journal.troubles import Troubles

SLOW_S = 0.1
STALLED_S = 10.0
"""Seconds for which calls go on while the disk answers nothing: a power loss would lose their records."""


class DiskWatch:
    """The present wait of the journal's thread. The thread marks its use of the disk; the event loop asks."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._since: float | None = None

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Mark that the thread uses the disk, within the block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None
            self._troubles.clear("stall")

    @property
    def is_slow(self) -> bool:
        """True while the disk keeps the thread waiting; it would keep any other user waiting too."""
        return self._waited_s > SLOW_S

    def note_stall(self) -> None:
        """Refuse new calls once the disk has not answered for `STALLED_S`, until it does."""
        if self._waited_s > STALLED_S:
            self._troubles.set("stall", f"the disk has answered nothing for more than {STALLED_S:g} s")

    @property
    def _waited_s(self) -> float:
        since = self._since
        return 0.0 if since is None else time.monotonic() - since
