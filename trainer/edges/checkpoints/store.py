"""The checkpoint store, as all jobs of a trainer share it: a few transfers at a time, and one log line per outage.

Each workspace has a share of the transfers: a checkpoint may take hours.
"""

import logging

from runtime.log_lines import OutageLog
from runtime.object_store import ObjectStore
from runtime.shares.places import Places
from trainer.settings import CheckpointSizes

MAX_TRANSFERS = 4
"""Each may hold a part of a file in memory."""
log = logging.getLogger(__name__)


class Store(ObjectStore):
    """An `ObjectStore` that tells whether it works."""

    def __init__(self, url: str, sizes: CheckpointSizes | None = None) -> None:
        super().__init__(url)
        self.sizes = sizes or CheckpointSizes()
        self.transfers = Places(MAX_TRANSFERS, "transfers of checkpoints")
        self._outage = OutageLog(log)

    def failed(self, reason: str) -> None:
        self._outage.begins(
            f"The checkpoint store {self} cannot be used ({reason}); checkpoints stay SYNCING and are tried again."
            " Check TOLLGATE_CHECKPOINT_STORE, its credentials and its free space."
        )

    def works(self) -> None:
        self._outage.ends(f"The checkpoint store {self} can be used again.")
