"""Messages with a target of the same dialect; usage is split over message_start and message_delta."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import Tokens
from proxy.accounting.metering import bill_so_far
from tests.proxy.dialects import samples
from tests.proxy.dialects.samples import (
    CUTS,
    JSON,
    MESSAGES,
    SLUG,
    SSE,
    VENDOR_A,
    answer_reader,
    build_request,
    cut,
    events,
    read,
    received,
)

HELLO = {"model": SLUG, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
STREAMED = HELLO | {"stream": True}


def start(model: str, usage: Any) -> dict[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    return {"type": "message_start", "message": message}


def text(part: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}


def stream_events(model: str, first: Any, last: Any) -> list[dict[str, Any]]:
    return [
        start(model, first),
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        text('message_stop "model"'),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last},
        {"type": "message_stop"},
    ]


def test_request_has_the_targets_model_and_credential() -> None:
    call = build_request(received(HELLO, MESSAGES), VENDOR_A, "sk-ant")
    assert call.url_at("https://api.example/") == "https://api.example/v1/messages"
    assert orjson.loads(bytes(call.body)) == HELLO | {"model": "claude-x"}
    assert call.headers == {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": "sk-ant",
    }


def test_only_version_and_betas_of_the_callers_headers_pass() -> None:
    headers = [
        ("anthropic-version", "2024-01-01"),
        ("anthropic-beta", "a"),
        ("anthropic-beta", "b"),
        ("x-api-key", "tg_k"),
    ]
    call = build_request(received(HELLO, MESSAGES, headers), VENDOR_A, "sk-ant")
    assert call.headers == {
        "content-type": "application/json",
        "anthropic-version": "2024-01-01",
        "anthropic-beta": "a,b",  # one list, as the two fields were (RFC 9110 5.3)
        "x-api-key": "sk-ant",
    }


@pytest.mark.parametrize(
    ("first", "last", "tokens"),
    [
        ({"input_tokens": 10, "output_tokens": 1}, {"output_tokens": 7}, Tokens(input=10, output=7, cached_input=0)),
        (
            {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5, "output_tokens": 1},
            {"output_tokens": 7},
            Tokens(input=95, output=7, cached_input=80),
        ),
        # inclusive at first, the true split at the end
        (
            {"input_tokens": 100, "cache_read_input_tokens": 0, "output_tokens": 1},
            {"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 7},
            Tokens(input=100, output=7, cached_input=80),
        ),
        (
            {"input_tokens": 100},
            {"cache_read_input_tokens": 80, "output_tokens": 7},
            Tokens(input=100, output=7, cached_input=0),
        ),
        (
            {"input_tokens": 0, "output_tokens": 0},
            {"input_tokens": 12, "output_tokens": 3},
            Tokens(input=12, output=3, cached_input=0),
        ),
        ({"input_tokens": 12, "output_tokens": 5}, {"output_tokens": 0}, Tokens(input=12, output=0, cached_input=0)),
        (
            {"input_tokens": 12, "cache_read_input_tokens": None},
            {"input_tokens": None, "output_tokens": 2},
            Tokens(input=12, output=2, cached_input=0),
        ),
        (None, {"output_tokens": 2}, None),
        ({"input_tokens": 12, "output_tokens": 1}, {"output_tokens": -2}, None),
        ({"input_tokens": 12, "output_tokens": 1}, {"input_tokens": 2**53, "output_tokens": 2}, None),
        ({"input_tokens": 12.0, "output_tokens": 1}, {"output_tokens": 2}, None),
    ],
)
def test_last_complete_split_of_the_input_counts(first: Any, last: Any, tokens: Tokens | None) -> None:
    answer = answer_reader(received(STREAMED, MESSAGES), VENDOR_A, SSE)
    assert read(answer, [events(*stream_events("claude-x-2026", first, last))]) == events(
        *stream_events(SLUG, first, last)
    )
    assert answer.reported.tokens == tokens


@given(CUTS)
def test_segmentation_changes_neither_output_nor_tokens(places: list[int]) -> None:
    first = {"input_tokens": 10, "cache_read_input_tokens": 3}
    last = {"output_tokens": 7}
    answer = answer_reader(received(STREAMED, MESSAGES), VENDOR_A, SSE)
    assert read(answer, cut(events(*stream_events("m", first, last)), places)) == events(
        *stream_events(SLUG, first, last)
    )
    assert answer.reported.tokens == Tokens(input=13, output=7, cached_input=3)


WORDS = ["one", "", "error", "usage", "model", "message_stop", 'a "quoted" word', "line\nfeed", "\\"]


@given(st.lists(st.sampled_from(WORDS), max_size=8), st.sets(st.integers(0, 8)))
def test_deltas_that_arrive_whole_are_read_like_any_other(words: list[str], joined: set[int]) -> None:
    """Whole deltas are recognized without a look at their content; single bytes never are."""
    first = {"input_tokens": 10}
    last = {"output_tokens": 7}
    before = stream_events("m", first, last)[:4]
    after = stream_events("m", first, last)[4:]
    at_once = [b""]
    for number, event in enumerate([*before, *map(text, words), *after]):
        at_once[-1] += events(event)
        if number not in joined:
            at_once.append(b"")
    results = []
    for pieces in (at_once, cut(b"".join(at_once), range(10_000))):
        answer = answer_reader(received(STREAMED, MESSAGES), VENDOR_A, SSE)
        passed = b"".join(answer.feed(piece) for piece in pieces)
        results.append((passed, answer.end(), answer.reported.tokens, answer.failed))
    assert results[0] == results[1]


def test_message_stop_waits_for_the_end() -> None:
    *before, stop = stream_events("m", {"input_tokens": 1}, {"output_tokens": 2})
    answer = answer_reader(received(STREAMED, MESSAGES), VENDOR_A, SSE)
    answer.feed(events(*before))
    assert answer.feed(events(stop)) == b""
    assert answer.end() == events(stop)


def test_disconnected_caller_is_billed_reported_input_and_delivered_output() -> None:
    answer = answer_reader(received(STREAMED, MESSAGES), VENDOR_A, SSE)
    steps = [
        events(start("m", {"input_tokens": 50, "output_tokens": 1})),
        events(*[text("sixteen letters.")] * 20),
        events({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}}),
    ]
    counted = samples.delivered_counter(received(STREAMED, MESSAGES))
    bills = []
    for step in steps:
        counted.pending.append(answer.feed(step))
        bills.append(bill_so_far(answer.reported, counted).tokens)
    assert bills == [
        Tokens(input=50, output=0, cached_input=0),
        Tokens(input=50, output=100, cached_input=0),
        Tokens(input=50, output=3, cached_input=0),
    ]


def test_body_names_the_slug_and_its_cache_reads_are_metered() -> None:
    body = {"id": "msg", "type": "message", "model": "m", "content": [{"type": "tool_use", "input": {"model": "own"}}]}
    usage = {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 2}
    answer = answer_reader(received(HELLO, MESSAGES), VENDOR_A, JSON)
    raw = orjson.dumps(body | {"usage": usage})
    assert orjson.loads(read(answer, [raw])) == body | {"model": SLUG, "usage": usage}
    assert answer.reported.tokens == Tokens(input=10, output=2, cached_input=6)
