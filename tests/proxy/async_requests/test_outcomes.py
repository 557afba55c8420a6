"""The end of an attempt decides its error code, whether another attempt follows, and when."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.async_requests.outcomes import (
    BROKEN,
    BUG,
    DELETED,
    REDIRECTED,
    SHORTEST_ATTEMPT_MS,
    SILENT,
    TIMED_OUT,
    TOO_LARGE,
    UNREACHABLE,
    UNREADABLE,
    Fault,
    delay_ms,
    fault_of_answer,
    fault_of_error,
    is_success,
    outcome_of,
)
from proxy.async_requests.requests import Again, AttemptRef, DeploymentRef, Failed, RequestAttempt, RetryRules
from proxy.async_requests.states import ErrorCode
from proxy.errors import UpstreamCutError, UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from proxy.refusals import BadUpstreamAnswerError, NoModelReplicaError, NoSuchModelError

URL = "http://replica.internal:8000/predict"
HOUR_MS = 3_600_000


RULES_BY_DEFAULT = RetryRules()


def attempt(number: int = 1, rules: RetryRules = RULES_BY_DEFAULT, run_until_ms: int = HOUR_MS) -> RequestAttempt:
    ref = AttemptRef(DeploymentRef("w", "m", "d"), "r", number, "h")
    return RequestAttempt(ref, b"1", rules, "/predict", True, run_until_ms, 0, 0)


def of_answer(status: int, body: bytes = b"") -> Fault:
    return fault_of_answer(status, (), body, URL)


# --- Faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((404,), ErrorCode.MODEL_DOES_NOT_EXIST),
        ((400, 401, 403, 405, 408, 413, 422, 429, 499), ErrorCode.MODEL_INVALID_INPUT),
        ((500, 501, 502, 503, 504, 505, 529, 599), ErrorCode.MODEL_PREDICT_ERROR),
        ((100, 199, 301, 304, 307, 399, 600, 999), ErrorCode.MODEL_PREDICT_ERROR),
    ],
)
def test_status_has_its_code_and_only_four_are_tried_again(statuses: tuple[int, ...], code: ErrorCode) -> None:
    for status in statuses:
        fault = of_answer(status)
        assert (status, fault.error.code) == (status, code)
        assert (status, fault.may_pass) == (status, status in (500, 502, 503, 504))
        assert not is_success(status)


def test_every_2xx_is_a_success() -> None:
    assert all(map(is_success, (200, 201, 202, 204, 299)))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": "out of memory"}', "out of memory"),
        (b'{"error": {"message": "no such adapter", "code": 7}}', "no such adapter"),
        (b'{"error": {"code": 7}}', '{"error": {"code": 7}}'),
        (b'{"detail": "bad"}', '{"detail": "bad"}'),
        ("  Fünf \n".encode(), "Fünf"),
        (b"\xff!", "\ufffd!"),
        (b'{"error": "at http://replica.internal:8000/x"}', "at http://[hidden]/x"),
        (b'{"error": "at replica.intern\\u0061l:8000"}', "at [hidden]"),
        (b'{"error": {"at": "replica.internal:8000"}}', '{"error": {"at": "[hidden]"}}'),
        (b"x" * 5000, "x" * 1000),
        (orjson.dumps({"error": "x" * 5000}), "x" * 1000),
    ],
)
def test_message_quotes_the_model_server(body: bytes, text: str) -> None:
    assert of_answer(503, body).error.message == f"the model answered 503: {text}"
    assert of_answer(422, body).error.message == f"the model answered 422: {text}"


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_empty_error_is_told_by_its_status(body: bytes) -> None:
    for status in (404, 422, 500, 503):
        assert of_answer(status, body).error.message == f"the model answered {status}"


def test_compressed_error_is_not_quoted() -> None:
    fault = fault_of_answer(500, (("content-encoding", "gzip"),), b"\x1f\x8b", URL)
    assert fault.error.message == "the model answered 500"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (UpstreamResetError(), BROKEN),
        (UpstreamCutError(), BROKEN),
        (UpstreamUnreachableError(), UNREACHABLE),
        (NoModelReplicaError(), UNREACHABLE),
        (BadUpstreamAnswerError(), REDIRECTED),
        (NoSuchModelError(), DELETED),
        (UpstreamTimeoutError(), SILENT),
        (ValueError("of ours"), BUG),
    ],
)
def test_error_has_its_fault(error: Exception, fault: Fault) -> None:
    assert fault_of_error(error, attempt(), HOUR_MS - 10_000) is fault


def test_timeout_at_the_requests_end_is_its_own() -> None:
    for now_ms in (HOUR_MS - SHORTEST_ATTEMPT_MS + 1, HOUR_MS, HOUR_MS + 5000):
        assert fault_of_error(UpstreamTimeoutError(), attempt(), now_ms) is TIMED_OUT
    assert fault_of_error(UpstreamTimeoutError(), attempt(), HOUR_MS - SHORTEST_ATTEMPT_MS) is SILENT


def test_codes_of_faults_without_an_answer() -> None:
    assert {fault.error.code for fault in (BROKEN, SILENT, REDIRECTED, TOO_LARGE, UNREADABLE)} == {
        ErrorCode.MODEL_PREDICT_ERROR
    }
    assert UNREACHABLE.error.code is ErrorCode.MODEL_UNAVAILABLE
    assert TIMED_OUT.error.code is ErrorCode.MODEL_PREDICT_TIMEOUT
    assert DELETED.error.code is ErrorCode.MODEL_DOES_NOT_EXIST
    assert BUG.error.code is ErrorCode.INTERNAL_SERVER_ERROR


# --- What follows ---------------------------------------------------------------------------------------------------


def test_attempts_end_after_the_last_one() -> None:
    rules = RetryRules(max_attempts=3)
    assert outcome_of(BROKEN, attempt(1, rules), 0) == Again(1000, BROKEN.error)
    assert outcome_of(BROKEN, attempt(2, rules), 0) == Again(2000, BROKEN.error)
    assert outcome_of(BROKEN, attempt(3, rules), 0) == Failed(BROKEN.error)
    assert outcome_of(BUG, attempt(1, RetryRules(max_attempts=1)), 0) == Failed(BUG.error)


@pytest.mark.parametrize("fault", [REDIRECTED, TOO_LARGE, UNREADABLE, TIMED_OUT, DELETED])
def test_what_cannot_pass_fails_at_once(fault: Fault) -> None:
    assert outcome_of(fault, attempt(), 0) == Failed(fault.error)


def test_pause_beyond_the_requests_end_is_a_timeout_that_names_the_fault() -> None:
    last_ms = HOUR_MS - 1000 - SHORTEST_ATTEMPT_MS
    assert outcome_of(UNREACHABLE, attempt(), last_ms) == Again(1000, UNREACHABLE.error)
    late = outcome_of(UNREACHABLE, attempt(), last_ms + 1)
    assert isinstance(late, Failed)
    assert late.error.code is ErrorCode.MODEL_PREDICT_TIMEOUT
    assert late.error.message.endswith(f"; the last one: {UNREACHABLE.error.message}")
    assert outcome_of(UNREACHABLE, attempt(3), last_ms + 1) == Failed(UNREACHABLE.error)


def test_delay_doubles_up_to_its_bound() -> None:
    rules = RetryRules(10, 100, 1000)
    assert [delay_ms(rules, failed) for failed in range(1, 10)] == [100, 200, 400, 800, *[1000] * 5]
    assert delay_ms(RetryRules(10, 5000, 200), 1) == 200
    assert delay_ms(RetryRules(10, 0, 60_000), 9) == 0


RULES = st.builds(RetryRules, st.integers(1, 10), st.integers(0, 10_000), st.integers(0, 60_000))


@given(RULES, st.integers(0, 2 * HOUR_MS), st.sampled_from([BROKEN, SILENT, UNREACHABLE, BUG]))
def test_every_request_ends_in_time(rules: RetryRules, now_ms: int, fault: Fault) -> None:
    for number in range(1, rules.max_attempts + 1):
        outcome = outcome_of(fault, attempt(number, rules), now_ms)
        if isinstance(outcome, Failed):
            return
        assert 0 <= outcome.delay_ms <= rules.max_delay_ms
        now_ms += outcome.delay_ms
        assert now_ms < HOUR_MS
    pytest.fail("the request goes on after its last attempt")
