"""The Responses API: `response` wraps model and usage, and the last event is `response.completed`."""

from typing import Any

import orjson
import pytest
from hypothesis import given

from policy.billing import Tokens
from tests.proxy.dialects.samples import CUTS, JSON, SLUG, SSE, VENDOR_B, answer_reader, cut, events, read, received

PATH = "/v1/responses"
ASKED = {"model": SLUG, "input": "hi", "stream": True}
USAGE = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 4, "total_tokens": 13}


def response(model: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "r1",
        "object": "response",
        "status": "in_progress",
        "model": model,
        "output": [{"model": "own"}],
    } | more


def stream_events(model: str) -> list[dict[str, Any]]:
    return [
        {"type": "response.created", "response": response(model, usage=None)},
        {"type": "response.output_text.delta", "delta": 'say "model" and "response.completed"'},
        {"type": "response.completed", "response": response(model, usage=USAGE)},
    ]


@given(CUTS)
def test_stream_names_the_slug_and_is_metered(places: list[int]) -> None:
    answer = answer_reader(received(ASKED, PATH), VENDOR_B, SSE)
    assert read(answer, cut(events(*stream_events("m")), places)) == events(*stream_events(SLUG))
    assert answer.reported.tokens == Tokens(input=9, output=4, cached_input=2)


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete", "response.failed"])
def test_last_event_waits_for_the_end(last: str) -> None:
    created, delta, completed = stream_events("m")
    answer = answer_reader(received(ASKED, PATH), VENDOR_B, SSE)
    assert answer.feed(events(created, delta)) == events(*stream_events(SLUG)[:2])
    assert answer.feed(events(completed | {"type": last})) == b""
    assert answer.reported.tokens == Tokens(input=9, output=4, cached_input=2)
    assert answer.end() == events(stream_events(SLUG)[2] | {"type": last})


def test_tail_of_an_oversized_last_event_waits_and_is_metered() -> None:
    completed = {"type": "response.completed", "response": response("m", image="x" * 6_000_000, usage=USAGE)}
    answer = answer_reader(received(ASKED, PATH), VENDOR_B, SSE)
    stream = events(completed)
    out = b"".join(answer.feed(stream[at : at + 65_536]) for at in range(0, len(stream), 65_536))
    assert 4_000_000 < len(out) < len(stream) - 1000
    assert out + answer.end() == stream.replace(b'"model":"m"', b'"model":"%s"' % SLUG.encode())
    assert answer.reported.tokens == Tokens(input=9, output=4, cached_input=2)


def test_body_names_the_slug_and_is_metered() -> None:
    answer = answer_reader(received({"model": SLUG, "input": "hi"}, PATH), VENDOR_B, JSON)
    assert orjson.loads(read(answer, [orjson.dumps(response("m", usage=USAGE))])) == response(SLUG, usage=USAGE)
    assert answer.reported.tokens == Tokens(input=9, output=4, cached_input=2)
