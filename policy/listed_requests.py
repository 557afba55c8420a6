"""A call in the list of requests, as a proxy sends it to control. The only code for that JSON.

See docs/reference/management-api.md#requests.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_COUNT = 2**53
MAX_STATUS = 999


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
    "timestamp_ms": (0, MAX_COUNT),
    "status": (0, MAX_STATUS),
    "first_byte_us": (0, MAX_COUNT),
    "duration_us": (0, MAX_COUNT),
    "weight": (1, MAX_COUNT),
}
_OPTIONAL = frozenset(("first_byte_us",))
