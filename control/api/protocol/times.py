"""Times as callers write them: ISO 8601, exact to the nanosecond.

See docs/reference/management-api.md#conventions.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from control.records.times import EPOCH, LAST_MS

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_FORM = re.compile(
    r"(?P<minute>\d{4}-\d\d-\d\d[Tt]\d\d:\d\d)(?P<second>:\d\d([.,](?P<fraction>\d{1,9}))?)?"
    r"(?P<zone>Z|z|[ +-]\d\d:\d\d)?",
    re.ASCII,
)


def parse_time_ns(text: str) -> int:
    """Parse ISO 8601 to epoch nanoseconds, exactly. Without an offset it is UTC.

    A space is read as the `+` that it was before an unescaped query turned it into one.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError("not an ISO 8601 time such as 2026-01-31T12:00:00Z")
    zone = (form["zone"] or "Z").replace(" ", "+").upper()
    try:
        since = datetime.fromisoformat(form["minute"] + (form["second"] or "")[:3] + zone).astimezone(UTC) - EPOCH
    except (ValueError, OverflowError):
        raise ValueError("not a time that exists") from None
    return since // timedelta(seconds=1) * _NS_PER_S + int((form["fraction"] or "").ljust(9, "0"))


def next_ms(time_ns: int) -> int:
    """Round up to ms: stored times have whole milliseconds, so this selects the same."""
    return min(-(-time_ns // _NS_PER_MS), LAST_MS)


def _parsed(value: Any) -> Any:
    return parse_time_ns(value) if isinstance(value, str) else value


TimeParameter = Annotated[
    int,  # epoch nanoseconds
    BeforeValidator(_parsed, json_schema_input_type=str),
    Field(json_schema_extra={"type": "string", "format": "date-time"}, examples=["2026-01-31T12:00:00Z"]),
]
