"""A running training job in a control plane's database, without a trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import delete, insert

from control.edges.sql.store import Store, now_ms
from control.edges.sql.training import job_rows, project_rows
from control.edges.sql.training.tables import training_backend
from control.records.training import JobRecord, ProjectRecord
from control.resources.training import sessions
from policy.training.job_spec import ON_STARTUP, JobSpec, SessionSpec
from policy.training.statuses import RUNNING
from tests.control.plane import Answer, ControlPlane
from tests.control.resources.training.job_examples import SMALL, job

WORKING_DIRECTORY = "code"
ON_STARTUP_SESSION = SessionSpec(ON_STARTUP, 10)


@dataclass
class RunningJob:
    """The job as it was stored last."""

    plane: ControlPlane
    record: JobRecord

    @property
    def path(self) -> str:
        return f"/v1/training_projects/{self.record.project_id}/jobs/{self.record.id}"

    async def auth_codes(self, **more: object) -> Answer:
        return await self.plane.get(f"{self.path}/auth_codes", **more)

    async def codes(self) -> list[Mapping[str, str]]:
        codes: list[Mapping[str, str]] = (await self.auth_codes()).ok()["auth_codes"]
        return codes

    async def becomes(self, **changes: object) -> None:
        """Change the job as a trainer's report would."""
        async with self.plane.store.write() as tx:
            after = replace(self.record, **changes)  # type: ignore[arg-type]  # a test's
            await job_rows.update_job(tx, self.record, after)
            await sessions.begin_due(tx, after)
        self.record = after


async def running_job(
    plane: ControlPlane, session: SessionSpec | None = ON_STARTUP_SESSION, **changes: object
) -> RunningJob:
    """A job of the plane's workspace, and the sessions that are due."""
    record = job(**{"workspace_id": plane.workspace_id, "status": RUNNING, "attempt": 1, **changes})
    spec = JobSpec(("true",), SMALL, record.node_count, working_directory=WORKING_DIRECTORY, session=session)
    async with plane.store.write() as tx:
        if await project_rows.find_project(tx.conn, record.workspace_id, record.project_id) is None:
            project = ProjectRecord(record.project_id, record.workspace_id, record.project_id, False, 1, 1)
            await project_rows.insert_project(tx, project)
        await job_rows.insert_job(tx, record, spec)
        await sessions.begin_due(tx, record)
    return RunningJob(plane, record)


async def report_backend(store: Store, **changes: object) -> None:
    """Store a report of a trainer, as if it had just arrived."""
    row = {
        "id": 1, "trainer": "t", "backend": "local", "reason": None, "has_sessions": True, "hosts": "[]",
        "reported_at_ms": now_ms(),
    }  # fmt: skip
    async with store.write() as tx:
        await tx.conn.execute(delete(training_backend))
        await tx.conn.execute(insert(training_backend).values(row | changes))
