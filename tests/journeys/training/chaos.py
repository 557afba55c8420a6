"""The chaos program for training: kills and restarts parts of the real product, and accounts for every job.

`python -m tests.journeys.training.chaos --minutes 10 --seed 7` prints its progress and a verdict; it exits with 0 only
if it found no fault.
"""

import asyncio
import contextlib
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.journeys.chaos_program import Plan, Say, main, paused, send
from tests.journeys.product import OperatorClient, Product
from tests.journeys.training.conftest import SETTINGS
from tests.journeys.training.scene import ENDED, Job, Training, job_body
from tests.journeys.training.test_faults import processes_of
from tests.waiting import eventually

JOBS_AT_ONCE = 4
SETTLE_S = 120.0
PAUSE_S = 0.3, 2.0
"""Seconds between two disturbances, at least and at most."""
TICKS = "i=0; while [ $i -lt {steps} ]; do i=$((i+1)); echo tick $i; sleep 0.1; done; exit {status}"
KINDS = ("trainer", "trainer", "trainer stopped", "control", "control stopped", "up", "restart")


@dataclass(slots=True)
class Asked:
    """A job as it was asked for, and what was seen of it. `name`: in its environment, so that it can be found."""

    name: str
    steps: int
    status: int
    id: str = ""
    ended: list[str] = field(default_factory=list)
    """Each different final status that was read."""
    log: list[str] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        environment = {"environment_variables": {"NAME": self.name}}
        return job_body(TICKS.format(steps=self.steps, status=self.status), name=self.name, runtime=environment)


def faults_of(job: Asked, was_restarted: bool) -> list[str]:
    """A job runs once, to its own end, and its log has each line once. An ordered stop of the product stops it."""
    expected = "FAILED" if job.status else "COMPLETED"
    ticks = [line for line in job.log if line.startswith("tick")]
    all_ticks = [f"tick {number}" for number in range(1, job.steps + 1)]
    faults = []
    if len(job.ended) != 1:
        faults.append(f"{job.name}: ended as {job.ended}")
    elif job.ended[0] == "STOPPED" and was_restarted:
        if ticks != all_ticks[: len(ticks)]:
            faults.append(f"{job.name}: its log has {ticks}")
    elif job.ended[0] != expected:
        faults.append(f"{job.name}: {job.ended[0]} instead of {expected}")
    elif ticks != all_ticks:
        faults.append(f"{job.name}: its log has {ticks} instead of {job.steps} ticks")
    return faults


@dataclass
class Rig:
    """A product that trains, its operator, and the jobs so far."""

    training: Training
    rng: random.Random
    say: Say
    jobs: list[Asked] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _job_count: int = 0

    @property
    def product(self) -> Product:
        return self.training.product

    async def owner(self, ends: asyncio.Event) -> None:
        """Ask for one job after the other, and look at each until it ends."""
        while not ends.is_set():
            self._job_count += 1
            job = Asked(f"job-{self._job_count}", self.rng.randint(1, 40), self.rng.choice((0, 0, 3)))
            await self._create(job)
            while job.id and not job.ended and not ends.is_set():
                await self.look(job)
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.2)

    async def _create(self, job: Asked) -> None:
        """Create the job. Without an answer it may run or not: `adopt` finds out."""
        self.jobs.append(job)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            body = {"training_job": job.body}
            status, answer = await self.training.operator.ask("POST", self.training.jobs, body)
            assert status in (200, 503), (status, answer)
            if status == 200:
                job.id = answer["training_job"]["id"]

    async def look(self, job: Asked) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            status, answer = await self.training.operator.ask("GET", f"{self.training.jobs}/{job.id}")
            if status == 503:
                return
            assert status == 200, (status, answer)
            job_status = answer["training_job"]["current_status"].removeprefix("TRAINING_JOB_")
            if job_status in ENDED and job_status not in job.ended:
                job.ended.append(job_status)

    async def adopt(self) -> list[str]:
        """Find the jobs whose creation was not answered; drop those that were not made. Returns the faults."""
        jobs = await self.training.search(project_id=self.training.project)
        ids = [(job["name"], job["id"]) for job in jobs]
        faults = [f"{name} was made twice" for name, count in Counter(name for name, _ in ids).items() if count > 1]
        id_of = dict(ids)
        for job in self.jobs:
            if job.id and id_of.get(job.name) != job.id:
                faults.append(f"{job.name} was accepted as {job.id} and is not listed")
            job.id = id_of.get(job.name, "")
        self.jobs = [job for job in self.jobs if job.id]
        return faults


async def inject(rig: Rig, seconds: float) -> None:
    """Disturb the product for so long."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while loop.time() < ends_at:
        await asyncio.sleep(rig.rng.uniform(*PAUSE_S))
        kind = rig.rng.choice(KINDS)
        rig.counts[kind] += 1
        rig.say(f"{kind} (jobs so far: {len(rig.jobs)})")
        await _disturb(rig, kind)


async def _disturb(rig: Rig, kind: str) -> None:
    product = rig.product
    part, _, stopped = kind.partition(" ")
    if kind == "restart":
        assert await asyncio.to_thread(product.stop) == 0
        await asyncio.to_thread(product.start)
    elif kind == "up":
        await asyncio.to_thread(product.kill)
        await asyncio.to_thread(product.start)
    elif stopped:
        with paused(product.processes(f"-m {part} --")):
            await asyncio.sleep(rig.rng.choice((0.3, 3.0)))
    else:
        send(product.processes(f"-m {part} --"), signal.SIGKILL)


async def run(directory: Path, plan: Plan, say: Say) -> list[str]:
    """Run the plan; return the faults."""
    async with running_rig(directory, plan, say) as rig:
        ends = asyncio.Event()
        owners = [asyncio.create_task(rig.owner(ends)) for _ in range(JOBS_AT_ONCE)]
        await inject(rig, plan.seconds)
        ends.set()
        await asyncio.gather(*owners)
        faults = await verdict(rig)
        say(f"{len(rig.jobs)} jobs: {dict(Counter(job.ended[0] for job in rig.jobs if job.ended))}; {dict(rig.counts)}")
        return faults


@contextlib.asynccontextmanager
async def running_rig(directory: Path, plan: Plan, say: Say) -> AsyncIterator[Rig]:
    product = Product(directory / "data", 1, SETTINGS | plan.settings)
    async with aiohttp.ClientSession() as session:
        try:
            await asyncio.to_thread(product.start)
            created = await asyncio.to_thread(product.command, "workspace", "create", "acme", "--prefix", "acme")
            await asyncio.to_thread(product.command, "workspace", "set", "acme", "--training")
            operator = OperatorClient(session, product, created["api_key"])
            yield Rig(await Training.begin(operator, product, "chaos"), random.Random(plan.seed), say)
        finally:
            await asyncio.to_thread(product.kill)


async def verdict(rig: Rig) -> list[str]:
    """The faults in the jobs, once all have ended."""

    async def all_ended() -> bool:
        for job in rig.jobs:
            await rig.look(job)
        return all(job.ended for job in rig.jobs)

    async def adopted() -> list[str] | None:
        with contextlib.suppress(aiohttp.ClientError, AssertionError):
            return ["-", *await rig.adopt()]
        return None

    faults: Sequence[str] = (await eventually(adopted, rig.product.log_tail, SETTLE_S, 0.2))[1:]
    await eventually(all_ended, lambda: f"all jobs end\n{rig.product.log_tail()}", SETTLE_S, 0.5)
    jobs = [(job, Job(rig.training, job.id)) for job in rig.jobs]
    for job, job_view in jobs:
        job.log = await job_view.lines()
    was_restarted = bool(rig.counts["restart"])
    return [
        *faults,
        *(fault for job, _ in jobs for fault in faults_of(job, was_restarted)),
        *(f"{processes_of(job_view)} of {job.name} still run" for job, job_view in jobs if processes_of(job_view)),
    ]


if __name__ == "__main__":
    sys.exit(main(run, __doc__, name="training-chaos", counted="job"))
