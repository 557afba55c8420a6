"""The table of refusals: every row renders, statuses are the contract's, a bug says only its request id."""

import json

import pytest

from proxy import refusals
from proxy.dialects.upstream_request import UntranslatableError
from proxy.exchange import CallerGoneError, CountersUnavailableError, UpstreamCutError
from proxy.refusals import (
    TABLE,
    BadCredentialError,
    BodyTooLargeError,
    NoCredentialError,
    NotRoutedError,
    RefusalError,
    ShedError,
    render,
)

STATUSES = {400, 401, 402, 403, 404, 405, 408, 413, 415, 429, 499, 500, 502, 503, 504, 529}


def every_refusal() -> set[type[RefusalError]]:
    found, todo = set[type[RefusalError]](), [RefusalError]
    while todo:
        todo += todo.pop().__subclasses__()
        found.update(todo)
    return found


def test_every_refusal_has_a_row_of_its_own_or_of_its_base() -> None:
    assert all(any(kind in TABLE for kind in refusal.__mro__) for refusal in every_refusal())


def test_the_statuses_are_those_of_the_contract() -> None:
    assert {row.status for row in TABLE.values()} == STATUSES


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.cause)
def test_each_row_is_flat_and_401_and_403_are_error_alone(row: refusals.Refusal) -> None:
    assert (row.code is None) == (row.status in (401, 403))
    assert row.code is None or row.code == row.code.upper()


def test_causes_and_codes_tell_refusals_apart() -> None:
    causes = [row.cause for row in TABLE.values()]
    assert len(causes) == len(set(causes))


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (NoCredentialError(), 401, {"error": "Unauthorized"}),
        (BadCredentialError(), 403, {"error": "Authentication failed"}),
        (NotRoutedError(), 500, {"error": "Failed to route request", "error_code": "NOT_ROUTED"}),
        (
            BodyTooLargeError(11, 10),
            413,
            {
                "error": "payload size of 11 bytes exceeds maximum size of 10 bytes",
                "error_code": "PAYLOAD_TOO_LARGE",
            },
        ),
        (UpstreamCutError(), 502, {"error": "Error making prediction", "error_code": "UPSTREAM_ERROR"}),
    ],
)
def test_the_words_are_the_contracts(error: Exception, status: int, body: dict[str, str]) -> None:
    answered = render(error, "r-1")
    assert (answered.status, json.loads(answered.final)) == (status, body)


def test_what_cannot_be_translated_names_the_field() -> None:
    answered = render(UntranslatableError("logprobs"), "r-1")
    assert answered.status == 400
    assert "logprobs" in json.loads(answered.final)["error"]


def test_a_bug_of_ours_shows_its_request_id_and_nothing_else() -> None:
    answered = render(KeyError("sk-secret"), "r-1")
    assert answered.status == 502
    assert json.loads(answered.final) == {
        "error": "Internal gateway error (request id: r-1)",
        "error_code": "INTERNAL_GATEWAY_ERROR",
    }


def test_shed_calls_are_told_when_to_come_back() -> None:
    assert ("retry-after", "1") in list(render(ShedError(), "r").headers)


def test_outages_are_never_the_callers_fault() -> None:
    assert render(CountersUnavailableError(), "r").status == 503
    assert TABLE[CallerGoneError].message == "Client closed connection"
