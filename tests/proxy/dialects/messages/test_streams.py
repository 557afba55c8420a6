"""Streams of Messages targets and to Messages callers: they add up to the whole answer."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from anthropic.types.beta import BetaMessage

from policy.billing import Details, Tokens
from proxy.dialects.messages.dialect import DIALECT
from proxy.dialects.middle.answer import (
    END,
    REFUSED,
    TOOL_CALLS,
    Answer,
    AnswerEvent,
    Failed,
    PartEnded,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    Started,
    Stop,
    Stopped,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from proxy.dialects.middle.dialect import AnswerContext
from proxy.dialects.middle.request import Reasoning, ReasoningSettings, Request, Sampling, Text, Tool
from tests.fakes.seals import seals_of, unseal
from tests.proxy.dialects.messages.recorded import RECORDED
from tests.proxy.dialects.messages.sdk import accumulated, check_events, parse_message, payloads

Json = dict[str, Any]
TOKENS = Tokens(input=95, output=7, cached_input=80)
BLANK_USAGE: Json = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


THINK = ReasoningSettings(enabled=True)


def context(*stops: str, reasoning: ReasoningSettings | None = THINK, tools: list[Tool] | None = None) -> AnswerContext:
    request = Request([], sampling=Sampling(stop=list(stops)), reasoning=reasoning, tools=tools or [])
    return AnswerContext("acme/chat", request, 1795246080, seals_of())


def written(events: list[list[AnswerEvent]], *stops: str, tokens: Tokens | None = TOKENS) -> bytes:
    writer = DIALECT.new_stream_writer(context(*stops))
    return b"".join(writer.write(some) for some in events) + writer.closing(tokens)


def events_of(frames: list[bytes]) -> list[list[AnswerEvent]]:
    reader = DIALECT.new_stream_reader()
    return [reader.read(orjson.loads(frame.split(b"\ndata: ", 1)[1])) for frame in frames]


@pytest.mark.parametrize("name", RECORDED)
def test_whole_answer_is_kept(name: str) -> None:
    body, _ = RECORDED[name]
    answer = replace(DIALECT.read_answer(body), details=Details(cache_write=5, reasoning=3))
    copy = DIALECT.write_answer(answer, context("END"), TOKENS)
    parse_message(copy)
    refusal_content = [{"type": "text", "text": "This is about a weapon."}] if name == "refused" else []
    assert copy == body | {"model": "acme/chat", "content": body["content"] + refusal_content}


@pytest.mark.parametrize("name", RECORDED)
def test_stream_adds_up_to_the_whole_answer(name: str) -> None:
    body, frames = RECORDED[name]
    stream = written(events_of(frames), "END")
    check_events(payloads(stream))
    whole = DIALECT.write_answer(DIALECT.read_answer(body), context("END"), TOKENS)
    assert accumulated(stream).model_dump(exclude_none=True) == parse_message(whole).model_dump(exclude_none=True)


def story(*events: AnswerEvent) -> list[Json]:
    """The content blocks that the SDK makes of these events."""
    stream = written([[Started("m")], *([event] for event in events), [Stopped(Stop(TOOL_CALLS))]])
    check_events(payloads(stream))
    return [block.model_dump(exclude_none=True) for block in accumulated(stream).content]


def test_interleaved_calls_become_separate_blocks() -> None:
    blocks = story(
        TextDelta("x"),
        ToolCallStarted(0, "a", "one"),
        ToolCallStarted(1, "b", "two"),
        ToolCallDelta(0, '{"n":'),
        ToolCallDelta(1, '{"m":'),
        ToolCallDelta(0, "1}"),
        ToolCallDelta(1, "2}"),
    )
    assert blocks == [
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "a", "name": "one", "input": {"n": 1}},
        {"type": "tool_use", "id": "b", "name": "two", "input": {"m": 2}},
    ]


def test_text_after_the_end_of_a_part_is_a_new_block() -> None:
    assert story(TextDelta("a"), TextDelta("b"), PartEnded(), TextDelta("c")) == [
        {"type": "text", "text": "ab"},
        {"type": "text", "text": "c"},
    ]


@pytest.mark.parametrize(
    ("reasoning", "tools", "kinds"),
    [
        (None, [], ["text"]),
        (ReasoningSettings(effort="high"), [], ["text"]),
        (ReasoningSettings(enabled=True), [], ["thinking", "text"]),
        (None, [Tool("f")], ["thinking", "text"]),
    ],
)
def test_callers_without_thinking_or_tools_get_the_text_first(
    reasoning: ReasoningSettings | None, tools: list[Tool], kinds: list[str]
) -> None:
    answer_context = context(reasoning=reasoning, tools=tools)
    thought = Reasoning("hm", "chat_completions", {"reasoning_content": "hm"})
    whole = DIALECT.write_answer(Answer("m", 0, [thought, Text("42")], Stop(END)), answer_context, TOKENS)
    assert [block["type"] for block in whole["content"]] == kinds
    writer = DIALECT.new_stream_writer(answer_context)
    events: list[AnswerEvent] = [
        Started("m"),
        ReasoningDelta("hm"),
        ReasoningEnded(thought),
        TextDelta("42"),
        Stopped(Stop(END)),
    ]
    stream = b"".join(writer.write([event]) for event in events) + writer.closing(TOKENS)
    check_events(payloads(stream))
    assert [block.type for block in accumulated(stream).content] == kinds


def test_refusal_is_told_in_the_stop_too() -> None:
    message = accumulated(written([[Started("m"), RefusalDelta("I"), RefusalDelta(" won't"), Stopped(Stop(REFUSED))]]))
    assert message.stop_reason == "refusal"
    assert message.stop_details is not None
    assert message.stop_details.explanation == "I won't"


def test_refusal_is_a_text_block_of_its_own() -> None:
    assert story(TextDelta("a"), RefusalDelta("I"), RefusalDelta(" won't")) == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "I won't"},
    ]


def test_foreign_reasoning_is_sealed_in_the_signature() -> None:
    native: Json = {"id": "rs_1", "encrypted_content": "gAAA"}
    blocks = story(ReasoningDelta("Hm"), ReasoningEnded(Reasoning("Hm", "responses", native)), TextDelta("a"))
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert blocks[0]["thinking"] == "Hm"
    assert unseal(blocks[0]["signature"]) == ("responses", native)


def test_foreign_reasoning_without_text_is_sealed_as_redacted() -> None:
    native: Json = {"id": "rs_1", "encrypted_content": "gAAA"}
    (block,) = story(ReasoningEnded(Reasoning("", "responses", native)))
    assert block["type"] == "redacted_thinking"
    assert unseal(block["data"]) == ("responses", native)


def test_reasoning_that_came_without_deltas_is_shown() -> None:
    (block,) = story(ReasoningEnded(Reasoning("all", "responses", {"id": "rs_1"})))
    assert block["thinking"] == "all"


def test_reasoning_without_anything_to_return_has_an_empty_signature() -> None:
    assert story(ReasoningDelta("Hm"), TextDelta("a"))[0] == {"type": "thinking", "thinking": "Hm", "signature": ""}


def test_extra_content_of_a_call_is_sealed_before_the_call() -> None:
    extra = {"google": {"thought_signature": "sig"}}
    sealed_block, call = story(ToolCallStarted(0, "functions.a:0", "one", extra=extra), ToolCallDelta(0, "{}"))
    assert call["id"] == "functions_a_0"
    assert unseal(sealed_block["data"]) == ("chat_completions", {"tool_call_extra": {"functions_a_0": extra}})


def test_calls_without_ids_get_distinct_ones() -> None:
    calls = story(ToolCallStarted(0, "", "one"), PartEnded(), ToolCallStarted(1, "", "two"))
    assert len({call["id"] for call in calls}) == 2


def test_stream_that_did_not_begin_gets_a_message() -> None:
    assert accumulated(written([[TextDelta("a")], [Stopped(Stop(END))]])).id.startswith("msg_")
    assert accumulated(written([[Stopped(Stop(END))]])).stop_reason == "end_turn"


def test_failure_is_an_error_event() -> None:
    writer = DIALECT.new_stream_writer(context())
    assert payloads(writer.write([Failed("overloaded_error", "Busy")])) == [
        {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}
    ]


def test_stop_sequence_is_named_only_if_the_caller_asked_for_it() -> None:
    events: list[list[AnswerEvent]] = [[Started("m")], [Stopped(Stop("stop_sequence", "END"))]]
    message = accumulated(written(events, "END"))
    other = accumulated(written(events))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert (other.stop_reason, other.stop_sequence) == ("end_turn", None)


def test_missing_usage_is_zero() -> None:
    usage = payloads(written([[Started("m")], [Stopped(Stop(END))]], tokens=None))[-2]["usage"]
    assert usage == BLANK_USAGE


def test_caller_that_asked_for_a_thread_is_told_that_there_is_none() -> None:
    """The vendor's rule: an answer of a fallback model is in no thread."""
    answer_context = context()
    answer_context.request.echo["thread"] = {"type": "create"}
    writer = DIALECT.new_stream_writer(answer_context)
    stream = writer.write([Started("m"), TextDelta("a"), Stopped(Stop(END))]) + writer.closing(TOKENS)
    streamed = payloads(stream)[-2]["usage"]
    body = DIALECT.write_answer(DIALECT.read_answer(RECORDED["text"][0]), answer_context, TOKENS)
    BetaMessage.model_validate_json(orjson.dumps(body), strict=True)
    assert [each["type"] for each in streamed["iterations"]] == ["fallback_message"]
    assert [each["model"] for each in body["usage"]["iterations"]] == ["acme/chat"]


def test_short_vendor_ids_are_made_distinct_by_the_time() -> None:
    first = accumulated(written([[Started("chatcmpl-1", 1)], [Stopped(Stop(END))]]))
    second = accumulated(written([[Started("chatcmpl-1", 2)], [Stopped(Stop(END))]]))
    assert first.id != second.id


def test_events_of_unknown_types_are_skipped() -> None:
    reader = DIALECT.new_stream_reader()
    for event in ({}, {"type": 1}, {"type": "ping"}, {"type": "content_block_delta"}, {"type": ["a"]}):
        assert reader.read(event) == []


def test_error_event_is_a_failure() -> None:
    reader = DIALECT.new_stream_reader()
    event = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}
    assert reader.read(event) == [Failed("overloaded_error", "Busy")]
