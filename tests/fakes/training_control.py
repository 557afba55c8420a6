"""Control's side of training in memory, by the real table of job states: a twin for tests of the trainer.

`served` answers the same over HTTP, as the internal API does.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from control.records.training import JobRecord
from control.resources.training import job_states
from control.resources.training.errors import JobNotClaimableError
from policy.training.caches import CacheSummary
from policy.training.job_spec import DEDICATED, JobSpec
from policy.training.reports import (
    BackendReport,
    CheckpointReport,
    Claimed,
    MetricPoint,
    OutputBatch,
    OutputLine,
    WantedJob,
    WantedState,
    WantedTerminal,
)
from policy.training.resources import NodeResources
from policy.training.statuses import CREATED, ENDED, SYNCING, Outcome
from tests.ports import HOST, own_port
from trainer.backend import EnvironmentRefusedError, JobEnvironment
from trainer.control import AnotherTrainerError, ControlAwayError, ControlRefusedError

TOKEN = "an internal token of the tests"
SMALL = NodeResources(millicpu=1000, memory_mib=512)


@dataclass
class FakeControl:
    """`away`: how it fails to answer; None if it answers. A crash loses nothing: all of this is the database."""

    away: str | None = None
    other_trainer: bool = False
    takes_output: bool = True
    secrets_missing: frozenset[str] = frozenset()
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    specs: dict[str, JobSpec] = field(default_factory=dict)
    terminals: tuple[WantedTerminal, ...] = ()
    reports: list[BackendReport] = field(default_factory=list)
    statuses: dict[str, list[str]] = field(default_factory=dict)
    """Each status that a job has had, in order."""
    lines: dict[str, list[OutputLine]] = field(default_factory=dict)
    metrics: dict[str, list[MetricPoint]] = field(default_factory=dict)
    checkpoints_of: dict[str, list[CheckpointReport]] = field(default_factory=dict)
    lines_at_end: dict[str, int] = field(default_factory=dict)
    """The number of lines that a job's log had when the job was first shown as ended."""
    forgotten: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    """Unspent environment tokens, and the job of each."""
    caches: dict[str, CacheSummary] = field(default_factory=dict)
    removed_caches: list[str] = field(default_factory=list)
    now_ms: int = 1_700_000_000_000
    lose_next_claim: bool = False
    """The next claim is made, and its answer lost."""

    def create(self, job_id: str, *commands: str, priority: int = 0, availability: str = DEDICATED, **spec: Any) -> str:
        spec_of_job = self.specs[job_id] = JobSpec(start_commands=commands, **({"resources": SMALL} | spec))
        self.now_ms += 1
        self.jobs[job_id] = JobRecord(
            id=job_id,
            workspace_id="w",
            project_id="p",
            name=None,
            status=CREATED,
            error_message=None,
            priority=priority,
            availability_model=availability,
            node_count=spec_of_job.node_count,
            resources=spec_of_job.resources,
            gpu_memory_mib=None,
            attempt=0,
            stop_requested=False,
            is_deleted=False,
            recreated_from=None,
            checkpoint_sync_status=None,
            environment_digest=None,
            nodes=(),
            output_offsets={},
            created_at_ms=self.now_ms,
            updated_at_ms=self.now_ms,
            ended_at_ms=None,
        )
        self.statuses[job_id] = [CREATED]
        return job_id

    def stop(self, job_id: str) -> None:
        self._put(job_states.stopped(self.jobs[job_id], self.now_ms))

    def move(self, job_id: str, priority: int) -> None:
        self._put(job_states.requeued(self.jobs[job_id], priority, None, self.now_ms))

    def delete(self, job_id: str) -> None:
        self._put(job_states.deleted(self.jobs[job_id], self.now_ms))

    def log_of(self, job_id: str) -> list[str]:
        return [line.message for line in self.lines.get(job_id, [])]

    async def sync(self, report: BackendReport) -> WantedState:
        self._check()
        if self.other_trainer:
            raise AnotherTrainerError
        self.reports.append(report)
        for job_report in report.jobs:
            if (job := self.jobs.get(job_report.job_id)) is None:
                continue
            if job_report.is_forgotten and job.is_deleted:
                del self.jobs[job.id]
                self.forgotten.append(job.id)
            else:
                self._put(job_states.reported(job, job_report, self.now_ms))
        commands = [(job, want) for job in self.jobs.values() if (want := job_states.wanted(job))]
        return WantedState(tuple(_wanted(job, want) for job, want in commands), self.terminals)

    async def claim(self, job_id: str, attempt: int) -> Claimed | None:
        self._check()
        job = self.jobs.get(job_id)
        if job is None or job.checkpoint_sync_status == SYNCING:
            return None
        token = f"token of {job_id}, attempt {attempt + 1}"
        try:
            claimed = job_states.claimed(job, attempt, token, self.now_ms)
        except JobNotClaimableError:
            return None
        self._put(claimed)
        self.tokens[token] = job_id
        if self.lose_next_claim:
            self.lose_next_claim = False
            raise ControlAwayError("the connection broke")
        return Claimed(job_id, claimed.attempt, self.specs[job_id], token, None)

    async def environment(self, token: str) -> JobEnvironment:
        self._check()
        if (job_id := self.tokens.pop(token, None)) is None:
            raise EnvironmentRefusedError("The token is spent", Outcome.REQUEUED)
        if job_id in self.secrets_missing:
            raise EnvironmentRefusedError("The secret hf is missing", Outcome.DEPLOY_FAILED)
        return JobEnvironment({"WHO": job_id}, ())

    async def output(self, job_id: str, batch: OutputBatch) -> int:
        self._check()
        job = self.jobs.get(job_id)
        if job is None or job.is_deleted or job.attempt != batch.attempt:
            raise ControlRefusedError("no such attempt")
        if not self.takes_output:
            raise ControlAwayError("it answered 503")
        if job.output_offsets.get(batch.rank, 0) == batch.offset != batch.next_offset:
            self.lines.setdefault(job_id, []).extend(batch.lines)
            self.metrics.setdefault(job_id, []).extend(batch.metrics)
            offsets = {**job.output_offsets, batch.rank: batch.next_offset}
            self.jobs[job_id] = replace(job, output_offsets=offsets)
        return self.jobs[job_id].output_offsets.get(batch.rank, 0)

    async def checkpoints(self, job_id: str, attempt: int, reports: Sequence[CheckpointReport]) -> None:
        self._check()
        job = self.jobs.get(job_id)
        if job is None or job.is_deleted or job.attempt != attempt:
            raise ControlRefusedError("no such attempt")
        self.checkpoints_of[job_id] = list(reports)

    async def cache(self, summary: CacheSummary) -> None:
        self._check()
        self.caches[summary.project_id] = summary

    async def cache_removed(self, project_id: str) -> None:
        self._check()
        self.removed_caches.append(project_id)

    def _put(self, job: JobRecord) -> None:
        self.jobs[job.id] = job
        if self.statuses[job.id][-1] != job.status:
            self.statuses[job.id].append(job.status)
            if job.status in ENDED:
                self.lines_at_end[job.id] = len(self.lines.get(job.id, []))

    def _check(self) -> None:
        if self.away is not None:
            raise ControlAwayError(self.away)


def _wanted(job: JobRecord, want: Any) -> WantedJob:
    return WantedJob(
        job_id=job.id,
        attempt=job.attempt,
        status=job.status,
        wish=want,
        priority=job.priority,
        availability_model=job.availability_model,
        node_count=job.node_count,
        resources=job.resources,
        created_at_ms=job.created_at_ms,
    )


@contextlib.asynccontextmanager
async def served(control: FakeControl, port: int = 0) -> AsyncIterator[str]:
    """The same over HTTP; yields the URL."""
    app = web.Application(client_max_size=16 * 1024 * 1024)
    post = app.router.add_post
    post("/internal/v1/training/sync", _answering(control, _sync))
    post("/internal/v1/training/environment", _answering(control, _environment))
    post("/internal/v1/training/jobs/{id}/claim", _answering(control, _claim))
    post("/internal/v1/training/jobs/{id}/output", _answering(control, _output))
    post("/internal/v1/training/jobs/{id}/checkpoints", _answering(control, _checkpoints))
    post("/internal/v1/training/caches", _answering(control, _cache))
    post("/internal/v1/training/caches/{id}/removed", _answering(control, _removed_cache))
    port = port or own_port()
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    try:
        yield f"http://{HOST}:{port}"
    finally:
        await runner.cleanup()


Handler = Callable[[web.Request], Any]


def _answering(control: FakeControl, work: Callable[[FakeControl, str, Any], Any]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        is_open = request.path.endswith("/environment")
        if not is_open and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "wrong token", "code": "UNAUTHORIZED"}, status=401)
        try:
            return web.json_response(await work(control, request.match_info.get("id", ""), await request.json()))
        except ControlAwayError as error:
            return web.json_response({"error": str(error), "code": "UNAVAILABLE"}, status=503)
        except (AnotherTrainerError, ControlRefusedError) as error:
            return web.json_response({"error": str(error), "code": "CONFLICT"}, status=409)
        except EnvironmentRefusedError as error:
            is_spent = error.outcome is Outcome.REQUEUED
            code = "ENVIRONMENT_TOKEN_SPENT" if is_spent else "CONFLICT"
            return web.json_response({"error": str(error), "code": code}, status=403 if is_spent else 409)

    return handle


async def _sync(control: FakeControl, _: str, body: Mapping[str, Any]) -> Any:
    return (await control.sync(BackendReport.from_wire(body))).to_wire()


async def _claim(control: FakeControl, job_id: str, body: Mapping[str, Any]) -> Any:
    if (claimed := await control.claim(job_id, body["attempt"])) is None:
        raise ControlRefusedError("it does not wait")
    return claimed.to_wire()


async def _environment(control: FakeControl, _: str, body: Mapping[str, Any]) -> Any:
    environment = await control.environment(body["token"])
    return {"environment": dict(environment.variables), "secrets": list(environment.secrets)}


async def _output(control: FakeControl, job_id: str, body: Mapping[str, Any]) -> Any:
    return {"offset": await control.output(job_id, OutputBatch.from_wire(body))}


async def _checkpoints(control: FakeControl, job_id: str, body: Mapping[str, Any]) -> Any:
    await control.checkpoints(job_id, body["attempt"], [CheckpointReport.from_wire(one) for one in body["checkpoints"]])
    return {}


async def _cache(control: FakeControl, _: str, body: Mapping[str, Any]) -> Any:
    await control.cache(CacheSummary.from_wire(body))
    return {}


async def _removed_cache(control: FakeControl, project_id: str, _: Mapping[str, Any]) -> Any:
    await control.cache_removed(project_id)
    return {}
