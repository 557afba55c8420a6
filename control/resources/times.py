"""Times as the API and the webhooks write them: ISO 8601 in UTC, with milliseconds."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
"""The latest time that `time_text` can write."""


def time_text(epoch_ms: int) -> str:
    moment = EPOCH + timedelta(milliseconds=epoch_ms)  # not by way of a float, which is not exact in all years
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_time_text(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else time_text(epoch_ms)
