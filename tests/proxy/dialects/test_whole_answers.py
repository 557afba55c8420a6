"""An answer that came whole is read in one call, which says and bills what the way of a longer one says and bills."""

from typing import Any

import orjson
import pytest

from policy.billing import REPORTED
from proxy.dialects.registry import Dialects
from proxy.json_text.json_bounds import SMALL_BYTES
from tests.fakes.seals import SEAL_KEYS
from tests.proxy.dialects.samples import (
    CHAT,
    MESSAGES,
    SLUG,
    VENDOR_A,
    VENDOR_B,
    answer_reader,
    first_attempt,
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
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", MESSAGES, RESPONSES, "/v1/rerank", "/v1/audio/speech"])
@pytest.mark.parametrize("content_type", ["application/json", "", "application/problem+json", "a/b"])
def test_answer_without_a_reader_says_what_its_reader_says(path: str, content_type: str, body: bytes) -> None:
    target = VENDOR_A if path == MESSAGES else VENDOR_B
    request = received(CHAT_ASK, path)
    reader = answer_reader(request, target, [("content-type", content_type)])
    passed = reader.feed(body) + reader.end()
    read = Dialects(lambda: 0.0, SEAL_KEYS).whole_answer(request, first_attempt(request, target), content_type, body)
    is_read = reader.reported.tokens is not None and not reader.failed
    if not is_read or len(body) > SMALL_BYTES or path in ("/v1/rerank", "/v1/audio/speech"):
        assert read is None
    else:
        assert read == (passed, (reader.reported.tokens, reader.reported.details, REPORTED))


def test_translated_answer_needs_its_reader() -> None:
    request = received(CHAT_ASK, MESSAGES)
    attempt = first_attempt(request, VENDOR_B)
    assert attempt.is_translated
    assert (
        Dialects(lambda: 0.0, SEAL_KEYS).whole_answer(request, attempt, "application/json", orjson.dumps(BODIES[0]))
        is None
    )
