"""A trainer in tests of control: what it sends to `/internal/v1/training/…`, and jobs that it may find."""

from dataclasses import dataclass, replace
from typing import Any

from control.edges.sql.store import Store
from control.edges.sql.training import job_rows, project_rows
from control.records.training import JobRecord, ProjectRecord
from policy.training.job_spec import JobSpec
from policy.training.reports import (
    ABILITIES,
    BackendReport,
    Claimed,
    JobReport,
    MetricPoint,
    OutputBatch,
    OutputLine,
    WantedState,
)
from policy.training.resources import Host
from policy.training.statuses import Outcome, Phase
from tests.control.plane import TOKEN, Answer, ControlPlane, Json
from tests.control.resources.training.job_examples import SMALL, job

PROJECT = "tp_1"
SPEC = JobSpec(("echo hello",), SMALL)
HOST = Host("machine-1", 8000, 16384, 8, {"H100": 2}, {"H100": 81920})


async def add_job(plane: ControlPlane, spec: JobSpec = SPEC, **changes: Any) -> JobRecord:
    """A job of the workspace, as it is created unless `changes` say otherwise."""
    record = job(workspace_id=plane.workspace_id, **changes)
    async with plane.store.write() as tx:
        if await project_rows.find_project(tx.conn, plane.workspace_id, PROJECT) is None:
            project = ProjectRecord(PROJECT, plane.workspace_id, "llama", False, 1, 1)
            await project_rows.insert_project(tx, project)
        await job_rows.insert_job(tx, record, spec)
    return record


async def stored(store: Store, job_id: str = "tj_1") -> JobRecord:
    async with store.read() as conn:
        record = await job_rows.find_job_anywhere(conn, job_id)
    assert record is not None
    return record


async def change(store: Store, job_id: str = "tj_1", **changes: Any) -> None:
    """Change a job behind everybody's back."""
    async with store.write() as tx:
        record = await job_rows.lock_job(tx, job_id)
        assert record is not None
        await job_rows.update_job(tx, record, replace(record, **changes))


def report(
    phase: Phase, outcome: Outcome | None = None, *, id: str = "tj_1", attempt: int = 1, **more: Any
) -> JobReport:
    return JobReport(id, attempt, phase, outcome, **more)


def batch(offset: int, next_offset: int, *messages: str, **more: Any) -> OutputBatch:
    """Output of node 0 in attempt 1; its lines are of the times of their offsets."""
    lines = [OutputLine(offset + place, "INFO", message) for place, message in enumerate(messages)]
    values: Json = {"attempt": 1, "rank": 0, "metrics": (), **more}
    return OutputBatch(offset=offset, next_offset=next_offset, lines=lines, **values)


def point(value: float, name: str = "loss", step: int | None = None, timestamp_ms: int = 1) -> MetricPoint:
    return MetricPoint(name, timestamp_ms, step, value)


@dataclass
class Trainer:
    """Speaks to one control plane."""

    plane: ControlPlane
    name: str = "trainer-1"
    hosts: tuple[Host, ...] = (HOST,)
    abilities: tuple[str, ...] = ABILITIES

    async def post(self, path: str, body: Any, key: str = TOKEN) -> Answer:
        return await self.plane.post(f"/internal/v1/training/{path}", body, key=key)

    async def try_sync(self, *jobs: JobReport, reason: str | None = None) -> Answer:
        report = BackendReport(self.name, "local", reason, True, self.hosts, jobs)
        return await self.post("sync", report.to_wire())

    async def sync(self, *jobs: JobReport, reason: str | None = None) -> WantedState:
        return WantedState.from_wire((await self.try_sync(*jobs, reason=reason)).ok())

    async def try_claim(self, job_id: str = "tj_1", attempt: int = 0) -> Answer:
        return await self.post(f"jobs/{job_id}/claim", {"attempt": attempt, "abilities": list(self.abilities)})

    async def claim(self, job_id: str = "tj_1", attempt: int = 0) -> Claimed:
        return Claimed.from_wire((await self.try_claim(job_id, attempt)).ok())

    async def environment(self, token: str) -> Answer:
        return await self.post("environment", {"token": token}, key="no internal token")

    async def try_output(self, batch: OutputBatch, job_id: str = "tj_1") -> Answer:
        return await self.post(f"jobs/{job_id}/output", batch.to_wire())

    async def output(self, batch: OutputBatch, job_id: str = "tj_1") -> int:
        offset: int = (await self.try_output(batch, job_id)).ok()["offset"]
        return offset
