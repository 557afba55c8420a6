"""The states of an asynchronous request. Everything that affects a transition is in `TRANSITIONS`.

A request waits (QUEUED), runs one attempt at a time (RUNNING) with pauses between them (PAUSED), may then be told to
its webhook (DELIVERING), and ends (ENDED). No state is entered twice except RUNNING and PAUSED, and an end is for ever.
The Lua scripts of `proxy/edges/redis/async_queue` make these moves and no others; a contract test holds them to it.

See docs/reference/inference.md#asynchronous-requests.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum


class Phase(StrEnum):
    """The state of a request."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    """An attempt has failed; the next one begins after a delay, when a replica is free."""
    DELIVERING = "delivering"
    """The outcome is known; the webhook has not accepted it yet. A success whose answer is lost becomes a failure."""
    ENDED = "ended"


class RequestEvent(Enum):
    """An event in a request's life."""

    START = "start"
    """An attempt begins."""
    PAUSE = "pause"
    """The attempt failed, or its worker died, and another one follows."""
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"
    """`max_time_in_queue_seconds` have passed."""
    CANCEL = "cancel"
    DELIVER = "deliver"
    """The webhook has accepted the outcome."""
    GIVE_UP = "give up"
    """The webhook has refused the outcome too often."""


class Status(StrEnum):
    """The `status` that callers see."""

    QUEUED = "QUEUED"
    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"
    CANCELED = "CANCELED"
    WEBHOOK_FAILED = "WEBHOOK_FAILED"


class WebhookStatus(StrEnum):
    """The `webhook_status` that callers see."""

    PENDING = "PENDING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    NO_WEBHOOK_PROVIDED = "NO_WEBHOOK_PROVIDED"


class ErrorCode(StrEnum):
    """The `code` of an entry in `errors`."""

    MODEL_NOT_READY = "MODEL_NOT_READY"
    MODEL_DOES_NOT_EXIST = "MODEL_DOES_NOT_EXIST"
    MODEL_INVALID_INPUT = "MODEL_INVALID_INPUT"
    MODEL_PREDICT_ERROR = "MODEL_PREDICT_ERROR"
    MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
    MODEL_PREDICT_TIMEOUT = "MODEL_PREDICT_TIMEOUT"
    ASYNC_REQUEST_NOT_SUPPORTED = "ASYNC_REQUEST_NOT_SUPPORTED"
    INTERNAL_SERVER_ERROR = "INTERNAL_SERVER_ERROR"


TRANSITIONS: Mapping[tuple[Phase, RequestEvent], Phase] = {
    (Phase.QUEUED, RequestEvent.START): Phase.RUNNING,
    (Phase.QUEUED, RequestEvent.EXPIRE): Phase.DELIVERING,
    (Phase.QUEUED, RequestEvent.FAIL): Phase.DELIVERING,  # its deployment was deleted
    (Phase.QUEUED, RequestEvent.CANCEL): Phase.ENDED,
    (Phase.RUNNING, RequestEvent.PAUSE): Phase.PAUSED,
    (Phase.RUNNING, RequestEvent.SUCCEED): Phase.DELIVERING,
    (Phase.RUNNING, RequestEvent.FAIL): Phase.DELIVERING,
    (Phase.PAUSED, RequestEvent.START): Phase.RUNNING,
    (Phase.PAUSED, RequestEvent.FAIL): Phase.DELIVERING,  # out of time, or its deployment was deleted
    (Phase.DELIVERING, RequestEvent.DELIVER): Phase.ENDED,
    (Phase.DELIVERING, RequestEvent.GIVE_UP): Phase.ENDED,
}
"""Every legal move. A request without a webhook skips DELIVERING: it moves to ENDED where the table says DELIVERING."""

OUTCOMES: Mapping[RequestEvent, Status] = {
    RequestEvent.SUCCEED: Status.SUCCEEDED,
    RequestEvent.FAIL: Status.FAILED,
    RequestEvent.EXPIRE: Status.EXPIRED,
    RequestEvent.CANCEL: Status.CANCELED,
    RequestEvent.GIVE_UP: Status.WEBHOOK_FAILED,
}
"""The final status after each event that decides it. After DELIVER it is the one that was decided before."""


class IllegalMoveError(Exception):
    """The event cannot happen to a request in this phase."""


def after(phase: Phase, event: RequestEvent, has_webhook: bool) -> Phase:
    """The phase after the event. Raises `IllegalMoveError`."""
    following = TRANSITIONS.get((phase, event))
    if following is None or (phase is Phase.DELIVERING and not has_webhook):
        raise IllegalMoveError(f"{event.value} in {phase.value}")
    return Phase.ENDED if following is Phase.DELIVERING and not has_webhook else following
