"""Figures of traffic by minute and slug, and calls of the list of requests, as a proxy sends them to control.

The only code for that JSON. See docs/reference/management-api.md#traffic and docs/reference/management-api.md#requests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

FIRST_BYTE_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)
"""Upper ends of the buckets of times to first byte; the last bucket has none."""
BUCKETS = len(FIRST_BYTE_BOUNDS_MS) + 1
MINUTE_MS = 60_000
SUMS = ("calls", "errors", "refusals", "uncached_input_tokens", "cached_input_tokens", "output_tokens")
"""The figures besides the buckets, in the order in which they are written."""
MAX_COUNT = 2**40
_MOST = 2**53
_MOST_STATUS = 999
CLIENT_CLOSED = 499
OVERLOADED = 529


def is_refusal(status: int) -> bool:
    """Return whether gateway or upstream refused the call: for the caller's fault, for a limit, or for want of room."""
    return (400 <= status < 500 and status != CLIENT_CLOSED) or status == OVERLOADED


def is_error(status: int) -> bool:
    """Return whether the call failed although nothing was wrong with it."""
    return status >= 500 and status != OVERLOADED


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """The amounts that are added to one minute of one slug. `slug`: "" for calls without one, a model's id if direct.

    `sums` is in the order of `SUMS`; `first_bytes` has a count per bucket.
    """

    workspace_id: str
    slug: str
    minute_ms: int
    sums: tuple[int, ...]
    first_bytes: tuple[int, ...]

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "TrafficRow":
        """The inverse of `to_wire`. Raises KeyError, TypeError or ValueError that says what is wrong."""
        for name in ("workspace_id", "slug"):
            if not isinstance(wire[name], str):
                raise TypeError(f"{name} must be text")
        minute_ms = wire["minute_ms"]
        if type(minute_ms) is not int or not 0 <= minute_ms < 2**53 or minute_ms % MINUTE_MS:
            raise ValueError("minute_ms must be the start of a minute")
        return cls(
            workspace_id=wire["workspace_id"],
            slug=wire["slug"],
            minute_ms=minute_ms,
            sums=_counts(wire, "sums", len(SUMS)),
            first_bytes=_counts(wire, "first_bytes", BUCKETS),
        )


def _counts(wire: Mapping[str, Any], name: str, length: int) -> tuple[int, ...]:
    counts = wire[name]
    if not isinstance(counts, list) or len(counts) != length or not _are_counts(counts):
        raise ValueError(f"{name} must be an array of {length} whole numbers from 0 to {MAX_COUNT}")
    return tuple(counts)


def _are_counts(values: Iterable[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= MAX_COUNT for value in values)


class ListedRequest(NamedTuple):
    """A call that has ended. What is unknown is "" or None. Never content, a query string, or more than a key's prefix.

    `slug`: of a direct call the model's id. `event_key`: of the billing event, if the call leaves one. `weight`: the
    number of calls that this one stands for. `id` tells it from others of the same millisecond.
    """

    id: int
    workspace_id: str
    timestamp_ms: int
    request_id: str
    external_entity_id: str
    api_key_prefix: str
    slug: str
    path: str
    status: int
    error_code: str
    limit_group_id: str
    limit_type: str
    limit_unit: str
    limit_threshold: str
    first_byte_us: int | None
    duration_us: int
    event_key: str
    weight: int

    def to_wire(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ListedRequest":
        """The inverse of `to_wire`. Raises KeyError, TypeError or ValueError that says what is wrong."""
        for name, longest in MAX_CHARS.items():
            text = wire[name]
            if not isinstance(text, str) or len(text) > longest or "\0" in text:
                raise ValueError(f"{name} must be text of at most {longest} characters")
        for name, (least, most) in _RANGES.items():
            number = wire[name]
            if number is None and name in _OPTIONAL:
                continue
            if type(number) is not int or not least <= number <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}")
        return cls(**{name: wire[name] for name in cls._fields})


MAX_CHARS = {
    "workspace_id": 128,
    "request_id": 128,
    "external_entity_id": 255,
    "api_key_prefix": 64,
    "slug": 257,
    "path": 512,
    "error_code": 64,
    "limit_group_id": 128,
    "limit_type": 64,
    "limit_unit": 64,
    "limit_threshold": 64,
    "event_key": 128,
}
"""The most characters of each text."""
_RANGES = {
    "id": (0, 2**63 - 1),
    "timestamp_ms": (0, _MOST),
    "status": (0, _MOST_STATUS),
    "first_byte_us": (0, _MOST),
    "duration_us": (0, _MOST),
    "weight": (1, _MOST),
}
_OPTIONAL = frozenset(("first_byte_us",))
