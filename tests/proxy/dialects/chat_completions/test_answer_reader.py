"""Answers of Chat Completions servers, read whole."""

from typing import Any

import pytest

from proxy.dialects.chat_completions.answer_reader import read_answer
from proxy.dialects.middle.answer import END, MAX_TOKENS, REFUSED, STOP_SEQUENCE, TOOL_CALLS, Stop
from proxy.dialects.middle.request import Reasoning, Refusal, Text, ToolCall
from tests.proxy.dialects.chat_completions.recorded import LOGPROB, OSLO, RECORDED, TWO_CALLS, call, whole

CHAT = "chat_completions"


def test_text_is_read_with_its_logprobs() -> None:
    answer = read_answer(whole({"content": "hi"}, logprobs={"content": [LOGPROB], "refusal": None}))
    assert (answer.id, answer.created_s, answer.parts, answer.stop) == ("chatcmpl-9", 5, [Text("hi")], Stop(END))
    assert answer.logprobs == [LOGPROB]


def test_calls_of_tools_are_read() -> None:
    answer = read_answer(TWO_CALLS)
    assert answer.parts == [
        ToolCall("c1", "weather", '{"city":"Oslo"}'),
        ToolCall("c2", "weather", '{"city":"Rome"}'),
    ]
    assert answer.stop == Stop(TOOL_CALLS)


@pytest.mark.parametrize(
    ("finish_reason", "message", "stop"),
    [
        ("stop", {"content": "a"}, Stop(END)),
        ("length", {"content": "a"}, Stop(MAX_TOKENS)),
        ("content_filter", {"content": "a"}, Stop(REFUSED)),
        ("stop", {"refusal": "no"}, Stop(REFUSED)),
        ("stop", {"tool_calls": [call("c", "f", "{}")]}, Stop(TOOL_CALLS)),
        ("length", {"tool_calls": [call("c", "f", "{}")]}, Stop(TOOL_CALLS)),
        ("length", {"tool_calls": [call("c", "f", '{"a')]}, Stop(MAX_TOKENS)),
        ("tool_calls", {"content": "a"}, Stop(END)),
        ("of_next_year", {"content": "a"}, Stop(END)),
        (None, {"content": "a"}, Stop(END)),
    ],
)
def test_stop_is_read(finish_reason: Any, message: dict[str, Any], stop: Stop) -> None:
    assert read_answer(whole(message, finish_reason)).stop == stop


def test_stop_sequence_that_the_server_names_is_read() -> None:
    assert read_answer(whole({"content": "a"}, stop_reason="END")).stop == Stop(STOP_SEQUENCE, "END")
    assert read_answer(whole({"content": "a"}, stop_reason=17)).stop == Stop(END)
    assert read_answer(whole({"content": "a"}, "length", stop_reason="length")).stop == Stop(MAX_TOKENS)


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({"reasoning_content": "hm"}, Reasoning("hm", CHAT, {"reasoning_content": "hm"})),
        ({"reasoning": "hm"}, Reasoning("hm", CHAT, {"reasoning_content": "hm"})),
        (
            {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]},
            Reasoning("hm", CHAT, {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]}),
        ),
        ({"extra_content": {"google": 1}}, Reasoning("", CHAT, {"extra_content": {"google": 1}})),
    ],
)
def test_reasoning_is_read_with_what_the_vendor_wants_back(message: dict[str, Any], reasoning: Reasoning) -> None:
    assert read_answer(whole({"content": "a"} | message)).parts == [reasoning, Text("a")]


def test_refusal_is_read() -> None:
    assert read_answer(whole({"refusal": "no"})).parts == [Refusal("no")]


def test_forms_of_other_servers_are_read() -> None:
    legacy = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    answer = read_answer(whole(legacy | {"function_call": {"name": "f", "arguments": {"x": 1}}}, "function_call"))
    text, call = answer.parts
    assert text == Text("ab")
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments, len(call.id)) == ("f", '{"x":1}', 29)
    custom = {"id": "c", "type": "custom", "custom": {"name": "g", "input": "x y"}}
    assert read_answer(whole({"tool_calls": [custom]})).parts == [ToolCall("c", "g", "x y", custom=True)]


def test_calls_without_ids_get_ids_that_differ() -> None:
    message = {"tool_calls": [{"function": {"name": "f", "arguments": OSLO}}] * 2}
    first, second = read_answer(whole(message)).parts
    other, _ = read_answer(whole(message) | {"id": "another"}).parts
    assert len({part.id for part in (first, second, other) if isinstance(part, ToolCall)}) == 3


@pytest.mark.parametrize(
    "body", [{}, {"choices": None}, {"choices": [{"message": {"tool_calls": [{}], "content": 5}}]}]
)
def test_answer_without_content_is_read(body: dict[str, Any]) -> None:
    assert read_answer(body).id == ""


def test_every_recorded_answer_has_content() -> None:
    assert all(read_answer(body).parts for body, _ in RECORDED.values())
