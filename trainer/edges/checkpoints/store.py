"""The checkpoint store, as all jobs of a trainer share it: a few transfers at a time, and one log line per outage."""

import logging
import threading

from runtime.log_lines import OutageLog
from runtime.object_store import ObjectStore

MAX_TRANSFERS = 4
"""Each may hold a part of a file in memory."""
log = logging.getLogger(__name__)


class Store(ObjectStore):
    """An `ObjectStore` that tells whether it works."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.transfers = threading.BoundedSemaphore(MAX_TRANSFERS)
        self._outage = OutageLog(log)

    def failed(self, reason: str) -> None:
        self._outage.begins(
            f"The checkpoint store {self} cannot be used ({reason}); checkpoints stay SYNCING and are tried again."
            " Check TOLLGATE_CHECKPOINT_STORE, its credentials and its free space"
        )

    def works(self) -> None:
        self._outage.ends(f"The checkpoint store {self} can be used again")
