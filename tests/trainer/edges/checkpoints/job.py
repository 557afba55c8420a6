"""A job's checkpoint directory, its store, and a clock that a test moves."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from policy.training.reports import CheckpointReport, Restore
from trainer.edges.checkpoints import CheckpointSync, Store

JOB_ID = "job1"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Job:
    """A job that writes checkpoints, and the part under test that looks at them."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.directory = directory
        self.store = store
        self.clock = Clock()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.sync = CheckpointSync(directory, store, JOB_ID, self.clock)

    def restart(self) -> None:
        """The trainer crashed; another one takes over."""
        self.sync = CheckpointSync(self.directory, self.store, JOB_ID, self.clock)

    def write(self, name: str, content: bytes = b"weights", file: str = "model.bin") -> Path:
        path = self.directory / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def delete(self, name: str) -> None:
        shutil.rmtree(self.directory / name)

    async def look(self, after_s: float = 0.0) -> Sequence[CheckpointReport]:
        self.clock.now += after_s
        return await self.sync.run_once()

    async def until(self, condition: Callable[[Sequence[CheckpointReport]], bool]) -> Sequence[CheckpointReport]:
        """Look, a second of the clock apart, until the reports are so."""
        async with asyncio.timeout(20):
            while not condition(reports := await self.look(1.0)):
                await asyncio.sleep(0.002)
        return reports

    async def synced(self, count: int = 1) -> Sequence[CheckpointReport]:
        """Look until this many checkpoints are in the store and none is on its way."""
        return await self.until(
            lambda reports: len(reports) == count and all(one.files is not None for one in reports) and not self.busy
        )

    @property
    def busy(self) -> bool:
        return self.sync.is_syncing


def restore_of(report: CheckpointReport) -> Restore:
    assert report.files is not None
    return Restore(report.name, report.location, report.files)
