"""A job's checkpoints, from its checkpoint directory into the checkpoint store and back."""

from pathlib import Path

from trainer.backend import ANY_TERMS, CheckpointSource, CheckpointTerms
from trainer.edges.checkpoints.store import Store
from trainer.edges.checkpoints.sync import CheckpointSync
from trainer.settings import CheckpointSizes

__all__ = ["CheckpointSync", "Store", "checkpoints_in"]


def checkpoints_in(url: str, sizes: CheckpointSizes | None = None) -> CheckpointSource:
    """Return a source of checkpoints that share the store at this fsspec URL."""
    store = Store(url, sizes)

    def checkpoints_of(directory: Path, job_id: str, terms: CheckpointTerms = ANY_TERMS) -> CheckpointSync:
        return CheckpointSync(directory, store, job_id, terms=terms)

    return checkpoints_of
