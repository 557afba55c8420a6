"""Decides whether a request that failed is sent again, and when. Does no I/O.

A request is repeated if that cannot do anything twice: it was refused before it was carried out (429, and 409 with
`retry_after`), it never left, or it is safe to repeat (GET, PUT, DELETE, and a POST with an `Idempotency-Key`).
"""

import random
from dataclasses import dataclass

import httpx

from tollgate_client.failures import TollgateError

_REPEATABLE = frozenset(("GET", "HEAD", "PUT", "DELETE"))
_OUTAGES = frozenset((502, 503, 504))
IDEMPOTENCY_KEY = "idempotency-key"


@dataclass(frozen=True, slots=True)
class Retries:
    """The terms of repeats. `most`: how often a request is repeated; 0: never.

    A wait is as long as the server says in `retry_after`, else it doubles from `first_wait_s` to `longest_wait_s`. A
    `retry_after` above `longest_wait_s` is not waited for: the error is raised, with its `retry_after_s`.
    """

    most: int = 4
    first_wait_s: float = 0.5
    longest_wait_s: float = 60.0

    def wait_s(self, request: httpx.Request, error: TollgateError, repeats: int) -> float | None:
        """Return how long to wait before repeat number `repeats`; None if the request is not sent again."""
        if repeats > self.most or not _may_repeat(request, error):
            return None
        spread = random.random()  # noqa: S311 (callers that failed together shall not come back together)
        if error.retry_after_s is None:
            return min(self.longest_wait_s, self.first_wait_s * 2.0 ** (repeats - 1)) * (0.5 + spread / 2)
        if error.retry_after_s > self.longest_wait_s:
            return None
        return error.retry_after_s + self.first_wait_s * spread


def _may_repeat(request: httpx.Request, error: TollgateError) -> bool:
    if error.status == 429 or (error.status == 409 and error.retry_after_s is not None):
        return True
    if error.status is None and isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
        return True
    is_safe = request.method in _REPEATABLE or IDEMPOTENCY_KEY in request.headers
    return is_safe and (error.status is None or error.status in _OUTAGES)
