"""The management API's request limits per API key: which limit an operation falls under, and the check.

See docs/reference/management-api.md#request-limits.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from control.errors import RateLimitedError


@dataclass(frozen=True, slots=True)
class Allowance:
    """A limit of at most `requests` in any window of `window_ms`. `name` identifies it."""

    name: str
    requests: int
    window_ms: int


OTHER = Allowance("other", 100, 1_000)
USAGE_PAGE = Allowance("usage_page", 10, 1_000)
"""The allowance of a group, over all who look at its usage page."""
CUSTOMER_KEYS = Allowance("customer_keys", 10, 60_000)
"""The allowance of a group, over all changes that its own people make to its keys."""
LOGIN = Allowance("console_login", 20, 10_000)
"""The allowance of an address, for logins that it begins and ends at the identity provider."""
LOGIN_STATE = Allowance("console_login_state", 1, 660_000)
"""A login ends once: longer than it is valid."""
_OF_A_MODEL = ("/v1/models/{model_id}/deployments/", "/v1/models/{model_id}/environments/")
_BY_LAST_SEGMENT = {
    "activate": Allowance("activate", 20, 60_000),
    "deactivate": Allowance("deactivate", 20, 60_000),
    "retry": Allowance("retry", 10, 60_000),
    "logs": Allowance("logs", 30, 1_000),
}


def allowance_for(method: str, path: str) -> Allowance:
    """The limit for an operation's method and path template."""
    if method in ("GET", "POST") and path.startswith(_OF_A_MODEL):
        return _BY_LAST_SEGMENT.get(path.rpartition("/")[2], OTHER)
    return OTHER


class RequestCounts(Protocol):
    """Counts requests: in Redis, so that several control processes share the counts, or in this process."""

    async def admit(self, key_prefix: str, allowance: Allowance) -> int:
        """Admit and count a request: 0. Otherwise the ms until one would be admitted; nothing is counted then."""
        ...


class Throttle:
    """Raises `RateLimitedError` for a request over its limit."""

    def __init__(self, windows: RequestCounts) -> None:
        self._windows = windows

    async def check(self, key_prefix: str, method: str, path: str) -> None:
        await self._check(key_prefix, allowance_for(method, path))

    async def check_usage_page(self, group_id: str) -> None:
        await self._check(group_id, USAGE_PAGE)

    async def check_customer_keys(self, group_id: str) -> None:
        await self._check(group_id, CUSTOMER_KEYS)

    async def check_login(self, address: str) -> None:
        await self._check(address, LOGIN)

    async def is_first_use(self, state: str) -> bool:
        """Return whether a login ends for the first time. It cannot end again."""
        return await self._windows.admit(state, LOGIN_STATE) == 0

    async def _check(self, whose: str, allowance: Allowance) -> None:
        wait_ms = await self._windows.admit(whose, allowance)
        if wait_ms > 0:
            raise RateLimitedError(max(1, math.ceil(wait_ms / 1000)))
