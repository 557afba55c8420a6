"""Every refusal: status, error code, metric cause and message, in one table (docs/reference/inference.md#errors).

A refusal is raised as an exception and has a row here. Only `render` turns one into a response. Pure.
An exception without a row is a bug of ours, and is answered 502.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from proxy.answers import Answered, Headers, RefusingLimit
from proxy.errors import (
    CallerGoneError,
    CountersUnavailableError,
    JournalUnavailableError,
    PolicyUnavailableError,
    UntranslatableError,
    UpstreamCutError,
    UpstreamResetError,
    UpstreamTimeoutError,
    UpstreamUnreachableError,
)
from runtime.exhaustion import NoLocalPortError, is_out_of_descriptors, is_out_of_memory
from runtime.shares.places import NoPlaceError


class RefusalError(Exception):
    """The request is refused. The subclass says why; an instance may say it more precisely."""

    def __init__(self, message: str = "", headers: Headers = ()) -> None:
        super().__init__(message)
        self.message = message
        self.headers = headers
        self.limit: RefusingLimit | None = None
        """The limit that refuses the request. The caller is not told it: it may be another's group's."""


class MalformedRequestError(RefusalError):
    """The head or the body is malformed; the message names the fault."""


class MalformedBodyError(MalformedRequestError):
    """The body's framing is broken."""


class AmbiguousCredentialError(RefusalError):
    """The request presents two different API keys, so it is unclear who calls and who pays."""


class NoCredentialError(RefusalError):
    """The request presents no API key, or too many credentials."""


class BillingSuspendedError(RefusalError):
    """The workspace is suspended for billing."""


class BadCredentialError(RefusalError):
    """The key is unknown or revoked, or its kind may not use this path."""


class NotOnboardedError(RefusalError):
    """The key's workspace is not onboarded to the gateway."""


class NoSuchPathError(RefusalError):
    """Refuses a path that serves nothing."""


class NoSuchSlugError(RefusalError):
    """The slug does not exist, or the group may not call it. Both get the same answer."""


class NoSuchModelError(RefusalError):
    """The model, the environment or the deployment behind the slug does not exist."""


class UpgradeError(RefusalError):
    """The caller wants a WebSocket to a model."""


class WrongMethodError(RefusalError):
    """The path does not support the method."""


class SlowBodyError(RefusalError):
    """The body does not arrive, or arrives too slowly."""


class BodyTooLargeError(RefusalError):
    """The body is above the cap, declared or streamed."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"payload size of {size_bytes} bytes exceeds maximum size of {max_bytes} bytes")


class EncodedBodyError(RefusalError):
    """The body is compressed."""


class LimitExceededError(RefusalError):
    """A limit of the caller's group, or of a group above it, is reached; or one of its workspace."""


class SpendLimitExceededError(RefusalError):
    """A spend limit of the caller's group, or of a group above it, is reached."""


class BalanceExhaustedError(RefusalError):
    """The prepaid balance that the call draws from has no credit left for it."""


class UnpricedError(RefusalError):
    """A spend limit binds the call, or it draws from a balance, and the slug has no price in that currency."""

    def __init__(self, slug: str, currency: str) -> None:
        super().__init__(
            f"{slug} has no price in {currency}, and a spend limit or prepaid balance binds;"
            " ask the operator to set one"
        )


class UnboundedCostError(RefusalError):
    """A HARD spend limit or a balance binds the call, and nothing bounds what it can cost.

    `missing`: what would, as a clause.
    """

    def __init__(self, slug: str, missing: str) -> None:
        super().__init__(
            f"{slug}: a hard spend limit or prepaid balance binds, and the cost of this call has no bound: {missing}"
        )


class AboveSpendLimitError(RefusalError):
    """The call may cost more than a HARD spend limit allows in a whole window."""


class NoSuchAsyncRequestError(RefusalError):
    """The asynchronous request does not exist, is another workspace's or model's, or ended more than an hour ago."""


class CapacityExceededError(RefusalError):
    """An earlier asynchronous request of the deployment is parked for a replica."""

    def __init__(self) -> None:
        super().__init__(headers=(("retry-after", "5"),))


class AsyncQueueFullError(RefusalError):
    """The workspace's queued payloads exceed the memory threshold."""

    def __init__(self) -> None:
        super().__init__(headers=(("retry-after", "1"),))


class AsyncNotSetUpError(RefusalError):
    """Asynchronous requests are switched off on this proxy."""


class AsyncUnavailableError(RefusalError):
    """The queue of asynchronous requests does not answer; the message says what that means for the request."""


class ModelRaisedError(RefusalError):
    """The model's code raised without a message."""


class NotRoutedError(RefusalError):
    """The call was parked until a replica is ready, and none was ready in time."""


class TargetCredentialError(RefusalError):
    """The vendor refused the target's credential. The caller's key is valid."""


class BadUpstreamAnswerError(RefusalError):
    """The upstream sent an unusable response: a redirect, or an encoding that was not asked for."""


class TargetSecretError(RefusalError):
    """The target's secret is missing, or cannot be decrypted with our keys."""


class TargetSecretUnusableError(RefusalError):
    """The target's secret cannot be sent in a header field: it was stored before control refused such values."""


class NoModelReplicaError(RefusalError):
    """The deployment has no healthy replica, or is in no state to serve."""


class ShedError(RefusalError):
    """Refuses a request for which this worker has no capacity."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, (("retry-after", "1"),))


class OutOfDescriptorsError(RefusalError):
    """Refuses a request for which this worker, or the machine, has no file descriptor left."""


class OutOfMemoryError(RefusalError):
    """Refuses a request because this worker may take no more memory."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal. `code` None: the body has only `error`. `message` None: use the exception's own text."""

    status: int
    code: str | None
    cause: str
    message: str | None = None
    headers: Headers = ()
    """Headers for an exception that has none of its own."""


TABLE: Mapping[type[Exception], Refusal] = {
    MalformedRequestError: Refusal(400, "MALFORMED_REQUEST", "malformed"),
    UntranslatableError: Refusal(400, "UNTRANSLATABLE_REQUEST", "untranslatable"),
    AmbiguousCredentialError: Refusal(
        400, "AMBIGUOUS_CREDENTIAL", "two_keys", "authorization and x-api-key hold two different API keys; send one"
    ),
    UpgradeError: Refusal(
        400,
        "WEBSOCKET_UNSUPPORTED",
        "websocket",
        "WebSockets are not supported; POST to predict, or call a path below sync/, and read the answer as a stream",
    ),
    AboveSpendLimitError: Refusal(400, "ABOVE_SPEND_LIMIT", "above_spend_limit"),
    NoCredentialError: Refusal(401, None, "no_credential", "Unauthorized"),
    BillingSuspendedError: Refusal(402, "BILLING_SUSPENDED", "suspended", "The workspace is suspended for billing"),
    BalanceExhaustedError: Refusal(
        402,
        "BALANCE_EXHAUSTED",
        "balance",
        "The prepaid balance has no credit left for this call; ask for a top-up",
    ),
    UnpricedError: Refusal(402, "UNPRICED", "unpriced"),
    UnboundedCostError: Refusal(402, "UNPRICED", "unbounded_cost"),
    BadCredentialError: Refusal(403, None, "bad_credential", "Authentication failed"),
    NotOnboardedError: Refusal(403, None, "not_onboarded", "Authentication failed"),
    NoSuchPathError: Refusal(404, "NOT_FOUND", "no_such_path", "There is nothing at this path"),
    NoSuchSlugError: Refusal(404, "MODEL_NOT_FOUND", "no_such_slug"),
    NoSuchModelError: Refusal(404, "MODEL_NOT_FOUND", "no_such_model", "The model or deployment does not exist"),
    NoSuchAsyncRequestError: Refusal(
        404, "REQUEST_NOT_FOUND", "no_such_async_request", "The asynchronous request does not exist"
    ),
    WrongMethodError: Refusal(405, "METHOD_NOT_ALLOWED", "wrong_method"),
    SlowBodyError: Refusal(408, "REQUEST_TIMEOUT", "slow_body", "The request did not arrive in time"),
    BodyTooLargeError: Refusal(413, "PAYLOAD_TOO_LARGE", "too_large"),
    EncodedBodyError: Refusal(415, "UNSUPPORTED_ENCODING", "encoded_body", "content-encoding must be identity"),
    LimitExceededError: Refusal(429, "RATE_LIMITED", "limit"),
    SpendLimitExceededError: Refusal(429, "SPEND_LIMIT_EXCEEDED", "spend_limit"),
    CapacityExceededError: Refusal(
        429, "CAPACITY_EXCEEDED", "async_parked", "An earlier request of the deployment is parked for a replica"
    ),
    AsyncQueueFullError: Refusal(
        429, "ASYNC_QUEUE_FULL", "async_queue_full", "The workspace's queued requests exceed the memory threshold"
    ),
    CallerGoneError: Refusal(499, "CLIENT_CLOSED_REQUEST", "caller_gone", "Client closed connection"),
    ModelRaisedError: Refusal(500, "MODEL_ERROR", "model_raised", "Internal Server Error (in model/chainlet)."),
    NotRoutedError: Refusal(500, "NOT_ROUTED", "parking_timeout", "Failed to route request"),
    UpstreamResetError: Refusal(502, "UPSTREAM_ERROR", "upstream_reset", "Error making prediction"),
    UpstreamCutError: Refusal(502, "UPSTREAM_ERROR", "upstream_cut", "Error making prediction"),
    BadUpstreamAnswerError: Refusal(502, "UPSTREAM_ERROR", "bad_upstream_answer", "Error making prediction"),
    TargetCredentialError: Refusal(
        502, "TARGET_CREDENTIAL_REJECTED", "target_credential", "Upstream rejected the target's credential"
    ),
    UpstreamUnreachableError: Refusal(503, "UPSTREAM_UNREACHABLE", "unreachable", "The upstream cannot be reached"),
    NoModelReplicaError: Refusal(503, "NO_REPLICA", "no_replica", "No replica of the deployment is available"),
    TargetSecretError: Refusal(
        503, "TARGET_SECRET_UNAVAILABLE", "no_secret", "The target's credential is not available"
    ),
    TargetSecretUnusableError: Refusal(
        503, "TARGET_SECRET_UNUSABLE", "unusable_secret", "The target's credential is unusable"
    ),
    PolicyUnavailableError: Refusal(503, "POLICY_UNAVAILABLE", "no_policy", "The gateway has no policy to answer from"),
    CountersUnavailableError: Refusal(503, "LIMITS_UNAVAILABLE", "no_counters", "Limits cannot be checked right now"),
    JournalUnavailableError: Refusal(
        503, "METERING_UNAVAILABLE", "no_journal", "The call cannot be recorded right now"
    ),
    AsyncNotSetUpError: Refusal(503, "ASYNC_NOT_SET_UP", "async_off", "Asynchronous requests are not set up here"),
    AsyncUnavailableError: Refusal(503, "ASYNC_UNAVAILABLE", "async_unavailable"),
    UpstreamTimeoutError: Refusal(504, "UPSTREAM_TIMEOUT", "timeout", "The prediction exceeded the request timeout"),
    ShedError: Refusal(529, "CAPACITY_EXHAUSTED", "shed", "Capacity exhausted, try again later"),
    NoPlaceError: Refusal(
        529, "CAPACITY_EXHAUSTED", "long_work", "Capacity exhausted, try again later", (("retry-after", "1"),)
    ),
    OutOfDescriptorsError: Refusal(
        529, "CAPACITY_EXHAUSTED", "descriptors", "Capacity exhausted, try again later", (("retry-after", "1"),)
    ),
    OutOfMemoryError: Refusal(
        529, "CAPACITY_EXHAUSTED", "memory", "Capacity exhausted, try again later", (("retry-after", "1"),)
    ),
    NoLocalPortError: Refusal(
        529, "CAPACITY_EXHAUSTED", "ports", "Capacity exhausted, try again later", (("retry-after", "1"),)
    ),
}

EXHAUSTED = (TABLE[OutOfDescriptorsError], TABLE[OutOfMemoryError], TABLE[NoLocalPortError])
"""Refusals because the process, or the machine, has run out of something."""

BUG = Refusal(502, "INTERNAL_GATEWAY_ERROR", "bug")

UPSTREAM_MESSAGES: Mapping[int, str] = {
    400: "The upstream refused the request as malformed",
    404: "The upstream does not know the model",
    413: "The upstream refused the request as too large",
    422: "The upstream could not process the request",
    429: "The upstream's rate limit is exceeded",
    500: "The upstream failed",
    502: "Error making prediction",
    503: "The upstream is not available",
    504: "The upstream timed out",
    529: "Capacity exhausted, try again later",
}
"""The message for the caller when the upstream's error had an empty body."""


def row_of(error: Exception) -> Refusal:
    """The row of the error's class, or of its nearest base that has one; of what the system has run out of."""
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), BUG)
    if row is BUG and is_out_of_descriptors(error):
        return TABLE[OutOfDescriptorsError]
    return TABLE[OutOfMemoryError] if row is BUG and is_out_of_memory(error) else row


def render(error: Exception, request_id: str) -> Answered:
    """The refusal's response. `x-request-id` is added when the head is sent."""
    row = row_of(error)
    if row is BUG:
        return flat(BUG.status, f"Internal gateway error (request id: {request_id})", BUG.code)
    headers = (error.headers if isinstance(error, RefusalError) else ()) or row.headers
    return flat(row.status, row.message or str(error), row.code, headers)


def flat(status: int, message: str, code: str | None, headers: Headers = ()) -> Answered:
    """An error in the proxy's own form: a flat object with `error`, and `error_code` except for 401 and 403."""
    body = {"error": message} if code is None else {"error": message, "error_code": code}
    return Answered(status, (("content-type", "application/json"), *headers), orjson.dumps(body), message)
