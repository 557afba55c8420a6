"""Calls to replicas of platform models, as the stages see them: the supervisor decides; the worker asks and waits.

See docs/reference/inference.md#replicas.
"""

from dataclasses import dataclass
from typing import Protocol

from policy.deployments import Where


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call's request for a replica. `turn`: a group's id or a workspace key's digest, whose calls take turns."""

    workspace_id: str
    model_id: str
    where: Where
    turn: str
    background: bool = False
    """Nobody waits for its answer: it gets a replica after all other calls, and waits for one whatever the status is.

    It takes no room of theirs in the queue. Once it has tried a replica it no longer waits for want of one.
    """


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A finished call, as its deployment's log shows it. Never content."""

    ended_at_ms: int
    request_id: str
    method: str
    path: str
    """The path without the query."""
    status: int
    duration_s: float


class ReplicaCall(Protocol):
    """One call to a platform model, from its first question for a replica to its end."""

    waited_s: float
    """Time spent waiting for a replica so far: parked, or for its turn."""

    async def assigned(self) -> str:
        """Wait until the call has a replica; return its base URL.

        May be called again after `unreachable`: the replicas that were unreachable are not assigned again.
        Raises `NoSuchModelError`, `NoModelReplicaError`, `NotRoutedError` or `ShedError`.
        """
        ...

    def answered(self) -> None:
        """The head of an answer has arrived."""
        ...

    def unreachable(self) -> None:
        """Report that there was no connection, so the model cannot have run."""
        ...

    def reset(self) -> None:
        """The connection broke before the head arrived: the model may have run."""
        ...

    def end(self, ended: CallEnded) -> None:
        """The call has ended, however it did. Idempotent; never raises."""
        ...


class BackgroundCall(ReplicaCall, Protocol):
    """A call that nobody waits for."""

    def withdraw(self) -> None:
        """End the call before anything was sent: its deployment's log does not tell of it. As `end` otherwise."""
        ...
