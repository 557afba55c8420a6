"""Follows the log of one attempt's driver into its spool, through outages, up to the driver's end.

See docs/reference/training.md#ray.
"""

import asyncio
import logging
from pathlib import Path

from policy.training.statuses import Outcome
from runtime.log_lines import cause_of
from trainer.backend import BackendAwayError, OutputChunk
from trainer.edges.ray.cluster import RayCluster
from trainer.edges.ray.spool import Spool

_PAUSE_S = 1.0
_MAX_FAILURES_AFTER_END = 15
"""The time after which the end is reported without what is missing of the log."""
_STOP_FILE = "stop"
log = logging.getLogger(__name__)


class Follower:
    """Begins to follow at once. Keeps on disk what a stop was meant to be, for the next trainer."""

    def __init__(self, cluster: RayCluster, submission_id: str, directory: Path) -> None:
        self.spool = Spool(directory)
        self.is_done = False
        """The driver has ended, and all that it told was taken; or Ray no longer has the job."""
        self._cluster = cluster
        self._submission_id = submission_id
        self._stop_file = directory / _STOP_FILE
        self.stop_outcome = self._read_stop()
        self._failures = 0
        self._following = asyncio.ensure_future(self._follow())

    def stop_is_asked(self, outcome: Outcome) -> None:
        """Keep what the end will mean. STOPPED wins over REQUEUED."""
        if self.stop_outcome is not Outcome.STOPPED:
            self.stop_outcome = outcome
            self._stop_file.parent.mkdir(parents=True, exist_ok=True)
            self._stop_file.write_text(outcome.value)

    def _read_stop(self) -> Outcome | None:
        try:
            return Outcome(self._stop_file.read_text())
        except FileNotFoundError:
            return None
        except ValueError:  # the disk was full when it was written
            return Outcome.STOPPED

    def output(self, rank: int, offset: int) -> OutputChunk:
        return self.spool.chunk(rank, offset, self.is_done)

    async def _follow(self) -> None:
        while not self.is_done:
            self.spool.begin()
            self.is_done = await self._is_over(await self._read())
            if not self.is_done:
                await asyncio.sleep(_PAUSE_S)

    async def _read(self) -> bool:
        """Read the log from its start to its end. False if that failed."""
        try:
            async for chunk in self._cluster.log(self._submission_id):
                self.spool.feed(chunk)
        except BackendAwayError as error:
            log.info("Ray's log of %s cannot be read now (%s); retrying.", self._submission_id, cause_of(error))
            return False
        except (KeyError, TypeError, ValueError) as error:
            log.warning(
                "Ray's log of %s has a damaged record (%s). It is read again.", self._submission_id, cause_of(error)
            )
            return False
        return True

    async def _is_over(self, was_read: bool) -> bool:
        """Return whether there is no more to read. Counts the failures to read the log of a driver that has ended."""
        try:
            jobs = await self._cluster.jobs()
        except BackendAwayError:
            return False
        details = next((job for job in jobs if job.submission_id == self._submission_id), None)
        if details is None or not details.has_ended:
            return details is None
        self._failures += not was_read
        return was_read or self._failures >= _MAX_FAILURES_AFTER_END

    async def remove(self) -> None:
        await self.close()
        self.spool.remove()

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
