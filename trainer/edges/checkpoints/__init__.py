"""A job's checkpoints, from its checkpoint directory into the checkpoint store and back."""

from collections.abc import Callable
from pathlib import Path

from trainer.edges.checkpoints.store import Store
from trainer.edges.checkpoints.sync import CheckpointSync

__all__ = ["CheckpointSync", "Store", "checkpoints_in"]


def checkpoints_in(url: str) -> Callable[[Path, str], CheckpointSync]:
    """Makes the checkpoints of a job, of their directory and the job's id. All share the store at this fsspec URL."""
    store = Store(url)

    def checkpoints_of(directory: Path, job_id: str) -> CheckpointSync:
        return CheckpointSync(directory, store, job_id)

    return checkpoints_of
