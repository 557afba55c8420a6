"""`…/jobs/{training_job_id}/metrics` reads what a job measured (docs/reference/training.md#logs-and-metrics)."""

from collections.abc import Sequence
from functools import partial

import orjson
from pydantic import Field

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import Name, RequestV1, ResponseV1, TimeText
from control.api.protocol.times import TimeParameter, next_ms
from control.api.training.jobs import job_ref
from control.long_work import beside
from control.records.times import time_text
from control.resources.training import jobs
from policy.training.reports import MetricPoint


class TrainingJobMetricsQueryV1(RequestV1):
    """Selects points of metrics."""

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


class TrainingJobMetricsResponseV1(ResponseV1):
    """The metrics of a training job, by name: its oldest 10 000 points from `since` on, all of each millisecond."""

    metrics: list[TrainingMetricV1]


async def _get(request: ApiRequest) -> Encoded:
    job = await jobs.read_job(request.store, job_ref(request))
    query = request.query_as(TrainingJobMetricsQueryV1)
    since_ms = 0 if query.since is None else next_ms(query.since)
    points = await request.dependencies.training_output.metrics.read(job.record.id, query.name, since_ms)
    return Encoded(await beside(request.workspace_id, len(points), partial(_answer, points)))


def _answer(points: Sequence[MetricPoint]) -> Pieces:
    by_name = dict[str, list[Pieces]]()
    for point in points:
        by_name.setdefault(point.name, []).append(_encoded(point))
    metrics = [encode_object({"name": name, "points": Array(by_name[name])}) for name in sorted(by_name)]
    return encode_object({"metrics": Array(metrics)})


def _encoded(point: MetricPoint) -> Pieces:
    members = {"timestamp": time_text(point.timestamp_ms), "step": point.step, "value": point.value}
    return (orjson.dumps(members),)


_PATH = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/metrics"
OPERATIONS = (
    Operation(
        *("GET", _PATH, _get, "Read a training job's metrics", TrainingJobMetricsResponseV1),
        query=TrainingJobMetricsQueryV1,
        errors=(400, 404),
        tag="Training",
    ),
)
