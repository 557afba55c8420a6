"""A circuit breaker as a state table. Five failures in a row open it; one trial at a time may close it.

It counts failed and reset connections, but no error responses and no timeouts. Pure: the caller passes the time.

See docs/reference/inference.md#replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

FAILURES_TO_OPEN = 5
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class State(Enum):
    """CLOSED allows all calls, OPEN none until its pause is over, TRYING none during its one trial."""

    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


class CallOutcome(Enum):
    """The outcome of a call. ANSWERED: a head arrived. FAILED: no connection, or a reset. ABANDONED: unknown."""

    ANSWERED = "answered"
    FAILED = "failed"
    ABANDONED = "abandoned"


class Action(Enum):
    """An action of a transition besides the change of state."""

    NOTHING = "nothing"
    FORGET = "forget"
    COUNT = "count"
    LENGTHEN = "lengthen"
    RETRY_NOW = "retry now"


@dataclass(frozen=True, slots=True)
class Move:
    """A transition: its next state and its action."""

    to: State
    action: Action = Action.NOTHING


TABLE: Mapping[tuple[State, CallOutcome], Move] = {
    (State.CLOSED, CallOutcome.ANSWERED): Move(State.CLOSED, Action.FORGET),
    (State.CLOSED, CallOutcome.FAILED): Move(State.CLOSED, Action.COUNT),  # the fifth in a row opens it
    (State.CLOSED, CallOutcome.ABANDONED): Move(State.CLOSED),
    (State.OPEN, CallOutcome.ANSWERED): Move(State.CLOSED, Action.FORGET),  # sent before it opened: the replica works
    (State.OPEN, CallOutcome.FAILED): Move(State.OPEN),  # sent before it opened: nothing new
    (State.OPEN, CallOutcome.ABANDONED): Move(State.OPEN),
    (State.TRYING, CallOutcome.ANSWERED): Move(State.CLOSED, Action.FORGET),
    (State.TRYING, CallOutcome.FAILED): Move(State.OPEN, Action.LENGTHEN),
    (State.TRYING, CallOutcome.ABANDONED): Move(State.OPEN, Action.RETRY_NOW),
}


@dataclass(slots=True)
class Breaker:
    """The breaker of one replica."""

    state: State = State.CLOSED
    failures: int = 0
    pause_s: float = FIRST_PAUSE_S
    retry_at: float = 0.0

    def ready(self, now: float) -> bool:
        """Return whether a call may be sent now."""
        return self.state is State.CLOSED or (self.state is State.OPEN and now >= self.retry_at)

    def begin(self) -> None:
        """A call is being sent; the first one after the pause is the trial. Ask `ready` before."""
        if self.state is State.OPEN:
            self.state = State.TRYING

    def record(self, event: CallOutcome, now: float) -> None:
        """Record how a call went."""
        move = TABLE[self.state, event]
        self.state = move.to
        match move.action:
            case Action.FORGET:
                self.failures = 0
                self.pause_s = FIRST_PAUSE_S
            case Action.COUNT:
                self.failures += 1
                if self.failures >= FAILURES_TO_OPEN:
                    self.state = State.OPEN
                    self.retry_at = now + self.pause_s
            case Action.LENGTHEN:
                self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
                self.retry_at = now + self.pause_s
            case Action.RETRY_NOW:
                self.retry_at = now
            case Action.NOTHING:
                pass
