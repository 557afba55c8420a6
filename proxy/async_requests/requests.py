"""Asynchronous requests as values: what a caller asks, what a worker runs, what a webhook is told. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.async_requests.states import ErrorCode, Status, WebhookStatus

PRIORITIES = (0, 1, 2)
"""0 is served first."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """`inference_retry_config`: how often a request is attempted, and how long it pauses before the next attempt."""

    max_attempts: int = 3
    initial_delay_ms: int = 1000
    max_delay_ms: int = 5000


@dataclass(frozen=True, slots=True)
class Submission:
    """The body of `async_predict`, checked. `model_input`: the JSON text exactly as the caller wrote it."""

    model_input: bytes
    webhook_endpoint: str | None = None
    priority: int = 0
    max_time_in_queue_s: int = 600
    retries: RetryRules = RetryRules()


@dataclass(frozen=True, slots=True, order=True)
class DeploymentRef:
    """The deployment that a request is for. It is fixed when the request is accepted."""

    workspace_id: str
    model_id: str
    deployment_id: str


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that is to be queued. `id` is unique for ever. `path`: of the call, for the deployment's log."""

    id: str
    deployment: DeploymentRef
    path: str
    submission: Submission


@dataclass(frozen=True, slots=True)
class RequestError:
    """An entry of `errors`. `message` is for the caller: it names no host and no address."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class RequestState:
    """A request as `GET /async_request/{id}` shows it. Times: milliseconds since 1970, by Redis' clock as it is now."""

    request_id: str
    deployment: DeploymentRef
    status: Status
    webhook_status: WebhookStatus
    created_at_ms: int
    status_at_ms: int
    errors: tuple[RequestError, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The answer to a cancel. `status`: as it is now."""

    canceled: bool
    status: Status


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Figures of `GET …/async_queue_status`. `queued`: by priority, every priority named."""

    queued: Mapping[int, int]
    in_progress: int


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """One attempt, held by one worker. Whoever holds an attempt no longer can neither renew nor finish it."""

    deployment: DeploymentRef
    request_id: str
    attempt: int
    """1 for the first."""
    holder: str
    """The worker's incarnation."""


@dataclass(frozen=True, slots=True)
class RequestAttempt:
    """An attempt that has begun."""

    ref: AttemptRef
    model_input: bytes
    retries: RetryRules
    path: str
    keeps_answer: bool
    """True if a webhook waits for the answer."""
    run_until_ms: int
    """Time by which the request must have ended, by the workspace's clock: 3600 s after its first attempt began."""
    started_at_ms: int
    queued_ms: int
    """Time for which the request was QUEUED."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The model's answer is stored, if it is kept: `size_bytes` in `chunks` chunks."""

    size_bytes: int = 0
    chunks: int = 0
    is_json: bool = True
    """True if the answer is JSON text; otherwise it is text, and its webhook gets it as a JSON string."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request has failed for good."""

    error: RequestError


@dataclass(frozen=True, slots=True)
class Again:
    """The attempt has failed, and another one follows after the delay. `error`: in case there is no time for it."""

    delay_ms: int
    error: RequestError


Outcome = Succeeded | Failed | Again


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request's end, on its way to its webhook. `attempt` of the delivery: 1 for the first."""

    deployment: DeploymentRef
    request_id: str
    webhook_endpoint: str
    attempt: int
    holder: str
    status: Status
    """The outcome: SUCCEEDED, FAILED or EXPIRED."""
    ended_at_ms: int
    """The time by Redis' clock as it was when this try began."""
    age_ms: int
    """Time from the request's end to that moment."""
    errors: tuple[RequestError, ...]
    answer: Succeeded | None
    """Place of the model's answer, if there is one."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work in one workspace, after a sweep."""

    startable: Mapping[DeploymentRef, int]
    """Requests that an attempt could begin for now: QUEUED ones, and PAUSED ones whose delay is over."""
    deliveries: int
    """Deliveries that are due."""
    stored_answer_bytes: int
    next_due_in_ms: int | None = None
    """Time until the next pause, expiry or redelivery is due."""
    ended: Sequence[tuple[DeploymentRef, Status, int]] = ()
    """Requests whose outcome this sweep has decided, with their time in the queue in milliseconds, for metrics."""
    more: bool = False
    """True if the sweep stopped at its bound: sweep again at once."""
    uncounted: Mapping[tuple[DeploymentRef, Status], int] = field(default_factory=dict)
    """Requests that have ended since the last sweep, and not by a worker's attempt, delivery or cancel, for metrics."""


@dataclass(frozen=True, slots=True)
class DeploymentFigures:
    """One deployment's part of the queue, for metrics. `queued`: by priority, every priority named."""

    deployment: DeploymentRef
    queued: Mapping[int, int]
    in_progress: int
    oldest_queued_s: float | None
    """Seconds for which the oldest of its QUEUED requests has waited."""
