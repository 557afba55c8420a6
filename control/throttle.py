"""Limits of the management API per API key: which row of the table a request falls under, and its window.

See docs/reference/management-api.md#request-limits.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from control.api.protocol.errors import too_many_requests


@dataclass(frozen=True, slots=True)
class Allowance:
    """At most `requests` in any `window_ms`; `name` tells the limits apart."""

    name: str
    requests: int
    window_ms: int


OTHER = Allowance("other", 100, 1_000)
_DEPLOYMENT = "/v1/models/{model_id}/deployments/"
_BY_LAST_SEGMENT = {
    "activate": Allowance("activate", 20, 60_000),
    "deactivate": Allowance("deactivate", 20, 60_000),
    "retry": Allowance("retry", 10, 60_000),
    "logs": Allowance("logs", 30, 1_000),
}


def allowance_for(method: str, path: str) -> Allowance:
    """The limit for an operation's method and path template."""
    if method == "POST" and path.startswith(_DEPLOYMENT):
        return _BY_LAST_SEGMENT.get(path.rpartition("/")[2], OTHER)
    return OTHER


class Windows(Protocol):
    """Where requests are counted: Redis, so that several control processes count together, or this process."""

    async def admit(self, key_prefix: str, allowance: Allowance) -> int:
        """0 when admitted and counted; otherwise the milliseconds until a request would be, nothing counted."""
        ...


class Throttle:
    """Refuses with 429 what is over the limit."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    async def check(self, key_prefix: str, method: str, path: str) -> None:
        wait_ms = await self._windows.admit(key_prefix, allowance_for(method, path))
        if wait_ms > 0:
            raise too_many_requests(math.ceil(wait_ms / 1000))
