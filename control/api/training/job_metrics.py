"""`…/jobs/{training_job_id}/metrics` reads what a job measured (docs/reference/training.md#logs-and-metrics)."""

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field

from control.api.logs import EpochMs
from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import DECIMAL, Name, RequestV1, ResponseV1, TimeText
from control.api.protocol.times import TimeParameter, next_ms
from control.api.training.job_schemas import TrainingJobV1, job_response
from control.api.training.jobs import job_ref
from control.api.training_hosts.node_metrics import JobUseV1, StepSeconds, use_members
from control.long_work import beside
from control.records.times import time_text
from control.records.training import StoredSample
from control.resources.training import jobs
from control.resources.training.jobs import JobSummary
from control.resources.training_hosts.node_samples import NodeSamples, window_of
from policy.keys.permissions import Permission
from policy.training.reports import MetricPoint


class JobUseRequestV1(RequestV1):
    """Selects what a job's nodes used. A null or absent member is its default."""

    start_epoch_millis: EpochMs | None = Field(None, description="Null: an hour before the end.")
    end_epoch_millis: EpochMs | None = Field(None, description="Null: the job's end, or now.")
    step_seconds: StepSeconds | None = Field(None, description="One value per step. Null: every 15 s, or fewer.")


class TrainingJobMetricsQueryV1(JobUseRequestV1):
    """Selects points of metrics, and what the job's nodes used."""

    start_epoch_millis: Annotated[EpochMs | None, DECIMAL] = None
    end_epoch_millis: Annotated[EpochMs | None, DECIMAL] = None
    step_seconds: Annotated[StepSeconds | None, DECIMAL] = None
    name: Name | None = Field(None, description="The metric. Omitted: all metrics.")
    since: TimeParameter | None = Field(None, description="The first time. Omitted: from the first point on.")


class MetricPointV1(ResponseV1):
    """One value. `step` is null where the job printed none."""

    timestamp: TimeText
    step: int | None
    value: float


class TrainingMetricV1(ResponseV1):
    """A metric and its points, oldest first."""

    name: str
    points: list[MetricPointV1]


class TrainingJobUseV1(JobUseV1):
    """A training job, and what its nodes used."""

    training_job: TrainingJobV1


class TrainingJobMetricsResponseV1(TrainingJobUseV1):
    """The metrics of a training job, by name: its oldest 10 000 points from `since` on, all of each millisecond."""

    metrics: list[TrainingMetricV1]


async def _get(request: ApiRequest) -> Encoded:
    job = await jobs.read_job(request.store, job_ref(request))
    query = request.query_as(TrainingJobMetricsQueryV1)
    since_ms = 0 if query.since is None else next_ms(query.since)
    samples = await _samples(request, job, query)
    points = await request.dependencies.training_output.metrics.read(job.record.id, query.name, since_ms)

    def answer() -> Pieces:
        return encode_object({"metrics": Array(_metrics(points)), **_members(job, samples)})

    return Encoded(await beside(request.workspace_id, len(points) + len(samples), answer))


async def _post(request: ApiRequest) -> Encoded:
    job = await jobs.read_job(request.store, job_ref(request))
    samples = await _samples(request, job, request.body_as(JobUseRequestV1))

    def answer() -> Pieces:
        return encode_object(_members(job, samples))

    return Encoded(await beside(request.workspace_id, len(samples), answer))


async def _samples(request: ApiRequest, job: JobSummary, choice: JobUseRequestV1) -> Sequence[StoredSample]:
    times = (choice.start_epoch_millis, choice.end_epoch_millis, choice.step_seconds)
    return await NodeSamples(request.store).read(job.record.id, window_of(job.record, *times))


def _members(job: JobSummary, samples: Sequence[StoredSample]) -> dict[str, Any]:
    return {"training_job": job_response(job).model_dump(), **use_members(samples)}


def _metrics(points: Sequence[MetricPoint]) -> list[Pieces]:
    by_name = dict[str, list[Pieces]]()
    for point in points:
        by_name.setdefault(point.name, []).append(_encoded(point))
    return [encode_object({"name": name, "points": Array(by_name[name])}) for name in sorted(by_name)]


def _encoded(point: MetricPoint) -> Pieces:
    members = {"timestamp": time_text(point.timestamp_ms), "step": point.step, "value": point.value}
    return (orjson.dumps(members),)


_PATH = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/metrics"
OPERATIONS = (
    Operation(
        *("GET", _PATH, _get, "Read a training job's metrics", TrainingJobMetricsResponseV1),
        query=TrainingJobMetricsQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("POST", _PATH, _post, "Read what a training job's nodes use", TrainingJobUseV1),
        body=JobUseRequestV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
)
