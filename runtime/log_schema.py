"""The schema of a log line: one JSON object per line, the same from both planes, so that one filter reads them all.

Pure. Members: `time` (ISO 8601 UTC, milliseconds), `level`, `logger`, `process` (pid), `message`, and `trace` where an
exception was logged. A request's line has more: `method`, `path`, `status`, `total_ms`, and who called.
"""

import json
import traceback
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Protocol

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
DEFAULT_LEVEL = "INFO"
FIELDS = "fields"
"""The attribute of a record that holds a dict of further members: `log.info(…, extra={FIELDS: {…}})`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(Protocol):
    """What is read of a `logging.LogRecord`."""

    created: float
    levelname: str
    name: str
    process: int | None
    exc_info: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | None

    def getMessage(self) -> str: ...


def log_line(record: Record) -> str:
    """The record as JSON, without the end of the line. Breaks inside are escaped: no message can look like two."""
    fields: dict[str, Any] = {
        "time": timestamp(int(record.created * 1000)),
        "level": record.levelname,
        "logger": record.name,
        "process": record.process,
        "message": record.getMessage(),
    }
    if record.exc_info and record.exc_info[1] is not None:
        fields["trace"] = "".join(traceback.format_exception(record.exc_info[1]))
    return json.dumps(fields | getattr(record, FIELDS, {}), ensure_ascii=False)


def parse_level(text: str) -> str:
    """TOLLGATE_LOG_LEVEL, in either case; ValueError says what is accepted."""
    level = text.strip().upper()
    if level not in LEVELS:
        raise ValueError(f"expected one of {', '.join(LEVELS)}")
    return level


def timestamp(at_ms: int) -> str:
    """`2026-11-22T08:00:00.123Z` for milliseconds since 1970."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
