"""The backends that go through one suite, each with what a test needs around it."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from policy.training.job_spec import JobSpec
from policy.training.reports import CheckpointReport, Claimed, JobReport, Restore
from policy.training.resources import NodeResources
from policy.training.statuses import Phase
from tests.waiting import eventually
from trainer.backend import ANY_TERMS, Backend, CheckpointTerms, EnvironmentRefusedError, JobEnvironment
from trainer.settings import Capacity, Settings

_NUMBERS = itertools.count()
SMALL = NodeResources(millicpu=1000, memory_mib=256)


@dataclass
class Control:
    """A fake of control that answers environment tokens."""

    environment: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    refusal: EnvironmentRefusedError | None = None
    is_away: bool = False
    spent: list[str] = field(default_factory=list)

    async def spend(self, token: str) -> JobEnvironment:
        self.spent.append(token)
        while self.is_away:
            await asyncio.sleep(0.005)
        if self.refusal is not None:
            raise self.refusal
        return JobEnvironment(self.environment, self.secrets)


class NoCheckpoints:
    """Checkpoints that are never there."""

    is_syncing = False
    refusal = None

    async def run_once(self) -> Sequence[CheckpointReport]:
        return ()

    async def restore(self, restore: Restore) -> None:
        raise AssertionError("nothing to restore")

    async def load(self, checkpoint: Restore) -> None:
        raise AssertionError("nothing to load")

    async def finish(self) -> None:
        return

    async def remove(self) -> None:
        return


def no_checkpoints(directory: Path, job_id: str, terms: CheckpointTerms = ANY_TERMS) -> NoCheckpoints:
    return NoCheckpoints()


def settings(directory: Path) -> Settings:
    return Settings(
        control_url="http://127.0.0.1:1",
        internal_token="unused",
        directory=directory,
        capacity=Capacity(cpu=8, memory_mib=8192, nodes=16),
        stop_grace_s=1.0,
    )


def claimed(*commands: str, node_count: int = 1, **spec: object) -> Claimed:
    """A claim of a new job that runs these commands on each node."""
    job_spec = JobSpec(start_commands=commands, resources=SMALL, node_count=node_count)
    number = next(_NUMBERS)
    return Claimed(f"job{number}", 1, replace(job_spec, **spec), f"token-{number}", None)  # type: ignore[arg-type]


async def started(backend: Backend, job: Claimed) -> Claimed:
    """Start it on the first host."""
    host = (await backend.hosts())[0].name
    await backend.start(job, [host] * job.spec.node_count)
    return job


async def report_of(backend: Backend, job: Claimed) -> JobReport | None:
    return next((report for report in await backend.observe() if report.job_id == job.job_id), None)


async def in_phase(backend: Backend, job: Claimed, phase: Phase) -> JobReport:
    """The report, once the attempt is in this phase."""
    reports: list[JobReport | None] = [None]

    async def look() -> JobReport | None:
        reports[0] = await report_of(backend, job)
        return reports[0] if reports[0] is not None and reports[0].phase is phase else None

    report: JobReport = await eventually(look, lambda: f"{phase}: {reports[0]}")
    return report


async def ended(backend: Backend, job: Claimed) -> JobReport:
    return await in_phase(backend, job, Phase.ENDED)


async def all_output(backend: Backend, job: Claimed, rank: int = 0) -> list[tuple[bool, str]]:
    """All that an ended node printed: (is standard error, text)."""
    lines = list[tuple[bool, str]]()
    offset = 0
    is_end = False
    while not is_end:
        chunk = await backend.output(job.job_id, job.attempt, rank, offset)
        lines += [(is_error, text) for _, is_error, text in chunk.lines]
        offset = chunk.next_offset
        is_end = chunk.is_end
    return lines


async def printed(backend: Backend, job: Claimed, text: str, rank: int = 0) -> None:
    """Wait until the node has printed a line that contains this."""
    lines: list[str] = []

    async def look() -> bool:
        lines.clear()
        offset = 0
        while True:
            chunk = await backend.output(job.job_id, job.attempt, rank, offset)
            lines.extend(line for _, _, line in chunk.lines)
            if chunk.next_offset == offset:
                return any(text in line for line in lines)
            offset = chunk.next_offset

    await eventually(look, lambda: f"{text!r} in {lines[-20:]}")
