"""A billing event as the management API lists it, and its place in the list. Pure.

See docs/reference/events-and-webhooks.md#listing-events.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from commands.errors import ManagementError

FURTHER_FIGURES = {
    "cache_write_tokens": "cacheWriteTokens",
    "cache_write_1h_tokens": "cacheWrite1hTokens",
    "reasoning_tokens": "reasoningTokens",
    "audio_input_tokens": "audioInputTokens",
    "audio_output_tokens": "audioOutputTokens",
    "image_input_tokens": "imageInputTokens",
    "image_output_tokens": "imageOutputTokens",
    "server_tool_calls": "serverToolCalls",
}
"""The figures of `details`, by the names of columns."""
DETAILS = {"status": "status", **FURTHER_FIGURES, "service_tier": "serviceTier", "source": "source"}
"""All members of `details`, by the names of columns."""


class UnknownEventError(ManagementError):
    """The management API listed something that is no billing event."""


class Position(NamedTuple):
    """A place in the list of events, which is ordered by timestamp, then key. Timestamps compare as text."""

    timestamp: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One call, billed once. `listed`: the event as the API lists it."""

    key: str
    timestamp: str
    slug: str
    entity: str
    input_tokens: int
    """Cached and uncached."""
    cached_input_tokens: int
    output_tokens: int
    listed: Mapping[str, Any]

    @property
    def position(self) -> Position:
        return Position(self.timestamp, self.key)

    @property
    def uncached_input_tokens(self) -> int:
        return self.input_tokens - self.cached_input_tokens

    @property
    def details(self) -> Mapping[str, Any]:
        """The members of `details` by the names of columns; none if the list was asked for no details."""
        return detail_columns(self.listed)


def detail_columns(listed: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a listed event's `details` by the names of columns; none if it has no details."""
    details = listed.get("details")
    return {} if details is None else {column: details.get(member) for column, member in DETAILS.items()}


def read_event(listed: Mapping[str, Any]) -> Event:
    """Raises UnknownEventError if a member is missing."""
    try:
        tokens = listed["tokens"]
        return Event(
            key=str(listed["idempotencyKey"]),
            timestamp=str(listed["timestamp"]),
            slug=str(listed["modelSlug"]),
            entity=str(listed["externalEntityId"]),
            input_tokens=int(tokens["inputTokens"]),
            cached_input_tokens=int(tokens["cachedInputTokens"]),
            output_tokens=int(tokens["outputTokens"]),
            listed=listed,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnknownEventError(f"the management API listed an event without {error}; is it a Tollgate?") from None


def time_text(text: str) -> str:
    """An ISO 8601 time as the API writes it: UTC, in milliseconds, rounded up. ValueError if it is none."""
    time = datetime.fromisoformat(text)
    try:
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        time += timedelta(microseconds=-time.microsecond % 1000)
    except OverflowError:
        raise ValueError("the year in UTC is not 1 to 9999") from None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_s(timestamp: str) -> float:
    """Seconds since 1970 of a time as the API writes it."""
    return datetime.fromisoformat(timestamp).timestamp()
