"""The request and answer of reading a log, a deployment's or a training job's.

See docs/reference/management-api.md#deployment-logs.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from control.api.protocol.encoding import Array, Encoded, encode_object
from control.api.protocol.schemas import DECIMAL, INTEGRAL, Name, RequestV1, ResponseV1
from control.errors import InvalidFieldError
from control.long_work import beside
from control.records.logs import NS_PER_MS, LogFilter, LogLine
from control.resources.logs import LEVELS, Logs


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
WHOLE_BYTES = 8 * 1024 * 1024
"""An answer without a `limit` ends behind the millisecond in which it passes this size."""
LINES_AT_A_TIME = 1000
"""The lines of such an answer that are read and encoded at a time, to keep control's loop and memory free."""
_LIMIT = (
    "Lines of a page, which has more to hold all lines of a millisecond, and two milliseconds. "
    f"Left out: all lines, up to some {WHOLE_BYTES // 1024**2} MiB."
)
_Parts = Annotated[list[Name], Field(max_length=32)]


class LogsRequestV1(RequestV1):
    """Selects log lines. A null or absent member selects nothing in particular."""

    start_epoch_millis: Annotated[EpochMs | None, Field(description="The first millisecond.")] = None
    end_epoch_millis: Annotated[EpochMs | None, Field(description="The last millisecond.")] = None
    direction: Annotated[
        Literal["asc", "desc"] | None, Field(description="`desc`, the default: newest first; `asc`: oldest first.")
    ] = None
    limit: Annotated[LineCount | None, Field(description=_LIMIT)] = None
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
    limit: Annotated[LineCount | None, DECIMAL, Field(description=_LIMIT)] = None


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
        limit=body.limit or LINES_AT_A_TIME,
    )


async def read_lines(workspace_id: str, logs: Logs, owner_id: str, body: LogsRequestV1) -> Encoded:
    """`{"logs": [line]}`: the lines of an owner's log that the request selects."""
    selection = log_filter(body)
    parts = list[tuple[bytes]]()
    size = 0
    while lines := await logs.read(owner_id, selection):
        parts.append((await beside(workspace_id, len(lines), partial(_encoded, lines)),))
        size += len(parts[-1][0])
        if body.limit is not None or len(lines) < selection.limit or size > WHOLE_BYTES:
            break
        selection = selection.behind(lines[-1].timestamp_ns // NS_PER_MS)
    return Encoded(encode_object({"logs": Array(parts)}))


def _encoded(lines: Sequence[LogLine]) -> bytes:
    """The lines, separated by commas."""
    return b",".join(map(_encoded_line, lines))


def _encoded_line(line: LogLine) -> bytes:
    model = LogLineV1(
        timestamp=str(line.timestamp_ns),
        message=line.message,
        replica=line.replica,
        request_id=line.request_id,
        level=line.level,
    )
    return model.model_dump_json().encode()
