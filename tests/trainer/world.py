"""A trainer between a backend and a control in memory, in turns: no test waits for a clock."""

import asyncio
from dataclasses import dataclass, field

from policy.training.statuses import ENDED, Phase
from tests.fakes.training_backend import Attempt, FakeBackend
from tests.fakes.training_control import FakeControl
from trainer import output_shipping
from trainer.sync_loop import SyncLoop

TURNS = 12
"""Turns of the event loop between two rounds: enough for every task to do what it can."""


@dataclass
class World:
    """`rounds` lets the trainer work; `kill` ends it as SIGKILL would, and the next round is a new one's."""

    backend: FakeBackend = field(default_factory=FakeBackend)
    control: FakeControl = field(default_factory=FakeControl)
    now_s: float = 0.0
    loop: SyncLoop | None = None
    incarnation: int = 0

    async def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            await self.trainer.sync()
            await self._settle()
            self.now_s += 0.5

    async def until_ended(self, *job_ids: str, most: int = 400) -> None:
        for _ in range(most):
            if all(self.control.jobs[job_id].status in ENDED for job_id in job_ids):
                return
            await self.rounds()
        raise AssertionError(f"still not ended: {[self.control.statuses[job_id] for job_id in job_ids]}")

    @property
    def trainer(self) -> SyncLoop:
        if self.loop is None:
            self.incarnation += 1
            self.loop = SyncLoop(self.backend, self.control, f"t{self.incarnation}", lambda: self.now_s)
        return self.loop

    async def kill(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.loop = None

    def attempt(self, job_id: str) -> Attempt:
        return self.backend.attempts[job_id]

    def status(self, job_id: str) -> str:
        return self.control.jobs[job_id].status.removeprefix("TRAINING_JOB_")

    def statuses(self, job_id: str) -> list[str]:
        return [status.removeprefix("TRAINING_JOB_") for status in self.control.statuses[job_id]]

    def used(self) -> dict[str, int]:
        """Milli-CPUs that running jobs have on each host."""
        millicpu = {host.name: 0 for host in self.backend.machines}
        for attempt in self.backend.attempts.values():
            for node in attempt.nodes if attempt.phase is not Phase.ENDED else ():
                millicpu[node.host] += attempt.job.spec.resources.millicpu
        return millicpu

    async def _settle(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


def without_pauses(set_attribute: object) -> None:
    """Make deliveries as quick as turns are. `set_attribute`: pytest's `monkeypatch.setattr`."""
    for name in ("PAUSE_S", "AWAY_PAUSE_S", "FAILURE_PAUSE_S"):
        set_attribute(output_shipping, name, 0)  # type: ignore[operator]
