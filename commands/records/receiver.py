"""The protocol of receivers of billing events for the forwarder, and their failures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from commands.errors import ManagementError
from commands.records.billing_events import Event, Position


class ReceiverError(ManagementError):
    """The receiver cannot be used as it is set up. Trying again would not help.

    `is_in_doubt`: it may have taken some of the events nevertheless.
    """

    is_in_doubt = False


class ReceiverAwayError(ManagementError):
    """The receiver may take the events later.

    `is_in_doubt`: it may have taken some of them. `retry_after_s`: how long it asked to wait.
    """

    def __init__(self, message: str, is_in_doubt: bool = True, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.is_in_doubt = is_in_doubt
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer over HTTP: the status, the start of the body, and how long to wait if it says so."""

    status: int
    body: bytes = b""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event that the receiver will never take, and why. `is_partly_taken`: of several meters some took it."""

    event: Event
    reason: str
    is_partly_taken: bool = False


@dataclass(frozen=True, slots=True)
class Recovery:
    """Events that a receiver has taken and the state does not know: the forwarder died in between."""

    position: Position
    keys: tuple[str, ...]
    mark: int


class Receiver(Protocol):
    """Takes events, in order. A receiver over HTTP drops an event that it has already; a file is put back instead."""

    batch_events: int
    """The most events that `deliver` gets."""
    remembers_s: float | None
    """The time for which the receiver surely drops a repeated event. None: for as long as it matters."""

    def recover(self, mark: int | None) -> Recovery | None:
        """Recover, once before `deliver`, from the mark that was saved last; None at the first start. ReceiverError if
        the receiver cannot go on from there."""
        ...

    async def deliver(self, events: Sequence[Event]) -> tuple[list[RefusedEvent], int]:
        """Return what was refused, and the mark to save, once all others are taken.

        Raises ReceiverAwayError to be called again with the same events, or ReceiverError.
        """
        ...

    async def close(self) -> None: ...
