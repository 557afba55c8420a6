"""The checkpoint directory of an attempt, on the Ray machine of node 0: an actor that syncs it with the store.

It stays while checkpoints are on their way, when the nodes and their room in the cluster are gone.
See docs/reference/training.md#ray.
"""

import asyncio

from policy.training.reports import Restore
from trainer.backend import CheckpointTerms
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.ray.driver.attempt_place import AttemptPlace
from trainer.edges.ray.driver.driver_parts import Synced
from trainer.edges.ray.launch import RayLaunch
from trainer.settings import CheckpointSizes

_LOOK_EVERY_S = 1.0


class CheckpointActor:
    """The far side of `parts.Checkpoints`."""

    def __init__(self, launch: RayLaunch) -> None:
        self._place = AttemptPlace(launch)
        self._place.lock()
        make = checkpoints_in(launch.checkpoint_store, CheckpointSizes(launch.checkpoint_max_bytes))
        job = launch.job
        terms = CheckpointTerms(job.workspace_id, job.spec.checkpoint_max_gib)
        self._checkpoints = make(self._place.checkpoints, job.job_id, terms)
        self._finishing: asyncio.Future[None] | None = None

    async def restore(self, restore: Restore) -> None:
        await self._checkpoints.restore(restore)

    async def look(self) -> Synced:
        reports = tuple(await self._checkpoints.run_once())
        return Synced(reports, self._checkpoints.is_syncing, self._checkpoints.refusal)

    async def finish(self) -> Synced:
        """Returns after a moment, synced or not: the driver tells how far it is."""
        if self._finishing is None:
            self._finishing = asyncio.ensure_future(self._checkpoints.finish())
        over, _ = await asyncio.wait((self._finishing,), timeout=_LOOK_EVERY_S)
        for finished in over:
            finished.result()
        return Synced(tuple(await self._checkpoints.run_once()), not over, self._checkpoints.refusal)

    async def clean(self) -> None:
        await asyncio.to_thread(self._place.remove)
