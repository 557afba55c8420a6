"""Whole answers as Chat Completions callers get them, checked against the SDK's types."""

from dataclasses import replace
from typing import Any

import openai.types.chat as chat_types
import orjson
import pytest
from hypothesis import given

from policy.billing import NO_DETAILS, Details, Tokens
from proxy.dialects.chat_completions.answer_reader import read_answer
from proxy.dialects.chat_completions.answer_writer import write_answer
from proxy.dialects.middle.answer import (
    CONTEXT_FULL,
    END,
    MAX_TOKENS,
    PAUSED,
    REFUSED,
    STOP_SEQUENCE,
    TOOL_CALLS,
    Answer,
    Stop,
)
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Request, Text, Tool, ToolCall
from tests.fakes.seals import seal, seals_of
from tests.proxy.dialects.chat_completions.answers import ANSWERS, CREATED, SLUG, TOKENS, context
from tests.proxy.dialects.chat_completions.recorded import LOGPROB, RECORDED

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


def written(*parts: AnswerPart, stop: str = END, **members: Any) -> dict[str, Any]:
    body = write_answer(Answer("msg_1", 0, list(parts), Stop(stop), **members), context(), TOKENS)
    chat_types.ChatCompletion.model_validate_json(orjson.dumps(body), strict=True)
    return body


def message_of(*parts: AnswerPart) -> dict[str, Any]:
    message: dict[str, Any] = written(*parts)["choices"][0]["message"]
    return message


def test_text_is_written() -> None:
    assert written(Text("a"), Text("b"), details=Details(reasoning=3, cache_write=4)) == {
        "id": "chatcmpl-msg_1",
        "object": "chat.completion",
        "created": CREATED,
        "model": SLUG,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 90,
            "completion_tokens": 7,
            "total_tokens": 97,
            "prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }


def test_usage_that_nobody_reported_is_left_out() -> None:
    assert "usage" not in write_answer(Answer("c", 0, [], Stop(END)), context(), None)


@pytest.mark.parametrize(
    ("stop", "finish_reason"),
    [
        (END, "stop"),
        (MAX_TOKENS, "length"),
        (STOP_SEQUENCE, "stop"),
        (TOOL_CALLS, "tool_calls"),
        (REFUSED, "content_filter"),
        (PAUSED, "stop"),
        (CONTEXT_FULL, "length"),
    ],
)
def test_stop_is_written(stop: str, finish_reason: str) -> None:
    assert written(Text("a"), stop=stop)["choices"][0]["finish_reason"] == finish_reason


def test_refusal_is_written_as_openai_does() -> None:
    choice = written(Refusal("no"), stop=REFUSED)["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": "no"}
    assert choice["finish_reason"] == "stop"


def test_calls_and_their_extra_content_are_written() -> None:
    call = message_of(ToolCall("t", "f", '{"x":1}', extra={"google": 1}))["tool_calls"]
    assert call == [
        {
            "id": "t",
            "type": "function",
            "function": {"name": "f", "arguments": '{"x":1}'},
            "extra_content": {"google": 1},
        }
    ]


def test_block_of_another_vendor_is_sealed() -> None:
    message = message_of(
        Reasoning("Hm.", "messages", THOUGHT), Reasoning("So."), Reasoning("", "messages", THOUGHT), Text("a")
    )
    assert message["reasoning_content"] == "Hm.\n\nSo."
    data = seal("messages", THOUGHT)
    assert message["reasoning_details"] == [
        {"type": "reasoning.encrypted", "data": data, "index": 0},
        {"type": "reasoning.encrypted", "data": data, "index": 1},
    ]


def test_function_that_stands_for_a_custom_tool_is_written_as_its_call() -> None:
    request = Request([], tools=[Tool("patch", custom={"type": "text"})])
    calls = [
        ToolCall("1", "patch", '{"input":"a b"}'),
        ToolCall("2", "patch", "{bad"),
        ToolCall("3", "patch", '{"input":"x"}', True),
    ]
    body = write_answer(Answer("c", 1, [*calls], Stop(TOOL_CALLS)), AnswerContext(SLUG, request, 1, seals_of()), None)
    chat_types.ChatCompletion.model_validate_json(orjson.dumps(body), strict=True)
    assert [call["custom"] for call in body["choices"][0]["message"]["tool_calls"]] == [
        {"name": "patch", "input": "a b"},
        {"name": "patch", "input": "{bad"},
        {"name": "patch", "input": '{"input":"x"}'},
    ]


def test_logprobs_are_written() -> None:
    assert written(Text("hi"), logprobs=[LOGPROB])["choices"][0]["logprobs"] == {"content": [LOGPROB], "refusal": None}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answer_is_written_as_it_was_read(name: str) -> None:
    answer = read_answer(RECORDED[name][0])
    body = write_answer(answer, context(), Tokens(input=90, output=7, cached_input=80))
    chat_types.ChatCompletion.model_validate_json(orjson.dumps(body), strict=True)
    again = read_answer(body)
    if answer.stop.reason == STOP_SEQUENCE:  # Chat Completions does not name the sequence
        answer.stop = Stop(END)
    assert again == answer


@given(ANSWERS)
def test_writing_and_reading_an_answer_is_the_identity(answer: Answer) -> None:
    assert read_answer(write_answer(answer, context(), TOKENS)) == replace(answer, details=NO_DETAILS)
