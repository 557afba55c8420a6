"""An upstream's error under a 2xx is recognized in every form, and nothing else is."""

from typing import Any

import orjson
import pytest

from policy.billing import Tokens
from policy.endpoints import Target
from tests.proxy.dialects.samples import answer_reader, received

SLUG = "acme/chat"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
SSE = [("content-type", "text/event-stream")]
JSON = [("content-type", "application/json")]
VENDOR_A = Target("VENDOR_A", secret_id="s", target_model="m")
VENDOR_B = Target("VENDOR_B", secret_id="s", target_model="m")
DELTA = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}


def frame(event: Any) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


EVENTS = [
    (CHAT, VENDOR_B, {"error": {"message": "overloaded", "code": 503}}),
    (CHAT, VENDOR_B, {"error": "overloaded"}),
    (CHAT, VENDOR_B, {"object": "error", "message": "overloaded", "code": 400}),
    (CHAT, VENDOR_B, DELTA | {"error": {"message": "overloaded"}}),
    (RESPONSES, VENDOR_B, {"type": "error", "code": "x", "message": "overloaded"}),
    (RESPONSES, VENDOR_B, {"type": "response.failed", "response": {"id": "r", "error": {"message": "overloaded"}}}),
    (MESSAGES, VENDOR_A, {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}),
    (CHAT, VENDOR_A, {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}),
    (MESSAGES, VENDOR_B, {"error": {"message": "overloaded"}}),
    (MESSAGES, VENDOR_B, {"error": "overloaded"}),
    (MESSAGES, VENDOR_B, {"object": "error", "message": "overloaded"}),
]


@pytest.mark.parametrize(("path", "target", "event"), EVENTS)
@pytest.mark.parametrize("after", [b"", frame(DELTA)], ids=["first", "later"])
def test_event_that_reports_a_failure_marks_the_answer_failed(
    path: str, target: Target, event: Any, after: bytes
) -> None:
    answer = answer_reader(
        received({"model": SLUG, "max_tokens": 5, "messages": [], "stream": True}, path), target, SSE
    )
    if after and path == CHAT and target is VENDOR_B:
        answer.feed(after)
        assert not answer.failed
    output = answer.feed(frame(event)) + answer.end()
    assert answer.failed
    assert b"overloaded" in output, "the caller still gets it"


@pytest.mark.parametrize(
    "event",
    [
        DELTA,
        DELTA | {"error": None},
        {"choices": [{"index": 0, "delta": {"content": '{"error": {"message": "x"}}'}}], "model": "m"},
        {"choices": [{"index": 0, "delta": {"content": "error"}, "finish_reason": "error"}], "model": "m"},
    ],
)
def test_ordinary_event_does_not_mark_the_answer_failed(event: Any) -> None:
    answer = answer_reader(received({"model": SLUG, "stream": True}, CHAT), VENDOR_B, SSE)
    answer.feed(frame(event))
    assert not answer.failed


@pytest.mark.parametrize(
    ("body", "failed"),
    [
        ({"error": {"message": "x"}}, True),
        ({"error": "x"}, True),
        ({"object": "error", "message": "x"}, True),
        ({"type": "error", "error": {"type": "overloaded_error"}}, True),
        ({"choices": [], "error": {"message": "x"}}, True),
        ({"choices": [{"message": {"content": "hi"}}], "error": {"message": "x"}}, False),
        ({"object": "response", "output": [{}], "error": None}, False),
        ({"choices": [{"message": {"content": "hi"}}]}, False),
        ({"choices": [], "content": []}, False),
    ],
)
@pytest.mark.parametrize("target", [VENDOR_A, VENDOR_B])
def test_body_with_an_error_and_no_output_is_a_failure(body: Any, failed: bool, target: Target) -> None:
    answer = answer_reader(received({"model": SLUG, "messages": []}, CHAT), target, JSON)
    answer.feed(orjson.dumps(body))
    output = answer.end()
    assert answer.failed is failed
    if failed:
        assert orjson.loads(output) == body
        assert answer.reported.tokens in (None, Tokens())
