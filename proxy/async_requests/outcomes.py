"""Effects of an attempt's end on its request: it has succeeded, has failed, or is attempted again. Pure.

`endings.py` has the errors of requests that ended without an attempt.

See docs/reference/inference.md#asynchronous-requests.
"""

from dataclasses import dataclass

from policy.endpoints import PLATFORM, Target
from proxy.answers import Headers
from proxy.async_requests.endings import DEPLOYMENT_GONE, OUT_OF_TIME
from proxy.async_requests.requests import Again, Failed, RequestAttempt, RequestError, RetryRules
from proxy.async_requests.states import ErrorCode
from proxy.errors import UpstreamCutError, UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from proxy.http_rules.headers import is_encoded
from proxy.http_rules.upstream_errors import MAX_REASON_CHARS, discreet, error_for_caller, host_of, without_secrets
from proxy.refusals import BadUpstreamAnswerError, NoModelReplicaError, NoSuchModelError

MAX_ANSWER_BYTES = 100_000_000
"""Largest answer of a model."""
SHORTEST_ATTEMPT_MS = 100
"""No attempt begins with less time than this left: clocks differ by about as much."""
_PASSING_STATUSES = frozenset((500, 502, 503, 504))
_MODEL_SERVER = Target(PLATFORM)
"""Stands for every replica where an error's origin matters."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The error of a failed attempt. `may_pass`: another attempt may succeed."""

    error: RequestError
    may_pass: bool = False


def _predict_fault(message: str, may_pass: bool = False) -> Fault:
    return Fault(RequestError(ErrorCode.MODEL_PREDICT_ERROR, message), may_pass)


BROKEN = _predict_fault("the connection to the model broke before its answer was complete", may_pass=True)
SILENT = _predict_fault("the model stopped in the middle of its answer", may_pass=True)
REDIRECTED = _predict_fault("the model answered with a status that is neither a success nor an error")
TOO_LARGE = _predict_fault(f"the model's answer exceeds the maximum size of {MAX_ANSWER_BYTES} bytes")
UNREADABLE = _predict_fault("the model's answer is not UTF-8 text, so no webhook can carry it")
UNREACHABLE = Fault(RequestError(ErrorCode.MODEL_UNAVAILABLE, "no replica of the deployment can be reached"), True)
_NOTHING_LEFT = "this machine has no file descriptor, memory or local port left"
EXHAUSTED = Fault(RequestError(ErrorCode.MODEL_UNAVAILABLE, _NOTHING_LEFT), True)
TIMED_OUT = Fault(RequestError(ErrorCode.MODEL_PREDICT_TIMEOUT, "the prediction exceeded the time that it may take"))
DELETED = Fault(DEPLOYMENT_GONE)
BUG = Fault(RequestError(ErrorCode.INTERNAL_SERVER_ERROR, "internal gateway error"), may_pass=True)


def is_success(status: int) -> bool:
    return 200 <= status < 300


def fault_of_answer(status: int, headers: Headers, body: bytes, url: str) -> Fault:
    """The fault of an answer that is no success. `body`: as much as is worth reading. `url`: where it came from."""
    if not 400 <= status <= 599:
        return REDIRECTED
    if status == 404:
        code = ErrorCode.MODEL_DOES_NOT_EXIST
    else:
        code = ErrorCode.MODEL_INVALID_INPUT if status < 500 else ErrorCode.MODEL_PREDICT_ERROR
    text = "" if is_encoded(headers) else _own_text(status, body, url)
    message = f"the model answered {status}: {text}" if text else f"the model answered {status}"
    return Fault(RequestError(code, message), status in _PASSING_STATUSES)


def fault_of_error(error: Exception, attempt: RequestAttempt, now_ms: int) -> Fault:
    """The fault of an attempt that got no complete answer. `now_ms`: by the workspace's time."""
    match error:
        case UpstreamTimeoutError():
            return TIMED_OUT if _is_over(attempt, now_ms) else SILENT
        case UpstreamResetError() | UpstreamCutError():
            return BROKEN
        case UpstreamUnreachableError() | NoModelReplicaError():
            return UNREACHABLE
        case BadUpstreamAnswerError():
            return REDIRECTED
        case NoSuchModelError():
            return DELETED
        case _:
            return BUG


def outcome_of(fault: Fault, attempt: RequestAttempt, now_ms: int) -> Failed | Again:
    """Decide what follows from an attempt that failed. `now_ms`: by the workspace's time."""
    number = attempt.ref.attempt
    rules = attempt.retries
    if not fault.may_pass or number >= rules.max_attempts:
        return Failed(fault.error)
    pause_ms = delay_ms(rules, number)
    if _is_over(attempt, now_ms + pause_ms):
        message = f"{OUT_OF_TIME.message}; the last one: {fault.error.message}"
        return Failed(RequestError(OUT_OF_TIME.code, message))
    return Again(pause_ms, fault.error)


def delay_ms(rules: RetryRules, failed_attempts: int) -> int:
    """The pause after so many failed attempts: it doubles with each, up to `max_delay_ms`."""
    return min(rules.initial_delay_ms << (failed_attempts - 1), rules.max_delay_ms)


def _is_over(attempt: RequestAttempt, at_ms: int) -> bool:
    return at_ms + SHORTEST_ATTEMPT_MS > attempt.run_until_ms


def _own_text(status: int, body: bytes, url: str) -> str:
    """The model server's own words, bounded, without the name of its host."""
    host = host_of(url)
    body = without_secrets(body, host)
    if not body.strip():
        return ""
    answered = discreet(error_for_caller(status, (), body, _MODEL_SERVER), host)
    return answered.reason or body.decode("utf-8", "replace")[:MAX_REASON_CHARS]
