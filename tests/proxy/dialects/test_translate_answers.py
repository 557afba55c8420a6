"""Translated answers, parsed with the vendors' own SDK types; streams split at any offsets."""

from collections.abc import Iterable
from typing import Any

import anthropic.types as messages_types
import openai.types.chat as chat_types
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from policy.billing import Tokens
from proxy.errors import UpstreamCutError, UpstreamResetError
from proxy.json_text.sliced_json import AT_ONCE_BYTES
from tests.proxy.dialects.samples import (
    CUTS,
    JSON,
    MESSAGES,
    SLUG,
    SSE,
    VENDOR_A,
    VENDOR_B,
    answer_reader,
    cut,
    events,
    frames,
    payloads,
    read,
    received,
)

DATED = [("date", "Sat, 21 Nov 2026 07:28:00 GMT")]
CREATED = 1795246080
CHAT_ASK: dict[str, Any] = {"model": SLUG, "messages": [], "stream": True}
WITH_USAGE = CHAT_ASK | {"stream_options": {"include_usage": True}}
MESSAGES_ASK: dict[str, Any] = {
    "model": SLUG,
    "messages": [],
    "max_tokens": 9,
    "stream": True,
    "stop_sequences": ["END"],
}
CHAT_USAGE = {
    "prompt_tokens": 90,
    "completion_tokens": 7,
    "total_tokens": 97,
    "prompt_tokens_details": {"cached_tokens": 80},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
SPLIT = {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 0, "output_tokens": 7}
EVENT: TypeAdapter[Any] = TypeAdapter(messages_types.RawMessageStreamEvent)

Part = str | tuple[str, str, str]
"""A text, or a tool call: id, name, arguments."""


def messages_events(parts: Iterable[Part], stop_reason: str = "end_turn", usage: Any = None) -> list[dict[str, Any]]:
    """Return the events that a Messages target would send."""
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
    }
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    story: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, part in enumerate(parts):
        if isinstance(part, str):
            block: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in (part[:2], part[2:]) if piece]
        else:
            block = {"type": "tool_use", "id": part[0], "name": part[1], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in (part[2][:3], part[2][3:])]
        story.append({"type": "content_block_start", "index": index, "content_block": block})
        story += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        story.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    return [*story, {"type": "message_delta", "delta": delta, "usage": usage or SPLIT}, {"type": "message_stop"}]


def chat_events(parts: Iterable[Part], finish_reason: str = "stop") -> list[dict[str, Any]]:
    """Return the chunks that a Chat Completions target would send."""

    def chunk(delta: Any, reason: str | None = None) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x", "choices": choices}

    story = [chunk({"role": "assistant", "content": ""})]
    calls = 0
    for part in parts:
        if isinstance(part, str):
            story += [chunk({"content": piece}) for piece in (part[:2], part[2:])]
            continue
        call = {
            "index": calls,
            "id": part[0],
            "type": "function",
            "function": {"name": part[1], "arguments": part[2][:3]},
        }
        story += [
            chunk({"tool_calls": [call]}),
            chunk({"tool_calls": [{"index": calls, "function": {"arguments": part[2][3:]}}]}),
        ]
        calls += 1
    return [*story, chunk({}, finish_reason), chunk({}) | {"choices": [], "usage": CHAT_USAGE}]


def assembled_by_chat_client(stream: bytes) -> tuple[str, list[tuple[str, str, str]], list[str]]:
    """Text, tool calls and finish reasons, as a Chat Completions client assembles them."""
    text = ""
    reasons = []
    calls: dict[int, tuple[str, str, str]] = {}
    for payload in payloads(stream)[:-1]:
        for choice in chat_types.ChatCompletionChunk.model_validate(payload).choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                id, name, arguments = calls.get(call.index, ("", "", ""))
                more = call.function.arguments or ""
                calls[call.index] = (id or call.id or "", name or call.function.name or "", arguments + more)
    return text, [calls[index] for index in sorted(calls)], list(reasons)


def assembled_by_messages_client(stream: bytes) -> tuple[list[Part], dict[str, Any]]:
    """Content and the last message_delta, as a Messages client assembles them; checks the order of events."""
    blocks: list[Any] = []
    open_block = -1
    closing = {}
    for payload in payloads(stream):
        event = EVENT.validate_python(payload)
        match payload["type"]:
            case "content_block_start":
                assert open_block == -1
                assert event.index == len(blocks)
                open_block = event.index
                block = payload["content_block"]
                blocks.append("" if block["type"] == "text" else (block["id"], block["name"], ""))
            case "content_block_delta":
                delta = payload["delta"]
                if delta["type"] == "text_delta":
                    blocks[event.index] += delta["text"]
                else:
                    id, name, arguments = blocks[event.index]
                    blocks[event.index] = (id, name, arguments + delta["partial_json"])
            case "content_block_stop":
                assert open_block == event.index
                open_block = -1
            case "message_delta":
                closing = payload
    return blocks, closing


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
CALLS = st.tuples(
    st.just("t1"),
    st.sampled_from(["weather", "now"]),
    st.dictionaries(TEXTS, TEXTS, max_size=2).map(lambda d: orjson.dumps(d).decode()),
)


@st.composite
def outputs(draw: st.DrawFn) -> list[Part]:
    """Draw at most one text, then tool calls: both dialects can express this order."""
    text = draw(st.none() | TEXTS)
    calls = draw(st.lists(CALLS, max_size=3))
    return [*([text] if text else []), *((f"t{n}", call[1], call[2]) for n, call in enumerate(calls))]


def closes_with_call(parts: list[Part]) -> bool:
    return any(not isinstance(part, str) for part in parts)


# --- Messages to Chat Completions ----------------------------------------------------------------------------


@given(outputs(), CUTS, st.booleans())
def test_messages_stream_becomes_a_chat_stream(parts: list[Part], places: list[int], with_usage: bool) -> None:
    answer = answer_reader(received(WITH_USAGE if with_usage else CHAT_ASK), VENDOR_A, SSE + DATED)
    output = read(answer, cut(events(*messages_events(parts, "tool_use")), places))
    text, calls, reasons = assembled_by_chat_client(output)
    assert text == "".join(part for part in parts if isinstance(part, str))
    assert calls == [part for part in parts if not isinstance(part, str)]
    assert reasons == ["tool_calls" if calls else "stop"]
    chunks = payloads(output)[:-1]
    assert {(c["id"], c["model"], c["created"]) for c in chunks} == {("chatcmpl-msg_1", SLUG, CREATED)}
    assert [c["usage"] for c in chunks if c.get("usage")] == [CHAT_USAGE] * with_usage
    assert output.endswith(b"data: [DONE]\n\n")
    assert answer.reported.tokens == Tokens(input=90, output=7, cached_input=80)


def test_only_the_closing_chunks_wait_for_the_end() -> None:
    *before, stop = messages_events(["hello"])
    answer = answer_reader(received(WITH_USAGE), VENDOR_A, SSE)
    assert [len(payloads(answer.feed(events(event)))) for event in before] == [1, 0, 1, 1, 0, 0]
    assert answer.feed(events(stop)) == b""
    finished, usage, last = payloads(answer.end())
    assert finished["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], last) == ([], "[DONE]")


def test_cut_stream_gets_no_done_marker() -> None:
    answer = answer_reader(received(CHAT_ASK), VENDOR_A, SSE)
    assert b"[DONE]" not in read(answer, [events(*messages_events(["hello"])[:-1])])


def test_pings_comments_and_errors_pass() -> None:
    start, *_ = messages_events([])
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answer = answer_reader(received(CHAT_ASK), VENDOR_A, SSE)
    answer.feed(events(start))
    assert answer.feed(events({"type": "ping"})) == b": ping\n\n"
    assert answer.feed(b": comment\n\n") == b": comment\n\n"
    assert answer.reported.input == Tokens(input=10, output=0, cached_input=0)
    error_body = {"message": "Overloaded", "type": "overloaded_error", "param": None, "code": None}
    assert payloads(answer.feed(events(error))) == [{"error": error_body}]


def test_tool_input_that_arrives_complete_is_translated() -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    answer = answer_reader(received(CHAT_ASK), VENDOR_A, SSE)
    output = read(
        answer, [events({"type": "content_block_start", "index": 0, "content_block": block}, {"type": "message_stop"})]
    )
    assert assembled_by_chat_client(output)[1] == [("t", "f", '{"a":1}')]


def test_long_tool_input_becomes_arguments() -> None:
    arguments = {"text": 'say "hi"\n' * (AT_ONCE_BYTES // 8)}
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": arguments}]}
    answer = answer_reader(received(CHAT_ASK | {"stream": False}), VENDOR_A, JSON)
    output = orjson.loads(read(answer, [orjson.dumps(message)]))
    assert orjson.loads(output["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == arguments


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "tool_calls"),
        ("max_tokens", "tool_calls"),
        ("stop_sequence", "tool_calls"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("of_next_year", "tool_calls"),
    ],
)
def test_message_becomes_a_chat_completion(stop_reason: str, finish_reason: str) -> None:
    content: list[Any] = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    content.append({"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}})
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": stop_reason,
    }
    answer = answer_reader(received(CHAT_ASK | {"stream": False}), VENDOR_A, JSON + DATED)
    output = read(answer, [orjson.dumps(message | {"usage": SPLIT})])
    completion = chat_types.ChatCompletion.model_validate_json(output, strict=True)
    choice = completion.choices[0]
    assert (completion.model, completion.created, choice.message.content) == (SLUG, CREATED, "ab")
    assert choice.finish_reason == finish_reason
    assert orjson.loads(output)["choices"][0]["message"]["tool_calls"] == [
        {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    ]
    assert orjson.loads(output)["usage"] == CHAT_USAGE
    assert answer.reported.tokens == Tokens(input=90, output=7, cached_input=80)


# --- Chat Completions to Messages ----------------------------------------------------------------------------


@given(outputs(), CUTS)
def test_chat_stream_becomes_a_messages_stream(parts: list[Part], places: list[int]) -> None:
    answer = answer_reader(received(MESSAGES_ASK, MESSAGES), VENDOR_B, SSE)
    output = read(answer, cut(frames(*chat_events(parts, "tool_calls")), places))
    content, closing = assembled_by_messages_client(output)
    assert content == parts
    assert closing == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use" if closes_with_call(parts) else "end_turn", "stop_sequence": None},
        "usage": SPLIT,
    }
    kinds = [payload["type"] for payload in payloads(output)]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert payloads(output)[0]["message"]["model"] == SLUG
    assert answer.reported.tokens == Tokens(input=90, output=7, cached_input=80)


def test_last_two_events_wait_for_the_end() -> None:
    answer = answer_reader(received(MESSAGES_ASK, MESSAGES), VENDOR_B, SSE)
    output = b"".join(answer.feed(frames(chunk, has_done=False)) for chunk in chat_events(["hi"]))
    assert [payload["type"] for payload in payloads(output)][-1] == "content_block_stop"
    assert answer.feed(b"data: [DONE]\n\n") == b""
    assert [payload["type"] for payload in payloads(answer.end())] == ["message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("ending", "closed"),
    [(b"", False), (b"data: [DONE]\n\n", True), (frames(chat_events([])[-2], has_done=False), True)],
)
def test_messages_stream_is_closed_only_if_the_upstream_closed_its_own(ending: bytes, closed: bool) -> None:
    answer = answer_reader(received(MESSAGES_ASK, MESSAGES), VENDOR_B, SSE)
    output = read(answer, [frames(*chat_events(["hi"])[:2], has_done=False), ending])
    assert (b"message_stop" in output) is closed


@pytest.mark.parametrize("index", [[], {}, "0", None, 1.5])
def test_index_of_a_wrong_type_counts_as_zero(index: Any) -> None:
    call = {"index": index, "id": "t", "function": {"name": "f", "arguments": "{}"}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call, call]}, "finish_reason": "stop"}]}
    output = read(answer_reader(received(MESSAGES_ASK, MESSAGES), VENDOR_B, SSE), [frames(chunk)])
    assert assembled_by_messages_client(output)[0] == [("t", "f", "{}{}")]
    start = {
        "type": "content_block_start",
        "index": index,
        "content_block": {"type": "tool_use", "id": "t", "name": "f"},
    }
    delta = {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    output = read(answer_reader(received(CHAT_ASK), VENDOR_A, SSE), [events(start, delta, {"type": "message_stop"})])
    assert assembled_by_chat_client(output)[1] == [("t", "f", "{}")]


def test_error_in_a_chat_stream_becomes_an_error_event() -> None:
    answer = answer_reader(received(MESSAGES_ASK, MESSAGES), VENDOR_B, SSE)
    output = payloads(answer.feed(frames({"error": {"message": "oh", "code": 5}}, has_done=False)))
    assert output == [{"type": "error", "error": {"type": "api_error", "message": "oh"}}]


def test_matched_stop_sequence_is_named_when_the_server_reports_it() -> None:
    *_, last, usage = chat_events([])
    last["choices"][0]["stop_reason"] = "END"
    answer = answer_reader(received(MESSAGES_ASK, MESSAGES), VENDOR_B, SSE)
    _, closing = assembled_by_messages_client(read(answer, [frames(last, usage)]))
    assert closing["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason"),
    [
        ("stop", "tool_use"),
        ("length", "max_tokens"),
        ("tool_calls", "tool_use"),
        ("content_filter", "refusal"),
        (None, "tool_use"),
    ],
)
def test_chat_completion_becomes_a_message(finish_reason: str | None, stop_reason: str) -> None:
    calls = [
        {"id": f"t{n}", "type": "function", "function": {"name": "f", "arguments": a}}
        for n, a in enumerate(["", '{"x":1}', "[1]", "{bad"])
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hi", "tool_calls": calls},
        "finish_reason": finish_reason,
    }
    completion = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": CHAT_USAGE,
    }
    answer = answer_reader(received(MESSAGES_ASK | {"stream": False}, MESSAGES), VENDOR_B, JSON)
    output = read(answer, [orjson.dumps(completion)])
    message = messages_types.Message.model_validate_json(output, strict=True)
    assert (message.model, message.stop_reason, message.usage.input_tokens) == (SLUG, stop_reason, 10)
    inputs = [block["input"] for block in orjson.loads(output)["content"][1:]]
    assert inputs == [{}, {"x": 1}, {"INVALID_JSON": "[1]"}, {"INVALID_JSON": "{bad"}]
    assert answer.reported.tokens == Tokens(input=90, output=7, cached_input=80)


# --- both ---------------------------------------------------------------------------------------------------------

WAYS = [(CHAT_ASK, "/v1/chat/completions", VENDOR_A), (MESSAGES_ASK, MESSAGES, VENDOR_B)]


@pytest.mark.parametrize(("body", "path", "target"), WAYS)
def test_untranslatable_answer_is_an_upstream_error(body: Any, path: str, target: Any) -> None:
    for raw in (b"", b"<html>", b"[1]"):
        with pytest.raises(UpstreamResetError):
            read(answer_reader(received(body, path), target, JSON), [raw])
    with pytest.raises(UpstreamCutError):
        read(answer_reader(received(body, path), target, SSE), [b"data: {oops\n\n"])
    with pytest.raises(UpstreamCutError):
        read(answer_reader(received(body, path), target, SSE), [b"data: " + b"x" * (5 << 20)])


def test_event_of_too_many_objects_is_cut() -> None:
    calls = b",".join([b'{"index":%d,"id":"c%d","function":{"name":"f"}}' % (n, n) for n in range(2501)])
    chunk = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}\n\n' % calls
    with pytest.raises(UpstreamCutError, match="too much"):
        answer_reader(received(MESSAGES_ASK, MESSAGES), VENDOR_B, SSE).feed(chunk)


def test_answer_nested_too_deeply_is_an_upstream_error() -> None:
    """orjson parses 1024 levels and serializes 255."""
    nested = b'{"a":' * 300 + b"1" + b"}" * 300
    block = b'{"type":"tool_use","id":"t","name":"f","input":%b}' % nested
    whole = b'{"type":"message","role":"assistant","stop_reason":"tool_use","content":[%b]}' % block
    with pytest.raises(UpstreamResetError):
        read(answer_reader(received(CHAT_ASK | {"stream": False}, "/v1/chat/completions"), VENDOR_A, JSON), [whole])
    event = b'data: {"type":"content_block_start","index":0,"content_block":%b}\n\n' % block
    with pytest.raises(UpstreamCutError):
        read(answer_reader(received(CHAT_ASK, "/v1/chat/completions"), VENDOR_A, SSE), [event])


@pytest.mark.parametrize(("body", "path", "target"), WAYS)
def test_errors_under_a_success_pass_untranslated(body: Any, path: str, target: Any) -> None:
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}'
    assert read(answer_reader(received(body, path), target, JSON), [error]) == error


JUNK = st.recursive(
    st.none()
    | st.integers(-1, 3)
    | st.sampled_from(["", "x", "tool_use", "text_delta", "content_block_start", "stop"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "index",
                    "delta",
                    "content_block",
                    "choices",
                    "message",
                    "usage",
                    "tool_calls",
                    "function",
                    "content",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JUNK, max_size=5), st.sampled_from(WAYS), st.booleans())
def test_hostile_events_raise_only_upstream_errors(junk: list[Any], way: Any, streamed: bool) -> None:
    body, path, target = way
    if streamed:
        payloads(read(answer_reader(received(body, path), target, SSE), [frames(*junk)]))
    elif junk and isinstance(junk[0], dict):
        whole = received(body | {"stream": False}, path)
        orjson.loads(read(answer_reader(whole, target, JSON), [orjson.dumps(junk[0])]))
