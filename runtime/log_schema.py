"""The schema of a log line: one JSON object per line, the same for all processes.

Pure.

See docs/reference/logs.md.
"""

import json
import traceback
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Protocol

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
DEFAULT_LEVEL = "INFO"
FIELDS = "fields"
"""The record attribute that holds further members: `log.info(…, extra={FIELDS: {…}})`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(Protocol):
    """The attributes of `logging.LogRecord` that a line needs."""

    created: float
    levelname: str
    name: str
    process: int | None
    exc_info: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | None

    def getMessage(self) -> str: ...


def log_line(record: Record) -> str:
    """The record as JSON without a newline. Line breaks inside are escaped, so no message can look like two."""
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
    """Parse TOLLGATE_LOG_LEVEL, ignoring case. Raises ValueError that lists the accepted levels."""
    level = text.strip().upper()
    if level not in LEVELS:
        raise ValueError(f"expected one of {', '.join(LEVELS)}")
    return level


def timestamp(at_ms: int) -> str:
    """`2026-11-22T08:00:00.123Z` for milliseconds since 1970."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
