"""Progress of a policy fetch: in the log every few seconds, and as text for `/readyz`."""

import logging
import time

from policy.snapshot import SnapshotPage

TOLD_EVERY_S = 5.0
"""A fetch that is done sooner is not logged."""
log = logging.getLogger(__name__)


class FetchProgress:
    """The progress of one fetch, which begins when this is made."""

    def __init__(self) -> None:
        self._began_s = self._told_s = time.monotonic()
        self._rows = 0
        self._reached = self._head = 0

    @property
    def text(self) -> str:
        return f"fetching it: {self._rows} rows so far, up to revision {self._reached} of {self._head}"

    def fetched(self, page: SnapshotPage) -> None:
        """Count one more page as written. Pages are in order of revision, so the last row tells how much is left."""
        self._rows += len(page.rows)
        self._head = page.revision
        self._reached = page.rows[-1].revision if page.next is not None and page.rows else page.revision
        if time.monotonic() - self._told_s >= TOLD_EVERY_S:
            self._told_s = time.monotonic()
            log.info(
                "Fetched %d rows of policy so far, up to revision %d of %d.", self._rows, self._reached, self._head
            )

    def ended(self) -> None:
        took_s = time.monotonic() - self._began_s
        if took_s >= TOLD_EVERY_S:
            log.info("Fetched policy: %d rows in %.0f s.", self._rows, took_s)
