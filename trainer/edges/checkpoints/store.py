"""The checkpoint store, as all jobs of a trainer share it: a few transfers at a time, and one log line per outage."""

import logging
import threading

from runtime.object_store import ObjectStore

MAX_TRANSFERS = 4
"""Each may hold a part of a file in memory."""
log = logging.getLogger(__name__)


class Store(ObjectStore):
    """An `ObjectStore` that tells whether it works."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.transfers = threading.BoundedSemaphore(MAX_TRANSFERS)
        self._is_away = False

    def failed(self, reason: str) -> None:
        if not self._is_away:
            self._is_away = True
            log.error(
                "The checkpoint store %s cannot be used (%s); checkpoints stay SYNCING and are tried again. "
                "Check TOLLGATE_CHECKPOINT_STORE, its credentials, and its free space.",
                self,
                reason,
            )

    def works(self) -> None:
        if self._is_away:
            self._is_away = False
            log.info("The checkpoint store %s can be used again", self)
