"""Times as the API and the webhooks write them: ISO 8601 in UTC, with milliseconds."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
"""The latest time that `time_text` can write."""
Millisecond = tuple[str, int]
"""(owner's id, milliseconds since the epoch)."""


def time_text(epoch_ms: int) -> str:
    second, ms = divmod(epoch_ms, 1000)  # not by way of a float, which is not exact in all years
    return f"{_text_of(second)}.{ms:03}Z"


@lru_cache(1024)
def _text_of(second: int) -> str:
    """Write whole seconds, cached: events come a thousand to a page, and many to a second."""
    return (EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()


def optional_time_text(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else time_text(epoch_ms)
