"""`…/jobs/{training_job_id}/logs` reads what a job's nodes printed (docs/reference/training.md#logs-and-metrics)."""

from typing import Annotated

from pydantic import Field

from control.api.logs import LogLineV1, LogsRequestV1, ReplicaText, encoded_lines, log_filter
from control.api.protocol.encoding import Encoded
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.api.training.jobs import job_ref
from control.resources.training import jobs


class TrainingJobLogsRequestV1(LogsRequestV1):
    """Selects log lines. A null or absent member selects nothing in particular."""

    replica: Annotated[ReplicaText | None, Field(description="The node, as `g00r0`.")] = None


class TrainingJobLogsResponseV1(ResponseV1):
    """Lines of a training job's log."""

    logs: list[LogLineV1]


async def _post(request: ApiRequest) -> Encoded:
    job = await jobs.read_job(request.store, job_ref(request))
    selection = log_filter(request.body_as(TrainingJobLogsRequestV1))
    lines = await request.dependencies.training_output.logs.read(job.record.id, selection)
    return await encoded_lines(request.workspace_id, lines)


_PATH = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}/logs"
OPERATIONS = (
    Operation(
        *("POST", _PATH, _post, "Read a training job's log", TrainingJobLogsResponseV1),
        body=TrainingJobLogsRequestV1,
        errors=(400, 404),
        tag="Training",
    ),
)
