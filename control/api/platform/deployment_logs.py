"""`…/deployments/{deployment_id}/logs` reads a deployment's log, `…/logs/append` adds lines to it.

See docs/reference/management-api.md#deployment-logs.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from control.api.platform.deployments import deployment_ref
from control.api.protocol.encoding import Array, Encoded, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import INTEGRAL, IdText, Name, RequestV1, ResponseV1
from control.resources.errors import InvalidFieldError
from control.resources.platform import deployments
from control.resources.platform.deployment_logs import LEVELS, LINES_AT_ONCE, MAX_NS, NS_PER_MS, now_ns
from control.resources.records import LogFilter, LogLine
from control.time_slices import each


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) and value.isascii() else value


_EpochMs = Annotated[int, Field(ge=0, le=2**53 - 1), INTEGRAL]
_EITHER_CASE = {
    "type": "string",  # no enum: generated clients make one constant of both cases
    "pattern": f"^({'|'.join(''.join(f'[{c}{c.lower()}]' for c in level) for level in LEVELS)})$",
    "description": f"{', '.join(LEVELS)}, in either case.",
}
Level = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper), WithJsonSchema(_EITHER_CASE)]
EpochNs = Annotated[
    str,
    Field(
        pattern="^([0-9]{1,18}|[1-8][0-9]{18})$",
        description="Nanoseconds since the epoch.",
        examples=["1767225600000000000"],
    ),
]
ReplicaText = Annotated[str, Field(min_length=1, max_length=2048)]
_Parts = Annotated[list[Name], Field(max_length=32)]


class DeploymentLogsRequestV1(RequestV1):
    """Selects log lines. A null or absent member selects nothing in particular."""

    start_epoch_millis: Annotated[_EpochMs | None, Field(description="The first millisecond.")] = None
    end_epoch_millis: Annotated[_EpochMs | None, Field(description="The last millisecond.")] = None
    direction: Annotated[
        Literal["asc", "desc"] | None, Field(description="`desc`, the default: newest first; `asc`: oldest first.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=1000), INTEGRAL] | None = 500
    min_level: Annotated[Level | None, Field(description="This level and the more important ones.")] = None
    request_id: Name | None = None
    replica: Annotated[ReplicaText | None, Field(description="The replica's base URL.")] = None
    includes: Annotated[_Parts | None, Field(description="The message contains all of these texts.")] = None
    excludes: Annotated[_Parts | None, Field(description="The message contains none of these texts.")] = None
    search_pattern: Annotated[
        Name | None, Field(description="The message contains this text, as it is: case counts, nothing is a wildcard.")
    ] = None


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


class LogLineV1(ResponseV1):
    """One line of a deployment's log. `timestamp`: nanoseconds since the epoch, as text."""

    timestamp: str
    message: str
    replica: str | None
    request_id: str | None
    level: str


class DeploymentLogsResponseV1(ResponseV1):
    """Lines of a deployment's log."""

    logs: list[LogLineV1]


class LogsAppendedV1(ResponseV1):
    """The number of lines that were added."""

    appended: int


async def _post_logs(request: ApiRequest) -> Encoded:
    deployment = await deployments.read_deployment(request.store, deployment_ref(request))
    wanted = _filter(request.body_as(DeploymentLogsRequestV1))
    lines = await request.dependencies.deployment_logs.read(deployment.id, wanted)
    return Encoded(encode_object({"logs": Array(await each(lines, _encoded))}))


async def _post_append(request: ApiRequest) -> LogsAppendedV1:
    deployment = await deployments.read_deployment(request.store, deployment_ref(request))
    at_ns = now_ns()
    given = request.body_as(AppendLogsRequestV1).logs
    lines = await each(given, lambda line: (deployment.id, _line(line, at_ns)))
    await request.dependencies.deployment_logs.write(lines)
    return LogsAppendedV1(appended=len(lines))


def _filter(body: DeploymentLogsRequestV1) -> LogFilter:
    start_ms, end_ms = body.start_epoch_millis, body.end_epoch_millis
    if start_ms is not None and end_ms is not None and start_ms > end_ms:
        raise InvalidFieldError("start_epoch_millis", "start_epoch_millis must not be after end_epoch_millis")
    return LogFilter(
        start_ns=None if start_ms is None else min(start_ms * NS_PER_MS, MAX_NS),
        end_ns=None if end_ms is None else min((end_ms + 1) * NS_PER_MS, MAX_NS),
        levels=None if body.min_level is None else LEVELS[LEVELS.index(body.min_level) :],
        request_id=body.request_id,
        replica=body.replica,
        includes=(*(body.includes or ()), *((body.search_pattern,) if body.search_pattern is not None else ())),
        excludes=tuple(body.excludes or ()),
        newest_first=body.direction != "asc",
        limit=body.limit or 500,
    )


def _line(given: AppendedLineV1, received_ns: int) -> LogLine:
    at_ns = received_ns if given.timestamp is None else int(given.timestamp)
    return LogLine(at_ns, given.level or "INFO", given.message, given.replica, given.request_id)


def _encoded(line: LogLine) -> tuple[bytes]:
    shown = LogLineV1(
        timestamp=str(line.timestamp_ns),
        message=line.message,
        replica=line.replica,
        request_id=line.request_id,
        level=line.level,
    )
    return (shown.model_dump_json().encode(),)


_LOGS = "/v1/models/{model_id}/deployments/{deployment_id}/logs"
OPERATIONS = (
    Operation(
        *("POST", _LOGS, _post_logs, "Read a deployment's log", DeploymentLogsResponseV1),
        body=DeploymentLogsRequestV1,
        errors=(400, 404),
        tag="Models",
    ),
    Operation(
        *("POST", f"{_LOGS}/append", _post_append, "Append to a deployment's log", LogsAppendedV1),
        body=AppendLogsRequestV1,
        errors=(400, 404),
        tag="Models",
    ),
)
