"""What an async worker counts, as the code that counts it sees it."""

from typing import Protocol

from proxy.async_requests.requests import DeploymentRef
from proxy.async_requests.states import Status

SUCCEEDED, FAILED, AGAIN, LOST = "succeeded", "failed", "again", "lost"
"""How attempts end. LOST: another process may have taken it over."""


class AsyncMeters(Protocol):
    """Counters of asynchronous requests."""

    def left_queue(self, queued_ms: int) -> None:
        """A request is QUEUED no longer, and no attempt of it has begun."""
        ...

    def attempt_started(self, deployment: DeploymentRef, queued_ms: int | None) -> None:
        """`queued_ms`: how long the request was QUEUED; None unless this is its first attempt."""
        ...

    def attempt_ended(self, deployment: DeploymentRef, outcome: str, duration_s: float) -> None: ...

    def request_ended(self, deployment: DeploymentRef, status: Status, count: int = 1) -> None: ...
