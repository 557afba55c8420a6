"""The queue of asynchronous requests, as its users see it. An edge implements it.

Every method raises `QueueUnavailableError` if Redis does not answer; the caller cannot know whether it took effect.
Every write may be repeated: a second time it changes nothing.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from proxy.async_requests.requests import (
    AttemptRef,
    Cancellation,
    Delivery,
    DeploymentFigures,
    DeploymentRef,
    NewRequest,
    Outcome,
    QueueFigures,
    RequestAttempt,
    RequestState,
    Work,
)

HELD_S = 60.0
"""A holder goes on for so long after it has last renewed an attempt or a delivery."""
LEASE_S = HELD_S + 2.0
"""Time without renewal after which an attempt is taken back: its holder has given it up."""
RENEW_INTERVAL_S = 2.0
STANDING_S = 3.0
"""Seconds for which a mark of `report_standing` holds."""
KEPT_S = 3600.0
"""Seconds for which a request can be looked up after it has ended."""
DELIVERY_TRIES = 5


class QueueUnavailableError(Exception):
    """The queue of asynchronous requests does not answer."""


class RequestUnknownError(QueueUnavailableError):
    """The queue answers, and does not know a request that it had accepted."""


class ParkedRequestError(Exception):
    """An earlier request of the deployment is parked for a replica."""


class QueueFullError(Exception):
    """The workspace's queued payloads exceed the memory threshold."""


class RequestQueue(Protocol):
    """The queue as callers of the proxy use it."""

    async def submit(self, request: NewRequest, parks: bool) -> None:
        """Queue the request. `parks`: by policy, its deployment has no replica and calls wait for one.

        Raises `ParkedRequestError` if an earlier request of the deployment is parked (by the mark of `report_standing`,
        or by `parks` unless a worker has seen a replica since), or `QueueFullError`.
        """
        ...

    async def state(self, workspace_id: str, request_id: str) -> RequestState | None:
        """None if there is no such request in this workspace, or it ended more than an hour ago."""
        ...

    async def cancel(self, workspace_id: str, request_id: str) -> Cancellation | None:
        """Cancel the request if it is QUEUED. None as for `state`."""
        ...

    async def figures(self, deployment: DeploymentRef) -> QueueFigures: ...


class AttemptQueue(Protocol):
    """The queue as those who run requests use it. `holder`: the worker's incarnation, never used by another one."""

    def queue_hints(self) -> AsyncIterator[str]:
        """Ids of workspaces in which something became startable or due; "" after each (re)subscription.

        Does not end, and does not raise: reconnects after any outage. Hints may be lost.
        """
        ...

    async def workspaces(self) -> Sequence[str]:
        """All workspaces that have requests which have not ended."""
        ...

    async def sweep(self, workspace_id: str) -> Work:
        """End what has expired or run out of time, resume what was paused, take back what dead workers held.

        Any number of workers may sweep a workspace.
        """
        ...

    async def start(self, deployment: DeploymentRef, holder: str) -> RequestAttempt | None:
        """Begin the next attempt: paused requests first, then by priority, then the oldest. None if there is none."""
        ...

    async def renew(self, attempts: Collection[AttemptRef]) -> Collection[AttemptRef]:
        """Keep the attempts for another `LEASE_S`. Returns those that are no longer held: their work is in vain.

        One whose request is not known is held still: who accepted it may be about to submit it again.
        """
        ...

    async def store(self, attempt: AttemptRef, number: int, chunk: bytes) -> bool:
        """Store part of the model's answer. Numbers begin with 0. Stored chunks of a lost attempt are removed.
        Raises `RequestUnknownError`.

        False: not now, because the workspace's answers have reached their bound and another one is to be completed
        first. May take its time, so that answers leave the queue's Redis free for others.
        """
        ...

    async def finish(self, attempt: AttemptRef, outcome: Outcome) -> bool:
        """End the attempt. False if it is no longer held; then nothing changes. True again for the same final outcome.

        A success whose answer was lost meanwhile becomes another attempt. Raises `RequestUnknownError`.
        """
        ...

    async def fail_deployment(self, deployment: DeploymentRef) -> int:
        """Fail all its requests that do not run with MODEL_DOES_NOT_EXIST: it was deleted. Returns how many."""
        ...

    async def report_standing(self, deployment: DeploymentRef, ready: bool) -> None:
        """Tell callers whether a replica is healthy (`ready`), or requests are parked. Holds for `STANDING_S`.

        "Ready" outweighs "parked": of several machines, one that sees a replica is enough.
        """
        ...


class DeliveryQueue(Protocol):
    """The queue as those who tell webhooks use it."""

    async def next_delivery(self, workspace_id: str, holder: str) -> Delivery | None:
        """The next delivery that is due. It is held like an attempt."""
        ...

    async def renew_deliveries(self, deliveries: Collection[Delivery]) -> Collection[Delivery]:
        """Renew the leases of deliveries, as `AttemptQueue.renew` those of attempts."""
        ...

    async def chunk(self, delivery: Delivery, number: int) -> bytes | None:
        """Part of the model's answer. None if it was lost with a crash of Redis."""
        ...

    async def answer_lost(self, delivery: Delivery) -> bool:
        """Turn the outcome to FAILED: part of the answer is gone for good. False if the delivery is no longer held."""
        ...

    async def delivered(self, delivery: Delivery) -> bool:
        """The webhook has accepted it. False if it is no longer held."""
        ...

    async def undelivered(self, delivery: Delivery, again_in_ms: int | None) -> bool:
        """The webhook has not accepted it. None: give up. False if it is no longer held."""
        ...


class QueueOverview(Protocol):
    """The queue as metrics use it."""

    async def overview(self) -> Sequence[DeploymentFigures]:
        """Every deployment that has requests which have not ended."""
        ...
