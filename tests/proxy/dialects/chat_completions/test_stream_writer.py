"""Streams as Chat Completions callers get them, read by the SDK's own accumulator."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import openai.types.chat as chat_types
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import NO_DETAILS
from proxy.dialects.chat_completions.answer_writer import write_answer
from proxy.dialects.chat_completions.stream_reader import ChatStreamReader
from proxy.dialects.chat_completions.stream_writer import ChatStreamWriter
from proxy.dialects.middle.answer import (
    END,
    TOOL_CALLS,
    Answer,
    AnswerEvent,
    DetailsSeen,
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
from proxy.dialects.middle.request import Reasoning, Refusal, Request, Text, Tool, ToolCall
from tests.fakes.seals import seal, seals_of
from tests.proxy.dialects.assembling import assembled
from tests.proxy.dialects.chat_completions.answers import ANSWERS, CREATED, SLUG, TOKENS, context
from tests.proxy.dialects.chat_completions.recorded import LOGPROB, RECORDED
from tests.proxy.dialects.samples import payloads

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


def events_of(answer: Answer, piece: int) -> Iterator[AnswerEvent]:
    """The events of a whole answer, its texts in pieces of `piece` characters."""
    yield Started(answer.id, answer.created_s)
    calls = 0
    for part in answer.parts:
        text = part.arguments if isinstance(part, ToolCall) else part.text
        pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
        match part:
            case Text():
                yield from map(TextDelta, pieces)
            case Refusal():
                yield from map(RefusalDelta, pieces)
            case Reasoning():
                yield from map(ReasoningDelta, pieces)
                yield ReasoningEnded(part)
            case ToolCall():
                yield ToolCallStarted(calls, part.id, part.name, part.custom, part.extra)
                yield from (ToolCallDelta(calls, one) for one in pieces)
                yield PartEnded()
                calls += 1
    yield DetailsSeen(answer.details)
    yield Stopped(answer.stop)


def stream_of(events: list[AnswerEvent], context: AnswerContext, together: int = 1) -> bytes:
    writer = ChatStreamWriter(context)
    return b"".join(
        [writer.write(events[at : at + together]) for at in range(0, len(events), together)] + [writer.closing(TOKENS)]
    )


def validated(stream: bytes) -> list[Any]:
    chunks = payloads(stream)
    assert chunks[-1] == "[DONE]"
    for chunk in chunks[:-1]:
        sdk_chunk = orjson.loads(orjson.dumps(chunk))
        for choice in sdk_chunk["choices"]:  # the SDK's types know no custom calls in streams; OpenAI sends them
            for call in choice["delta"].get("tool_calls", ()):
                if "custom" in call:
                    call.pop("type", None)
        chat_types.ChatCompletionChunk.model_validate_json(orjson.dumps(sdk_chunk), strict=True)
    return chunks[:-1]


def accumulated(stream: bytes) -> chat_types.ChatCompletion:
    """Return the completion that the SDK's stream helper makes of the bytes."""
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    )
    with (
        httpx2.Client(transport=transport) as http,
        openai.OpenAI(api_key="k", base_url="http://h/v1", http_client=http) as client,
        client.chat.completions.stream(model=SLUG, messages=[{"role": "user", "content": "hi"}]) as events,
    ):
        try:
            return events.get_final_completion()
        except openai.LengthFinishReasonError as error:
            return error.completion


def stripped(completion: chat_types.ChatCompletion | dict[str, Any]) -> Any:
    """A completion without what differs between its forms: nulls, and members only of parsed or streamed objects."""
    dumped = completion if isinstance(completion, dict) else completion.model_dump()

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: clean(inner)
                for name, inner in value.items()
                if inner is not None and name not in ("parsed", "parsed_arguments")
            }
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    cleaned = clean(dumped)
    for choice in cleaned["choices"]:
        choice["message"].setdefault("content", "")
        for call in choice["message"].get("tool_calls", ()):
            call.pop("index", None)
        for entry in choice["message"].get("reasoning_details", ()):
            entry.pop("index", None)
    return cleaned


def without_customs(answer: Answer) -> Answer:
    for part in answer.parts:
        if isinstance(part, ToolCall):
            part.custom = False
    return answer


@given(ANSWERS.map(without_customs), st.integers(1, 9), st.integers(1, 4))
def test_sdk_accumulates_a_stream_to_the_whole_answer(answer: Answer, piece: int, together: int) -> None:
    stream = stream_of(list(events_of(answer, piece)), context(), together)
    validated(stream)
    assert stripped(accumulated(stream)) == stripped(write_answer(answer, context(), TOKENS))


@given(ANSWERS, st.integers(1, 9))
def test_written_stream_is_read_as_the_same_answer(answer: Answer, piece: int) -> None:
    chunks = validated(stream_of(list(events_of(answer, piece)), context()))
    reader = ChatStreamReader()
    assert assembled([event for chunk in chunks for event in reader.read(chunk)]) == replace(answer, details=NO_DETAILS)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_stream_is_written_as_a_valid_stream(name: str) -> None:
    reader = ChatStreamReader()
    writer = ChatStreamWriter(context())
    out = b""
    for frame in RECORDED[name][1]:
        data = frame.removeprefix(b"data: ").strip()
        out += writer.write(reader.done_received() if data == b"[DONE]" else reader.read(orjson.loads(data)))
    validated(out + writer.closing(TOKENS))


def test_chunks_have_the_members_of_openai_chunks() -> None:
    events: list[AnswerEvent] = [Started("msg_1"), TextDelta('a"b'), TextDelta("hi", [LOGPROB]), Stopped(Stop(END))]
    first, text, scored, last, usage = validated(stream_of(events, context()))
    common = {"id": "chatcmpl-msg_1", "object": "chat.completion.chunk", "created": CREATED, "model": SLUG}
    rest = {"index": 0, "logprobs": None, "finish_reason": None}
    delta = {"role": "assistant", "content": "", "refusal": None}
    assert first == common | {"choices": [rest | {"delta": delta}], "usage": None}
    assert text == common | {"choices": [rest | {"delta": {"content": 'a"b'}}], "usage": None}
    assert scored["choices"][0]["logprobs"] == {"content": [LOGPROB], "refusal": None}
    assert last == common | {"choices": [rest | {"delta": {}, "finish_reason": "stop"}], "usage": None}
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (90, 7)


def test_usage_is_not_told_to_who_did_not_ask() -> None:
    stream = stream_of([Started("c"), TextDelta("a"), Stopped(Stop(END))], context(include_usage=False))
    assert b"usage" not in stream
    assert stream.endswith(b"data: [DONE]\n\n")


def test_blocks_of_reasoning_are_told_apart_and_sealed() -> None:
    block = Reasoning("Hm.", "messages", THOUGHT)
    events: list[AnswerEvent] = [Started("c"), ReasoningDelta("Hm."), ReasoningEnded(block), ReasoningEnded(block)]
    chunks = validated(stream_of([*events, Stopped(Stop(END))], context()))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    entry = {"type": "reasoning.encrypted", "data": seal("messages", THOUGHT)}
    assert deltas[1:-1] == [
        {"reasoning_content": "Hm."},
        {"reasoning_details": [entry | {"index": 0}]},
        {"reasoning_content": "\n\nHm."},
        {"reasoning_details": [entry | {"index": 1}]},
    ]


def test_function_that_stands_for_a_custom_tool_is_told_as_its_call() -> None:
    context = AnswerContext(SLUG, Request([], tools=[Tool("patch", custom={"type": "text"})]), CREATED, seals_of())
    events: list[AnswerEvent] = [Started("c"), ToolCallStarted(0, "t", "patch"), ToolCallDelta(0, '{"input":')]
    events += [ToolCallDelta(0, '"a b"}'), PartEnded(), ToolCallStarted(1, "u", "patch", custom=True)]
    events += [ToolCallDelta(1, '{"input":"x"}'), Stopped(Stop(TOOL_CALLS))]
    chunks = validated(stream_of(events, context))
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert [(call["index"], call["custom"]) for call in calls] == [
        (0, {"name": "patch", "input": ""}),
        (1, {"name": "patch", "input": ""}),
        (1, {"input": '{"input":"x"}'}),
        (0, {"input": "a b"}),
    ]


def test_failure_is_an_error_that_the_sdk_raises() -> None:
    stream = ChatStreamWriter(context()).write([Started("c"), Failed("overloaded_error", "Overloaded")])
    with pytest.raises(openai.APIError, match="Overloaded"):
        accumulated(stream)


def test_sdk_accumulates_sealed_blocks_to_what_the_whole_answer_has() -> None:
    other = THOUGHT | {"thinking": "So."}
    blocks = [Reasoning("Hm.", "messages", THOUGHT), Reasoning("So.", "messages", other)]
    answer = Answer("chatcmpl-1", 5, [*blocks, Text("a")], Stop(END))
    message = accumulated(stream_of(list(events_of(answer, 2)), context())).choices[0].message.model_dump()
    whole = write_answer(answer, context(), TOKENS)["choices"][0]["message"]
    assert message["reasoning_content"] == whole["reasoning_content"] == "Hm.\n\nSo."
    assert message["reasoning_details"] == whole["reasoning_details"]
