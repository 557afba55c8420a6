"""Keeps the checkpoints of one attempt on their way into the store, while it runs and after its end."""

import asyncio
import logging
from collections.abc import Sequence

from policy.training.reports import CheckpointReport
from runtime.background import is_set_within
from trainer.backend import JobCheckpoints

_EVERY_S = 0.5
_AFTER_FAILURE_S = 5.0
_FAILED = "Checkpoints of job %s could not be synced; trying again. Please report this bug."
log = logging.getLogger(__name__)


class CheckpointLoop:
    """`run` ends once the attempt has ended and all its checkpoints are in the store."""

    def __init__(self, checkpoints: JobCheckpoints, job_id: str) -> None:
        self._checkpoints = checkpoints
        self._job_id = job_id
        self._reports: Sequence[CheckpointReport] = ()
        self._ended = asyncio.Event()
        self._is_finished = False

    @property
    def reports(self) -> Sequence[CheckpointReport]:
        return self._reports

    @property
    def is_syncing(self) -> bool:
        """Return whether, after the end of the attempt, something is not in the store yet."""
        return self._checkpoints.is_syncing or (self._ended.is_set() and not self._is_finished)

    @property
    def refusal(self) -> str | None:
        return self._checkpoints.refusal

    def end(self) -> None:
        """The attempt has ended: nothing changes its directory any more."""
        self._ended.set()

    async def run(self) -> None:
        while not self._ended.is_set():
            await self._look()
            await is_set_within(self._ended, _EVERY_S)
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look_for_ever())
            await self._finish()
            looking.cancel()
        await self._look()
        self._is_finished = True

    async def _look_for_ever(self) -> None:
        """`finish` may take long, when the store is away. Control learns of each checkpoint meanwhile."""
        while True:
            await self._look()
            await asyncio.sleep(_EVERY_S)

    async def _look(self) -> None:
        try:
            self._reports = await self._checkpoints.run_once()
        except Exception:
            log.exception(_FAILED, self._job_id)
            await asyncio.sleep(_AFTER_FAILURE_S)

    async def _finish(self) -> None:
        while True:
            try:
                await self._checkpoints.finish()
            except Exception:
                log.exception(_FAILED, self._job_id)
                await asyncio.sleep(_AFTER_FAILURE_S)
            else:
                return
