"""A delivery's body is the same JSON however its answer was cut into chunks, and any receiver's library verifies it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from proxy.async_requests import deliveries
from proxy.async_requests.deliveries import TRIES_AT_S, ResultBody, SignedHeaders, again_in_ms, without_answer
from proxy.async_requests.endings import NEVER_READY
from proxy.async_requests.queues import DELIVERY_TRIES
from proxy.async_requests.requests import Delivery, DeploymentRef, RequestError, Succeeded
from proxy.async_requests.states import ErrorCode, Status

ENDED_MS = 1_700_000_000_123
SECRETS = ("whsec_" + "QUJD" * 8, "whsec_" + "REVG" * 8)


def delivery(answer: Succeeded | None = None, attempt: int = 1, errors: tuple[RequestError, ...] = ()) -> Delivery:
    status = Status.FAILED if answer is None else Status.SUCCEEDED
    url = "https://receiver.example/"
    return Delivery(DeploymentRef("w1", "m1", "d1"), "r1", url, attempt, "h", status, ENDED_MS, 0, errors, answer)


def pieces(delivery: Delivery, chunks: Sequence[bytes] = ()) -> list[bytes]:
    body = ResultBody(delivery)
    return [body.begin(), *(part for chunk in chunks for part in body.chunk_parts(chunk)), body.end()]


def cut(text: bytes, at: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[start:end] for start, end in pairwise(places)]


# --- The body -------------------------------------------------------------------------------------------------------


def test_body_of_a_success_holds_the_answers_own_bytes() -> None:
    answer = b'{ "b": 1.0, "a": [1e2,"\\u00e9"] }\n'
    assert b"".join(pieces(delivery(Succeeded()), cut(answer, [3, 9]))) == (
        b'{"request_id":"r1","model_id":"m1","deployment_id":"d1","type":"async_request_completed",'
        b'"time":"2023-11-14T22:13:20.123Z","data":' + answer + b',"errors":[]}'
    )


def test_body_of_a_failure_has_no_data_and_its_errors() -> None:
    errors = (NEVER_READY, RequestError(ErrorCode.MODEL_PREDICT_ERROR, 'said "no"\n'))
    result = orjson.loads(b"".join(pieces(delivery(errors=errors))))
    assert result["data"] is None
    assert result["errors"] == [
        {"code": "MODEL_NOT_READY", "message": NEVER_READY.message},
        {"code": "MODEL_PREDICT_ERROR", "message": 'said "no"\n'},
    ]


def test_lost_answer_is_told_as_a_failure() -> None:
    failure = without_answer(delivery(Succeeded(size_bytes=9, chunks=2)))
    assert failure.status is Status.FAILED
    body = orjson.loads(b"".join(pieces(failure)))
    assert (body["data"], [error["code"] for error in body["errors"]]) == (None, ["INTERNAL_SERVER_ERROR"])


@given(st.text(), st.lists(st.integers(0, 1000), max_size=5), st.integers(1, 7))
def test_text_becomes_a_json_string_wherever_it_is_cut(text: str, at: list[int], piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries, "PIECE_BYTES", piece_bytes)
        body = b"".join(pieces(delivery(Succeeded(is_json=False)), cut(text.encode(), at)))
    assert json.loads(body)["data"] == orjson.loads(body)["data"] == text


@pytest.mark.parametrize("text", ["", '"', "\\", "\0\x1f\x7f", "漢😀é\u2028", "NaN", "x" * 200_000])
def test_text_that_needs_escapes(text: str) -> None:
    result = delivery(Succeeded(is_json=False))
    whole = b"".join(pieces(result, [text.encode()]))
    assert json.loads(whole)["data"] == text
    assert b"".join(pieces(result, cut(text.encode(), range(5)))) == whole


def test_bytes_that_are_no_text_leave_the_body_valid() -> None:
    for text in (b"a\xff", b"a\xe6\xbc"):  # the second one breaks off in a character
        assert orjson.loads(b"".join(pieces(delivery(Succeeded(is_json=False)), [text])))["data"] == "a\ufffd"


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3)))
def test_json_is_told_as_it_is(value: Any) -> None:
    body = b"".join(pieces(delivery(Succeeded()), cut(json.dumps(value).encode(), [1, 2])))
    assert json.loads(body)["data"] == value  # orjson makes floats of whole numbers beyond 64 bits


# --- Signatures -----------------------------------------------------------------------------------------------------


def signed(parts: Sequence[bytes], secrets: Sequence[str]) -> tuple[SignedHeaders, dict[str, str]]:
    signing = SignedHeaders("r1", int(datetime.now(UTC).timestamp()), secrets)
    for part in parts:
        signing.add(part)
    return signing, signing.headers()


def test_receivers_library_verifies_with_either_secret_and_no_other() -> None:
    parts = pieces(delivery(Succeeded(is_json=False)), ["é漢".encode()[:4], "é漢".encode()[4:], b"x" * 100_000])
    body = b"".join(parts)
    signing, headers = signed(parts, SECRETS)
    assert signing.size_bytes == len(body)
    for secret in SECRETS:
        assert Webhook(secret).verify(body, headers)["data"].startswith("é漢x")
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body[:-1] + b" }", headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, headers | {"webhook-id": "r2"})
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "R0hJ" * 8).verify(body, headers)


def test_signature_is_the_librarys_own() -> None:
    moment = datetime(2026, 11, 23, 4, 5, 6)
    signing = SignedHeaders("r1", int(moment.replace(tzinfo=UTC).timestamp()), SECRETS)
    for part in (b'{"a":', b"", b"1}"):
        signing.add(part)
    expected = " ".join(Webhook(secret).sign("r1", moment, '{"a":1}') for secret in SECRETS)
    assert signing.headers() == {
        "content-type": "application/json",
        "webhook-id": "r1",
        "webhook-timestamp": "1795406706",
        "webhook-signature": expected,
    }


@pytest.mark.parametrize("secret", ["whsec_QUI", "whsec_QUI=", "QUI="])
def test_secret_may_lack_its_prefix_and_padding(secret: str) -> None:
    _, headers = signed([b"{}"], [secret])
    assert Webhook("whsec_QUI=").verify(b"{}", headers) == {}


def test_without_a_secret_there_is_no_signature() -> None:
    signing, headers = signed([b"12345"], ())
    assert "webhook-signature" not in headers
    assert headers["webhook-id"] == "r1"
    assert signing.size_bytes == 5


# --- Tries ----------------------------------------------------------------------------------------------------------


def test_tries_are_counted_from_the_requests_end() -> None:
    assert len(TRIES_AT_S) == DELIVERY_TRIES
    waits = [again_in_ms(delivery(attempt=number)) for number in range(1, 6)]
    assert waits == [15_000, 60_000, 180_000, 600_000, None]
    assert again_in_ms(replace(delivery(attempt=2), age_ms=20_000)) == 40_000


def test_late_try_still_pauses() -> None:
    for late_ms in (14_999, 15_000, 9_000_000):
        assert again_in_ms(replace(delivery(attempt=1), age_ms=late_ms)) == 1000
    assert again_in_ms(delivery(attempt=6)) is None
