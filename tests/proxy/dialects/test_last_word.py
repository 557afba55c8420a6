"""A failure is the last word of a translated stream: from each dialect, to callers of each, wherever it comes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from policy.billing import MAX_REPORTED_TOKENS, Tokens
from proxy.dialects.answer_translation import TranslatingBodyReader, TranslatingStreamReader
from proxy.dialects.chat_completions.dialect import DIALECT as CHAT
from proxy.dialects.messages.dialect import DIALECT as MESSAGES
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.request import Request
from proxy.dialects.responses.dialect import DIALECT as RESPONSES
from tests.fakes.seals import seals_of
from tests.proxy.dialects.samples import payloads
from tests.upstream.oddities.row import (
    chat_chunk,
    chat_text,
    chat_usage,
    frames,
    message_text,
    response_text,
)

Json = dict[str, Any]
CALLER_DIALECTS = pytest.mark.parametrize(
    "caller_dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name
)


@dataclass(frozen=True)
class Spoken:
    """The streams of a dialect. Of `text`, the last two events are the finish and what follows it."""

    dialect: Dialect
    text: Sequence[Json | str]
    call: Sequence[Json | str]
    """A tool call that is cut in its arguments."""
    failures: Sequence[Json]


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": ""}
ERROR = {"message": "overloaded", "type": "overloaded_error"}
SPOKEN = [
    Spoken(
        CHAT,
        [*chat_text("Hello"), chat_usage(), "[DONE]"],
        [chat_chunk({"role": "assistant", "tool_calls": [CALL]})],
        [
            {"error": ERROR},
            {"error": "overloaded"},
            {"object": "error", "message": "overloaded", "code": 503},
            {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": ERROR}]},
            {"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {}, "error": ERROR}]},
            chat_chunk(finish="error", error=ERROR),
        ],
    ),
    Spoken(
        MESSAGES,
        message_text("Hello"),
        [
            message_text("")[0],
            {"type": "content_block_start", "index": 0, "content_block": TOOL_USE},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
        ],
        [
            {"type": "error", "error": ERROR},
            {"error": ERROR},
            {"error": "overloaded"},
            {"object": "error", "message": "overloaded"},
        ],
    ),
    Spoken(
        RESPONSES,
        response_text("Hello"),
        [
            response_text("")[0],
            {"type": "response.output_item.added", "output_index": 0, "item": FUNCTION_CALL},
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a":'},
        ],
        [
            {"type": "error", "code": "server_error", "message": "overloaded"},
            {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": ERROR}},
            {"error": ERROR},
            {"error": "overloaded"},
        ],
    ),
]
PLACES: dict[str, Callable[[Spoken, Json], list[Json | str]]] = {
    "before all": lambda spoken, failure: [failure, *spoken.text],
    "amid text": lambda spoken, failure: [*spoken.text[:-4], failure, *spoken.text[-4:]],
    "amid a call": lambda spoken, failure: [*spoken.call, failure, *spoken.text],
    "after the finish": lambda spoken, failure: [*spoken.text[:-1], failure, spoken.text[-1]],
    "twice": lambda spoken, failure: [*spoken.text[:-4], failure, failure, *spoken.text[-4:]],
}
CASES = [
    pytest.param(spoken, failure, place, id=f"{spoken.dialect.name}-{number}-{name}")
    for spoken in SPOKEN
    for number, failure in enumerate(spoken.failures)
    for name, place in PLACES.items()
]


def translated(
    target_dialect: Dialect, caller_dialect: Dialect, stream: bytes
) -> tuple[list[Any], TranslatingStreamReader]:
    context = AnswerContext("acme/chat", Request([], include_usage=True), 1_700_000_000, seals_of())
    reader = TranslatingStreamReader(
        target_dialect, caller_dialect, context, target_dialect.new_meter(MAX_REPORTED_TOKENS)
    )
    return payloads(reader.feed(stream) + reader.end()), reader


def is_failure(event: Any) -> bool:
    return isinstance(event, dict) and (bool(event.get("error")) or event.get("type") in ("error", "response.failed"))


def check_last_word(caller_dialect: Dialect, events: list[Any]) -> None:
    """The failure was told once, in the form of the dialect, and nothing after it."""
    assert "overloaded" in repr(events[-1])
    if caller_dialect is RESPONSES:
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        events = events[:-1]
    assert [event for event in events if is_failure(event)] == [events[-1]]


@CALLER_DIALECTS
@pytest.mark.parametrize(("target", "failure", "place"), CASES)
def test_nothing_follows_a_failure(target: Spoken, failure: Json, place: Any, caller_dialect: Dialect) -> None:
    events, reader = translated(target.dialect, caller_dialect, frames(*place(target, failure)))
    assert reader.failed
    check_last_word(caller_dialect, events)


@CALLER_DIALECTS
@pytest.mark.parametrize("target", SPOKEN, ids=lambda target: target.dialect.name)
def test_failure_behind_the_last_event_is_no_part_of_the_answer(target: Spoken, caller_dialect: Dialect) -> None:
    events, reader = translated(target.dialect, caller_dialect, frames(*target.text, target.failures[0]))
    assert (reader.ended, reader.failed) == (True, False)
    assert not any(map(is_failure, events))


@CALLER_DIALECTS
@pytest.mark.parametrize("target", SPOKEN, ids=lambda target: target.dialect.name)
def test_comments_do_not_follow_a_failure(target: Spoken, caller_dialect: Dialect) -> None:
    stream = frames(*target.text[:-4], target.failures[0]) + b": alive\n\n" + frames(*target.text)
    events, _ = translated(target.dialect, caller_dialect, stream)
    check_last_word(caller_dialect, events)


@CALLER_DIALECTS
@pytest.mark.parametrize("target", SPOKEN, ids=lambda target: target.dialect.name)
def test_unreadable_events_after_a_failure_are_ignored(target: Spoken, caller_dialect: Dialect) -> None:
    events, _ = translated(target.dialect, caller_dialect, frames(target.failures[0], "{", "[1]"))
    check_last_word(caller_dialect, events)


@CALLER_DIALECTS
def test_usage_is_read_on_both_sides_of_a_failure(caller_dialect: Dialect) -> None:
    for events in ([chat_usage(), {"error": ERROR}], [{"error": ERROR}, chat_usage()]):
        output, reader = translated(CHAT, caller_dialect, frames(*chat_text("Hello"), *events, "[DONE]"))
        check_last_word(caller_dialect, output)
        assert reader.reported.tokens == Tokens(input=12, output=5)


@CALLER_DIALECTS
def test_text_of_the_failing_event_is_told_before_the_failure(caller_dialect: Dialect) -> None:
    last = chat_chunk({"content": "the last word"}, "error", error=ERROR)
    events, _ = translated(CHAT, caller_dialect, frames(*chat_text("Hello", finish=None), last, "[DONE]"))
    check_last_word(caller_dialect, events)
    assert "the last word" in repr(events[:-1])


BROKEN = ["abort", "error", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "network_error", "error: x"]


@CALLER_DIALECTS
@pytest.mark.parametrize("word", BROKEN)
def test_answer_that_its_server_broke_off_is_a_failure(word: str, caller_dialect: Dialect) -> None:
    events, reader = translated(CHAT, caller_dialect, frames(*chat_text("Hello", finish=word), chat_usage(), "[DONE]"))
    assert reader.failed
    assert is_failure(events[-1])
    assert word in repr(events[-1])
    assert sum(map(is_failure, events)) == (2 if caller_dialect is RESPONSES else 1)


@CALLER_DIALECTS
@pytest.mark.parametrize("word", BROKEN)
def test_whole_answer_that_its_server_broke_off_is_an_error(word: str, caller_dialect: Dialect) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": word}
    check_whole_error(CHAT, caller_dialect, {"id": "c", "choices": [choice]}, word)


@CALLER_DIALECTS
def test_whole_answer_with_an_error_of_a_choice_is_an_error(caller_dialect: Dialect) -> None:
    message = {"role": "assistant", "content": "Hello"}
    for error in (ERROR, "overloaded"):
        choice = {"index": 0, "message": message, "finish_reason": "error", "error": error}
        check_whole_error(CHAT, caller_dialect, {"id": "c", "choices": [choice]}, "overloaded")


@CALLER_DIALECTS
@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_whole_response_that_failed_is_an_error_with_or_without_output(status: str, caller_dialect: Dialect) -> None:
    outputs: list[Any] = [[], response_text("Hello")[-1]["response"]["output"]]
    for output in outputs:
        response = {"id": "r", "object": "response", "status": status, "output": output, "error": None}
        check_whole_error(RESPONSES, caller_dialect, response, status)


def check_whole_error(target_dialect: Dialect, caller_dialect: Dialect, answer: Json, word: str) -> None:
    context = AnswerContext("acme/chat", Request([]), 1_700_000_000, seals_of())
    reader = TranslatingBodyReader(
        target_dialect, caller_dialect, context, target_dialect.new_meter(MAX_REPORTED_TOKENS)
    )
    reader.feed(orjson.dumps(answer))
    error = orjson.loads(reader.end())
    assert reader.failed
    assert list(error) == ["error"]
    assert word in error["error"]["message"]
