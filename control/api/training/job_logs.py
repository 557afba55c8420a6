"""`…/jobs/{training_job_id}/logs` reads what a job's nodes printed (docs/reference/training.md#logs-and-metrics)."""

from typing import Annotated

from pydantic import Field

from control.api.logs import LogLineV1, LogsQueryV1, LogsRequestV1, ReplicaText, read_lines
from control.api.protocol.encoding import Encoded
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.api.training.jobs import job_ref
from control.resources.training import jobs
from policy.keys.permissions import Permission


class TrainingJobLogsRequestV1(LogsRequestV1):
    """Selects log lines. A null or absent member selects nothing in particular."""

    replica: Annotated[ReplicaText | None, Field(description="The node, as `g00r0`.")] = None


class TrainingJobLogsQueryV1(LogsQueryV1, TrainingJobLogsRequestV1):
    """The same, in a URL."""


class TrainingJobLogsResponseV1(ResponseV1):
    """Lines of a training job's log."""

    logs: list[LogLineV1]


async def _post(request: ApiRequest) -> Encoded:
    return await _logs(request, request.body_as(TrainingJobLogsRequestV1))


async def _get(request: ApiRequest) -> Encoded:
    return await _logs(request, request.query_as(TrainingJobLogsQueryV1))


async def _logs(request: ApiRequest, choice: TrainingJobLogsRequestV1) -> Encoded:
    job = await jobs.read_job(request.store, job_ref(request))
    return await read_lines(request.workspace_id, request.dependencies.training_output.logs, job.record.id, choice)


_PATH = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/logs"
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Read a training job's log", TrainingJobLogsResponseV1),
        body=TrainingJobLogsRequestV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _PATH, _get, "Read a training job's log by URL", TrainingJobLogsResponseV1),
        query=TrainingJobLogsQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
)
