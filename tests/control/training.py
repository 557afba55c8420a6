"""Training in tests of control: a workspace that may train, a backend that was reported, bodies and reports of jobs."""

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import delete, insert

from control.edges.sql.store import Store, now_ms
from control.edges.sql.training import job_rows
from control.edges.sql.training.tables import training_backend
from control.resources.training import job_states
from control.resources.workspaces import set_workspace
from policy.training.reports import JobReport
from policy.training.resources import Host
from policy.training.statuses import Outcome, Phase
from tests.control.plane import ControlPlane, Json

HOSTS = (Host("machine-1", 4000, 8192, 8), Host("machine-2", 8000, 16384, 8, {"H100": 2}, {"H100": 81920}))
FOR_EVER_MS = 3_600_000
"""A test must not race against the seconds that a report is valid."""


async def report_backend(store: Store, hosts: Sequence[Host] = HOSTS, **changes: Any) -> None:
    """Store what a trainer would report; by default a backend that stays present for the whole test."""
    row: Json = {"trainer": "t", "backend": "local", "reason": None, "has_sessions": True}
    row |= {"reported_at_ms": now_ms() + FOR_EVER_MS, "hosts": orjson.dumps([one.to_wire() for one in hosts]).decode()}
    async with store.write() as tx:
        await tx.conn.execute(delete(training_backend))
        await tx.conn.execute(insert(training_backend).values(id=1, **row | changes))


async def enable(plane: ControlPlane, hosts: Sequence[Host] = HOSTS, workspace: str = "workspace acme") -> None:
    """Let the workspace create jobs, on a backend with these machines."""
    await set_workspace(plane.store, workspace, training=True)
    await report_backend(plane.store, hosts)


def job_body(**changes: Any) -> Json:
    """The request for a small job. A change whose name is a member of `compute` or `runtime` goes there."""
    compute: Json = {"node_count": 1, "cpu_count": 1, "memory": "512Mi"}
    runtime: Json = {"start_commands": ["echo hello"]}
    job: Json = {"image": {}, "compute": compute, "runtime": runtime}
    for name, value in changes.items():
        part = next((part for part, names in _PARTS.items() if name in names), None)
        (job[part] if part else job)[name] = value
    return {"training_job": job}


_LOADING = ("load_checkpoint_config", "cache_config")
_PARTS = {
    "compute": ("node_count", "cpu_count", "memory", "accelerator"),
    "runtime": ("start_commands", "environment_variables", "working_directory", "checkpointing_config", *_LOADING),
}


async def create_project(plane: ControlPlane, name: str = "llama", **more: Any) -> Json:
    answer = await plane.post("/v1/training_projects", {"training_project": {"name": name}}, **more)
    project: Json = answer.ok()["training_project"]
    return project


async def new_job(plane: ControlPlane, project_id: str, **changes: Any) -> Json:
    answer = await plane.post(f"/v1/training_projects/{project_id}/jobs", job_body(**changes))
    job: Json = answer.ok()["training_job"]
    return job


async def move(store: Store, job_id: str, *reports: tuple[Phase, Outcome | None]) -> None:
    """Claim the job, then report these phases of the attempt."""
    async with store.write() as tx:
        first = await job_rows.lock_job(tx, job_id)
        assert first is not None
        record = job_states.claimed(first, first.attempt, "digest", tx.now_ms)
        for phase, outcome in reports:
            report = JobReport(
                job_id, record.attempt, phase, outcome, "node 0 exited with status 3" if outcome else None
            )
            record = job_states.reported(record, report, tx.now_ms)
        await job_rows.update_job(tx, first, record)


async def end(store: Store, job_id: str, outcome: Outcome = Outcome.FAILED) -> None:
    """Run the job to its end."""
    await move(store, job_id, (Phase.RUNNING, None), (Phase.ENDED, outcome))
