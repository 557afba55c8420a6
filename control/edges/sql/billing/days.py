"""The days of a window, as rows: a range of the hourly sums begins with one of them."""

import orjson

from control.records.events import EventWindow
from policy.prices import DAY_MS

DAYS = {
    "sqlite": "SELECT value FROM json_each(:days)",
    "postgresql": "SELECT CAST(json_array_elements_text(CAST(:days AS json)) AS bigint)",
}
"""The days of `days_text`. SQLite expects few rows of JSON; of a recursion it expects a million, and then reads the
whole table first, for a Bloom filter."""


def days_text(window: EventWindow) -> str:
    """The days of the window, each by its start, as a JSON array."""
    return orjson.dumps([*range(window.start_ms - window.start_ms % DAY_MS, window.end_ms, DAY_MS)]).decode()
