"""The checkpoint directory of an attempt, on the Ray machine of node 0: an actor that syncs it with the store.

It stays while checkpoints are on their way, when the nodes and their room in the cluster are gone.
See docs/reference/training.md#ray.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from policy.training.reports import Restore
from trainer.backend import JobCheckpoints
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.ray.attempt_directory import AttemptDirectory
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.parts import Synced


class CheckpointActor:
    """The far side of `parts.Checkpoints`."""

    def __init__(self, launch: RayLaunch) -> None:
        self._directory = AttemptDirectory(launch)
        self._directory.lock()
        make: Callable[[Path, str], JobCheckpoints] = checkpoints_in(launch.checkpoint_store)
        self._checkpoints = make(self._directory.checkpoints, launch.job.job_id)

    async def restore(self, restore: Restore) -> None:
        await self._checkpoints.restore(restore)

    async def look(self) -> Synced:
        return Synced(tuple(await self._checkpoints.run_once()), self._checkpoints.is_syncing)

    async def finish(self) -> Synced:
        await self._checkpoints.finish()
        return await self.look()

    async def clean(self) -> None:
        await asyncio.to_thread(self._directory.remove)
