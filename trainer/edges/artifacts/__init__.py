"""A job's artifacts: archives from the store, unpacked in the nodes' own directories."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from policy.training.artifacts import Artifact
from runtime.object_store import ObjectStore
from runtime.shares.places import Places
from trainer.edges.artifacts.unpacking import unpack_into

__all__ = ["Artifacts"]
MAX_UNPACKED = 4
"""The most archives that are unpacked at a time."""


class Artifacts:
    """The archives in the store at an fsspec URL; satisfies `trainer.backend.ArtifactSource`."""

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)
        self._places = Places(MAX_UNPACKED, "artifacts that are unpacked")

    async def unpack(self, artifacts: Sequence[Artifact], directory: Path, workspace_id: str) -> None:
        """Unpack them, in this order. BackendAwayError if the store is away; ArtifactError."""
        for artifact in artifacts:
            work = partial(unpack_into, directory, self._store, artifact)
            await self._places.run(workspace_id, work, is_bounded=False)
