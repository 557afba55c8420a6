"""An answer that came whole is read in one call, which says and bills what the way of a longer one says and bills."""

from typing import Any

import orjson
import pytest

from proxy.dialects.registry import Dialects
from proxy.exchange import Headers
from proxy.json_text.json_bounds import SMALL_BYTES
from tests.proxy.dialects.samples import (
    CHAT,
    JSON,
    MESSAGES,
    SLUG,
    SSE,
    VENDOR_A,
    VENDOR_B,
    answer_reader,
    events,
    first_attempt,
    frames,
    received,
)

USAGE = {"prompt_tokens": 12, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}
CHOICES = [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]
MESSAGE = {
    **{"id": "m", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn"},
    **{"content": [{"type": "text", "text": "hello"}], "usage": {"input_tokens": 3, "output_tokens": 2}},
}
RESPONSES = "/v1/responses"
CHAT_ASK = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
BODIES: list[dict[str, Any]] = [
    {"model": "gpt-x", "choices": CHOICES, "usage": USAGE},
    {"model": "gpt-x", "choices": CHOICES, "usage": USAGE | {"completion_tokens": -1}},
    {"model": "gpt-x", "choices": CHOICES, "usage": USAGE, "x": {"model": "gpt-x"}},
    {"choices": [], "error": {"message": "overloaded"}},
    {"data": [], "model": "gpt-x", "usage": {"prompt_tokens": 5}},
    {"model": "gpt-x", "choices": CHOICES, "usage": USAGE, "filler": "x" * SMALL_BYTES},
    MESSAGE,
    {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
]


@pytest.mark.parametrize("body", [*map(orjson.dumps, BODIES), b"", b"[1]", b"null", b'{"model":', b'{"usage":1}'])
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", MESSAGES, "/v1/rerank", "/v1/audio/speech"])
@pytest.mark.parametrize(
    "headers", [JSON, [], [("content-type", "application/problem+json")], [("content-type", "a/b")]]
)
def test_passing_answer_is_read_alike(path: str, headers: Headers, body: bytes) -> None:
    target = VENDOR_A if path == MESSAGES else VENDOR_B
    at_once, held = (answer_reader(received(CHAT_ASK, path), target, headers) for _ in range(2))
    assert at_once.whole(body) == held.feed(body) + held.end()
    assert said(at_once) == said(held)


@pytest.mark.parametrize("body", [*map(orjson.dumps, BODIES), b"", b"[1]", b"null", b'{"model":', b'{"usage":1}'])
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", MESSAGES, RESPONSES, "/v1/rerank", "/v1/audio/speech"])
@pytest.mark.parametrize("content_type", ["application/json", "", "application/problem+json", "a/b"])
def test_answer_without_a_reader_says_what_its_reader_says(path: str, content_type: str, body: bytes) -> None:
    target, request = VENDOR_A if path == MESSAGES else VENDOR_B, received(CHAT_ASK, path)
    reader = answer_reader(request, target, [("content-type", content_type)])
    passed = reader.whole(body)
    read = Dialects(lambda: 0.0).whole_answer(request, first_attempt(request, target), content_type, body)
    is_read = reader.reported.tokens is not None and not reader.failed
    if not is_read or len(body) > SMALL_BYTES or path in ("/v1/rerank", "/v1/audio/speech"):
        assert read is None
    else:
        assert read == (passed, reader.reported.tokens)


def test_translated_answer_needs_its_reader() -> None:
    request = received(CHAT_ASK, MESSAGES)
    attempt = first_attempt(request, VENDOR_B)
    assert attempt.is_translated
    assert Dialects(lambda: 0.0).whole_answer(request, attempt, "application/json", orjson.dumps(BODIES[0])) is None


@pytest.mark.parametrize(
    ("path", "target", "headers", "body"),
    [
        (CHAT, VENDOR_A, JSON, orjson.dumps(MESSAGE)),
        (MESSAGES, VENDOR_B, JSON, orjson.dumps(BODIES[0])),
        (CHAT, VENDOR_A, JSON, orjson.dumps(BODIES[-1])),
        (CHAT, VENDOR_B, SSE, frames(BODIES[0] | {"choices": [{"index": 0, "delta": {"content": "x"}}]})),
        (CHAT, VENDOR_A, SSE, events({"type": "message_start", "message": MESSAGE}, {"type": "message_stop"})),
    ],
)
def test_translated_answer_and_stream_are_read_alike(path: str, target: Any, headers: Headers, body: bytes) -> None:
    at_once, held = (
        answer_reader(received(CHAT_ASK | {"stream": headers is SSE}, path), target, headers) for _ in "ab"
    )
    assert at_once.whole(body) == held.feed(body) + held.end()
    assert said(at_once) == said(held)


def said(reader: Any) -> tuple[Any, ...]:
    reported = reader.reported
    return reported.tokens, reported.input, reported.rejected, reader.failed
