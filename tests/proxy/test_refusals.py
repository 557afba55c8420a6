"""The table of refusals: every row renders with the contract's status; an internal error shows only its request id."""

import errno
import json
import socket

import pytest

from proxy import refusals
from proxy.errors import CallerGoneError, CountersUnavailableError, UntranslatableError, UpstreamCutError
from proxy.refusals import (
    BUG,
    TABLE,
    BadCredentialError,
    BodyTooLargeError,
    NoCredentialError,
    NotRoutedError,
    OutOfDescriptorsError,
    OutOfMemoryError,
    RefusalError,
    ShedError,
    render,
    row_of,
)
from runtime.exhaustion import NoLocalPortError

STATUSES = {400, 401, 402, 403, 404, 405, 408, 413, 415, 429, 499, 500, 502, 503, 504, 529}


def every_refusal() -> set[type[RefusalError]]:
    refusals = set[type[RefusalError]]()
    todo = [RefusalError]
    while todo:
        todo += todo.pop().__subclasses__()
        refusals.update(todo)
    return refusals


def test_every_refusal_is_in_the_table() -> None:
    assert all(any(kind in TABLE for kind in refusal.__mro__) for refusal in every_refusal())


def test_statuses_of_refusals_match_the_contract() -> None:
    assert {row.status for row in TABLE.values()} == STATUSES


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.cause)
def test_only_401_and_403_have_no_error_code(row: refusals.Refusal) -> None:
    assert (row.code is None) == (row.status in (401, 403))
    assert row.code is None or row.code == row.code.upper()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, "x"), OutOfDescriptorsError),
        (OSError(errno.ENFILE, "x"), OutOfDescriptorsError),
        (OSError(errno.ENOMEM, "x"), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
        (OSError(errno.ENOBUFS, "x"), OutOfMemoryError),
        (socket.gaierror(socket.EAI_MEMORY, "x"), OutOfMemoryError),
        (RuntimeError("can't start new thread"), OutOfMemoryError),
        (NoLocalPortError(errno.EADDRNOTAVAIL, "x"), NoLocalPortError),
    ],
)
def test_what_the_system_has_run_out_of_sheds_the_call(error: Exception, kind: type[Exception]) -> None:
    answered = render(error, "r-1")
    assert row_of(error) is TABLE[kind]
    assert (answered.status, json.loads(answered.final)["error_code"]) == (529, "CAPACITY_EXHAUSTED")
    assert ("retry-after", "1") in answered.headers


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), ConnectionResetError(), RuntimeError("another")])
def test_other_errors_of_the_system_are_bugs(error: Exception) -> None:
    assert row_of(error) is BUG


def test_causes_of_refusals_are_unique() -> None:
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
def test_refusal_bodies_match_the_contract(error: Exception, status: int, body: dict[str, str]) -> None:
    answer = render(error, "r-1")
    assert (answer.status, json.loads(answer.final)) == (status, body)


def test_untranslatable_request_names_the_field() -> None:
    answer = render(UntranslatableError("logprobs"), "r-1")
    assert answer.status == 400
    assert "logprobs" in json.loads(answer.final)["error"]


def test_internal_error_shows_only_its_request_id() -> None:
    answer = render(KeyError("sk-secret"), "r-1")
    assert answer.status == 502
    assert json.loads(answer.final) == {
        "error": "Internal gateway error (request id: r-1)",
        "error_code": "INTERNAL_GATEWAY_ERROR",
    }


def test_shed_call_has_a_retry_after() -> None:
    assert ("retry-after", "1") in list(render(ShedError(), "r").headers)


def test_unreachable_counters_render_as_a_503() -> None:
    assert render(CountersUnavailableError(), "r").status == 503
    assert TABLE[CallerGoneError].message == "Client closed connection"
