"""The request and answer of reading a log, a deployment's or a training job's.

See docs/reference/management-api.md#deployment-logs.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from control.api.protocol.encoding import Array, Encoded, encode_object
from control.api.protocol.schemas import DECIMAL, INTEGRAL, Name, RequestV1, ResponseV1
from control.errors import InvalidFieldError
from control.long_work import beside
from control.records.logs import LogFilter, LogLine
from control.resources.logs import LEVELS


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) and value.isascii() else value


EpochMs = Annotated[int, Field(ge=0, le=2**53 - 1), INTEGRAL]
LineCount = Annotated[int, Field(ge=1, le=1000), INTEGRAL]
_EITHER_CASE = {
    "type": "string",  # no enum: generated clients make one constant of both cases
    "pattern": f"^({'|'.join(''.join(f'[{c}{c.lower()}]' for c in level) for level in LEVELS)})$",
    "description": f"{', '.join(LEVELS)}, in either case.",
}
Level = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper), WithJsonSchema(_EITHER_CASE)]
ReplicaText = Annotated[str, Field(min_length=1, max_length=2048)]
_Parts = Annotated[list[Name], Field(max_length=32)]


class LogsRequestV1(RequestV1):
    """Selects log lines. A null or absent member selects nothing in particular."""

    start_epoch_millis: Annotated[EpochMs | None, Field(description="The first millisecond.")] = None
    end_epoch_millis: Annotated[EpochMs | None, Field(description="The last millisecond.")] = None
    direction: Annotated[
        Literal["asc", "desc"] | None, Field(description="`desc`, the default: newest first; `asc`: oldest first.")
    ] = None
    limit: LineCount | None = Field(
        500, description="Lines of a page, which has more to hold all lines of a millisecond, and two milliseconds."
    )
    min_level: Annotated[Level | None, Field(description="This level and the more important ones.")] = None
    request_id: Name | None = None
    replica: ReplicaText | None = None
    includes: Annotated[_Parts | None, Field(description="The message contains all of these texts.")] = None
    excludes: Annotated[_Parts | None, Field(description="The message contains none of these texts.")] = None
    search_pattern: Annotated[
        Name | None, Field(description="The message contains this text, as it is: case counts, nothing is a wildcard.")
    ] = None


class LogsQueryV1(LogsRequestV1):
    """The same, in a URL."""

    start_epoch_millis: Annotated[EpochMs | None, DECIMAL, Field(description="The first millisecond.")] = None
    end_epoch_millis: Annotated[EpochMs | None, DECIMAL, Field(description="The last millisecond.")] = None
    limit: Annotated[LineCount | None, DECIMAL, Field(description="Lines of a page; it may have more.")] = 500


class LogLineV1(ResponseV1):
    """One line of a log. `timestamp`: nanoseconds since the epoch, as text."""

    timestamp: str
    message: str
    replica: str | None
    request_id: str | None
    level: str


def log_filter(body: LogsRequestV1) -> LogFilter:
    start_ms = body.start_epoch_millis
    end_ms = body.end_epoch_millis
    if start_ms is not None and end_ms is not None and start_ms > end_ms:
        raise InvalidFieldError("start_epoch_millis", "start_epoch_millis must not be after end_epoch_millis")
    return LogFilter(
        start_ms=start_ms,
        end_ms=end_ms,
        levels=None if body.min_level is None else LEVELS[LEVELS.index(body.min_level) :],
        request_id=body.request_id,
        replica=body.replica,
        includes=(*(body.includes or ()), *((body.search_pattern,) if body.search_pattern is not None else ())),
        excludes=tuple(body.excludes or ()),
        newest_first=body.direction != "asc",
        limit=body.limit or 500,
    )


async def encoded_lines(workspace_id: str, lines: Sequence[LogLine]) -> Encoded:
    """`{"logs": [line]}`."""
    return Encoded(await beside(workspace_id, len(lines), lambda: encode_object({"logs": Array(map(_encoded, lines))})))


def _encoded(line: LogLine) -> tuple[bytes]:
    model = LogLineV1(
        timestamp=str(line.timestamp_ns),
        message=line.message,
        replica=line.replica,
        request_id=line.request_id,
        level=line.level,
    )
    return (model.model_dump_json().encode(),)
