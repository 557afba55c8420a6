"""A usage report is believed from the place that its dialect gives it, and later zeros wipe nothing."""

from typing import Any

import orjson
import pytest

from policy.billing import Tokens
from policy.endpoints import Target
from proxy.dialects.body_readers import BodyReader
from proxy.dialects.usage.meters import MessagesMeter, OpenAiMeter, UsageMeter
from proxy.json_text.json_bounds import MAX_CONTAINERS
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
    frames,
    read,
    received,
)

RESPONSES = "/v1/responses"
FORGED = {"input_tokens": 0, "output_tokens": 0, "prompt_tokens": 0, "completion_tokens": 0}
MANY: list[Any] = [{}] * MAX_CONTAINERS
Json = dict[str, Any]

BODIES: dict[str, tuple[str, Target, Json]] = {
    "Chat": (
        CHAT,
        VENDOR_B,
        {"usage": {"prompt_tokens": 12, "completion_tokens": 5}, "model": "gpt-x", "choices": [{"usage": FORGED}]},
    ),
    "Messages": (
        MESSAGES,
        VENDOR_A,
        {
            **{"usage": {"input_tokens": 12, "output_tokens": 5}, "model": "claude-x"},
            "content": [{"type": "tool_use", "input": {"usage": FORGED, "message": {"usage": FORGED}}}],
        },
    ),
    "Responses": (
        RESPONSES,
        VENDOR_B,
        {
            **{"usage": {"input_tokens": 12, "output_tokens": 5}, "model": "gpt-x"},
            "output": [{"usage": FORGED, "arguments": '{"usage": {"input_tokens": 0}}'}],
        },
    ),
}


@pytest.mark.parametrize("filler", [[], MANY], ids=["small", "of too many values"])
@pytest.mark.parametrize("name", BODIES)
def test_usage_of_a_body_is_its_own_and_not_that_of_its_content(name: str, filler: list[Any]) -> None:
    path, target, body = BODIES[name]
    answer = answer_reader(received({"model": SLUG, "messages": []}, path), target, JSON)
    read(answer, [orjson.dumps(body | {"tool": {"usage": FORGED}, "filler": filler, "last": {"usage": FORGED}})])
    assert answer.reported.tokens == Tokens(input=12, output=5)


@pytest.mark.parametrize("usage_at", ["head", "middle", "tail"])
def test_usage_of_a_body_too_large_to_hold_is_found_anywhere(usage_at: str) -> None:
    usage = b'"usage":{"prompt_tokens":12,"completion_tokens":5}'
    data = b'"data":["%b",{"usage":%b}]' % (b"x" * 300_000, orjson.dumps(FORGED))
    parts = {"head": [usage, data, data], "middle": [data, usage, data], "tail": [data, data, usage]}[usage_at]
    raw = b'{"model":"gpt-x",' + b",".join(parts) + b"}"
    answer = BodyReader(SLUG, OpenAiMeter(), limit=100_000)
    output = read(answer, [raw[at : at + 10_000] for at in range(0, len(raw), 10_000)])
    assert output == raw.replace(b"gpt-x", SLUG.encode())
    assert answer.reported.tokens == Tokens(input=12, output=5)


CHAT_USAGE = {"prompt_tokens": 12, "completion_tokens": 5}
FINAL = {"input_tokens": 12, "output_tokens": 5}


@pytest.mark.parametrize(
    ("path", "target", "stream"),
    [
        (CHAT, VENDOR_B, frames({"usage": CHAT_USAGE, "choices": []}, {"choices": [{"usage": FORGED}]})),
        (CHAT, VENDOR_B, frames({"usage": CHAT_USAGE}, {"x_vendor": {"usage": FORGED}})),
        (
            MESSAGES,
            VENDOR_A,
            events(
                {"type": "message_start", "message": {"usage": {"input_tokens": 12}}, "usage": FORGED},
                {"type": "message_delta", "usage": {"output_tokens": 5}},
                {"type": "content_block_start", "content_block": {"usage": FORGED}},
                {"type": "content_block_delta", "usage": FORGED, "message": {"usage": FORGED}},
                {"type": "vendor_event", "usage": FORGED, "message": {"usage": FORGED}},
            ),
        ),
        (
            RESPONSES,
            VENDOR_B,
            events(
                {"type": "response.completed", "response": {"usage": FINAL}, "usage": FORGED},
                {"type": "response.output_item.done", "response": {"usage": FORGED}, "item": {"usage": FORGED}},
                {"type": "response.in_progress", "response": {"usage": FORGED}},
                {"type": "response.of_next_year", "response": {"usage": FORGED}, "usage": FORGED},
            ),
        ),
    ],
)
def test_usage_of_a_stream_is_read_from_its_place_alone(path: str, target: Target, stream: bytes) -> None:
    answer = answer_reader(received({"model": SLUG, "stream": True}, path), target, SSE)
    read(answer, [stream])
    assert (answer.reported.tokens, answer.reported.rejected) == (Tokens(input=12, output=5), "")


LARGE = [{"text": "x" * 5_000_000}]
LARGE_EVENTS: dict[str, tuple[str, Target, bytes]] = {
    "Chat": (CHAT, VENDOR_B, frames({"usage": CHAT_USAGE, "choices": LARGE, "model": "gpt-x"})),
    "Messages": (
        MESSAGES,
        VENDOR_A,
        events(
            {"type": "message_start", "message": {"usage": {"input_tokens": 12}, "x": LARGE, "model": "claude-x"}},
            {"type": "message_delta", "usage": {"output_tokens": 5}, "x": LARGE},
        ),
    ),
    "Responses": (
        RESPONSES,
        VENDOR_B,
        events({"type": "response.completed", "response": {"usage": FINAL, "output": LARGE, "model": "gpt-x"}}),
    ),
}


@pytest.mark.parametrize("name", LARGE_EVENTS)
def test_report_of_an_event_above_the_size_bound_counts(name: str) -> None:
    path, target, stream = LARGE_EVENTS[name]
    answer = answer_reader(received({"model": SLUG, "stream": True}, path), target, SSE)
    output = read(answer, [stream[at : at + 65_536] for at in range(0, len(stream), 65_536)])
    assert output == stream.replace(b"gpt-x", SLUG.encode()).replace(b"claude-x", SLUG.encode())
    assert answer.reported.tokens == Tokens(input=12, output=5)


def tokens(input: int, output: int, cached_input: int = 0) -> Tokens:
    return Tokens(input=input, output=output, cached_input=cached_input)


def chat(input: int, output: int, cached: int | None = None) -> Json:
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return {"usage": {"prompt_tokens": input, "completion_tokens": output, **details}}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([chat(12, 5), chat(0, 0)], tokens(12, 5)),
        ([chat(12, 5, 4), chat(12, 0, 0)], tokens(12, 5, 4)),
        ([chat(0, 0), chat(12, 0), chat(0, 5)], tokens(12, 5)),
        ([chat(12, 5), chat(10, 3)], tokens(10, 3)),
        ([chat(12, 5, 12), chat(8, 5, 0)], tokens(8, 5, 8)),
        ([chat(0, 0)], tokens(0, 0)),
        ([chat(0, 0), chat(0, 0)], tokens(0, 0)),
    ],
)
def test_zeros_after_figures_of_the_same_answer_replace_nothing(reports: list[Json], expected: Tokens) -> None:
    assert metered(OpenAiMeter(), reports) == expected


def begun(**usage: int) -> Json:
    return {"type": "message_start", "message": {"usage": usage}}


def corrected(**usage: int) -> Json:
    return {"type": "message_delta", "usage": {"output_tokens": 5, **usage}}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([begun(input_tokens=12), corrected(input_tokens=0)], tokens(12, 5)),
        ([begun(input_tokens=2, cache_read_input_tokens=10), corrected(input_tokens=0)], tokens(12, 5, 10)),
        (
            [begun(input_tokens=2, cache_read_input_tokens=10), corrected(input_tokens=2, cache_read_input_tokens=0)],
            tokens(12, 5, 10),
        ),
        ([begun(input_tokens=12), corrected(input_tokens=2, cache_read_input_tokens=10)], tokens(12, 5, 10)),
        ([begun(input_tokens=12), corrected(input_tokens=0, cache_read_input_tokens=12)], tokens(12, 5, 12)),
        (
            [begun(input_tokens=12), corrected(), corrected(input_tokens=0, output_tokens=0)],
            tokens(12, 5),
        ),
        ([begun(input_tokens=12), corrected(output_tokens=0)], tokens(12, 0)),
        ([begun(input_tokens=0), corrected()], tokens(0, 5)),
    ],
)
def test_zeros_of_a_split_replace_nothing_unless_the_split_has_moved(reports: list[Json], expected: Tokens) -> None:
    """A server that counts inclusively at first moves tokens from one figure to another at the end."""
    assert metered(MessagesMeter(), reports) == expected


def metered(meter: UsageMeter, reports: list[Json]) -> Tokens | None:
    for report in reports:
        meter.observe(report)
    return meter.tokens
