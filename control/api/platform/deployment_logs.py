"""`…/deployments/{deployment_id}/logs` reads a deployment's log, `…/logs/append` adds lines to it.

See docs/reference/management-api.md#deployment-logs.
"""

from typing import Annotated

from pydantic import Field

from control.api.logs import (
    Level,
    LogLineV1,
    LogsQueryV1,
    LogsRequestV1,
    ReplicaText,
    read_lines,
)
from control.api.platform.deployments import deployment_ref
from control.api.protocol.encoding import Encoded
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import IdText, RequestV1, ResponseV1
from control.records.logs import LogLine
from control.resources.logs import LINES_AT_ONCE, now_ns
from control.resources.platform import deployments
from policy.keys.permissions import Permission

EpochNs = Annotated[
    str,
    Field(
        pattern="^([0-9]{1,18}|[1-8][0-9]{18})$",
        description="Nanoseconds since the epoch.",
        examples=["1767225600000000000"],
    ),
]


class DeploymentLogsRequestV1(LogsRequestV1):
    """Selects log lines. A null or absent member selects nothing in particular."""

    replica: Annotated[ReplicaText | None, Field(description="The replica's base URL.")] = None


class DeploymentLogsQueryV1(LogsQueryV1, DeploymentLogsRequestV1):
    """The same, in a URL."""


class AppendedLineV1(RequestV1):
    """A line to add. `timestamp`: now by default. `level`: `INFO` by default."""

    timestamp: EpochNs | None = None
    message: str
    level: Level | None = None
    replica: ReplicaText | None = None
    request_id: IdText | None = None


class AppendLogsRequestV1(RequestV1):
    """Lines to add to a deployment's log."""

    logs: Annotated[list[AppendedLineV1], Field(max_length=LINES_AT_ONCE)]


class DeploymentLogsResponseV1(ResponseV1):
    """Lines of a deployment's log."""

    logs: list[LogLineV1]


class LogsAppendedV1(ResponseV1):
    """The number of lines that were added."""

    appended: int


async def _post_logs(request: ApiRequest) -> Encoded:
    return await _logs(request, request.body_as(DeploymentLogsRequestV1))


async def _get_logs(request: ApiRequest) -> Encoded:
    return await _logs(request, request.query_as(DeploymentLogsQueryV1))


async def _logs(request: ApiRequest, choice: DeploymentLogsRequestV1) -> Encoded:
    deployment = await deployments.read_deployment(request.store, deployment_ref(request))
    return await read_lines(request.workspace_id, request.dependencies.deployment_logs, deployment.id, choice)


async def _post_append(request: ApiRequest) -> LogsAppendedV1:
    deployment = await deployments.read_deployment(request.store, deployment_ref(request))
    at_ns = now_ns()
    new_lines = request.body_as(AppendLogsRequestV1).logs
    lines = [(deployment.id, _line(line, at_ns)) for line in new_lines]
    await request.dependencies.deployment_logs.write(lines)
    return LogsAppendedV1(appended=len(lines))


def _line(fields: AppendedLineV1, received_ns: int) -> LogLine:
    at_ns = received_ns if fields.timestamp is None else int(fields.timestamp)
    return LogLine(at_ns, fields.level or "INFO", fields.message, fields.replica, fields.request_id)


_LOGS = "/v1/models/{model_id}/deployments/{deployment_id}/logs"
OPERATIONS = (
    Operation(
        *("POST", _LOGS, _post_logs, "Read a deployment's log", DeploymentLogsResponseV1),
        body=DeploymentLogsRequestV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", _LOGS, _get_logs, "Read a deployment's log by URL", DeploymentLogsResponseV1),
        query=DeploymentLogsQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("GET", "/v1/models/{model_id}/environments/{environment_name}/logs", _get_logs),
        *("Read an environment's log", DeploymentLogsResponseV1),
        query=DeploymentLogsQueryV1,
        errors=(400, 404),
        needs=Permission.READ,
    ),
    Operation(
        *("POST", f"{_LOGS}/append", _post_append, "Append to a deployment's log", LogsAppendedV1),
        body=AppendLogsRequestV1,
        errors=(400, 404),
        needs=Permission.WORKLOADS,
    ),
)
