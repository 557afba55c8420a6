"""Answers of the Responses dialect: streamed and whole are the same, at every cut; the vendor's SDK agrees."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from policy.billing import Tokens
from proxy.dialects.middle.answer import (
    END,
    MAX_TOKENS,
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
from proxy.dialects.middle.gathering import MAX_GATHERED_CHARS
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Text, ToolCall
from proxy.dialects.middle.stops import stop_of
from proxy.dialects.responses.dialect import DIALECT
from proxy.dialects.responses.output_items import with_bytes
from proxy.dialects.sse import Framer, data_of
from proxy.errors import UpstreamCutError
from tests.fakes.seals import opened, seals_of, unseal
from tests.proxy.dialects.assembling import assembled
from tests.proxy.dialects.responses.recorded import RECORDED
from tests.proxy.dialects.samples import CUTS, cut, payloads
from tests.upstream.dialects.shapes import mismatches

Json = dict[str, Any]
ASKED: Json = {
    "model": "acme/fast",
    "input": "hi",
    "instructions": "Be brief.",
    "metadata": {"team": "a"},
    "temperature": 0.5,
    "reasoning": {"summary": "auto"},
    "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}],
}
"""The caller's request. All answers repeat its settings."""
TOKENS = Tokens(input=9, output=4, cached_input=2)


def context(body: Json = ASKED) -> AnswerContext:
    return AnswerContext("acme/fast", DIALECT.read_request(body), 1_700_000_001, seals_of())


def streamed_events(frames: list[bytes]) -> Iterator[list[AnswerEvent]]:
    reader = DIALECT.new_stream_reader()
    framer = Framer()
    for data in frames:
        for piece, _ in framer.split(data):
            yield reader.read(orjson.loads(data_of(piece)))


def written_stream(events: Iterator[list[AnswerEvent]], body: Json = ASKED) -> bytes:
    writer = DIALECT.new_stream_writer(context(body))
    stream = b"".join([writer.write(some) for some in events])
    return stream + writer.closing(TOKENS)


def check(value: Json, kind: Any) -> None:
    """`store` is in real answers, and not in the SDK's types."""
    problems = [one for one in mismatches(value, kind) if one.path.rpartition(".")[2] != "store"]
    assert not problems, (problems, value)


@pytest.mark.parametrize("name", RECORDED)
@given(places=CUTS)
def test_streamed_answer_adds_up_to_the_whole_one_at_every_cut(name: str, places: list[int]) -> None:
    whole, frames = RECORDED[name]
    pieces = cut(b"".join(frames), places)
    assert assembled(event for events in streamed_events(pieces) for event in events) == DIALECT.read_answer(whole)


@pytest.mark.parametrize("name", RECORDED)
def test_written_answer_reads_as_the_answer(name: str) -> None:
    answer = DIALECT.read_answer(RECORDED[name][0])
    body = DIALECT.write_answer(answer, context(), TOKENS)
    check(body, Response)
    assert DIALECT.read_answer(returned(body)) == answer
    assert body["model"] == "acme/fast"
    assert body["store"] is False
    assert (body["metadata"], body["temperature"]) == (ASKED["metadata"], 0.5)


def returned(response: Json) -> Json:
    """The answer with its reasoning unsealed, as the target that sealed it reads it."""
    output = []
    for item in response["output"]:
        sealed = unseal(item.get("encrypted_content") or "") if item["type"] == "reasoning" else None
        output.append(sealed[1] if sealed else item)
    return response | {"output": output}


@pytest.mark.parametrize("name", RECORDED)
def test_written_stream_ends_with_the_whole_answer(name: str) -> None:
    whole, frames = RECORDED[name]
    stream = written_stream(streamed_events(frames))
    events = payloads(stream)
    assert events[-1]["response"] == DIALECT.write_answer(DIALECT.read_answer(whole), context(), TOKENS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert re.findall(rb"event: (\S+)\n", stream) == [event["type"].encode() for event in events]
    for event in events:
        check(event, ResponseStreamEvent)
    reader = DIALECT.new_stream_reader()
    again = assembled(one for event in events for one in reader.read(event))
    again.logprobs = with_bytes(again.logprobs) or None
    assert again == DIALECT.read_answer(events[-1]["response"])


@pytest.mark.parametrize("name", RECORDED)
def test_summaries_are_shown_only_to_callers_that_ask(name: str) -> None:
    whole, frames = RECORDED[name]
    silent = ASKED | {"reasoning": {"effort": "high"}}
    body = DIALECT.write_answer(DIALECT.read_answer(whole), context(silent), TOKENS)
    thoughts = [item for item in body["output"] if item["type"] == "reasoning"]
    assert all(item["summary"] == [] for item in thoughts)
    events = payloads(written_stream(streamed_events(frames), silent))
    assert events[-1]["response"] == body
    assert not any("summary" in event["type"] for event in events)
    sealed = [item["encrypted_content"] for item in reasoning_items(whole) if "encrypted_content" in item]
    assert [item["encrypted_content"] for item in thoughts if "encrypted_content" in item] == sealed


def reasoning_items(whole: Json) -> list[Json]:
    """The items as a caller sees them that asked for summaries."""
    output: list[Json] = DIALECT.write_answer(DIALECT.read_answer(whole), context(), TOKENS)["output"]
    return [item for item in output if item["type"] == "reasoning"]


def client_of(body: bytes, content_type: str) -> openai.OpenAI:
    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, content=body)

    transport = httpx2.MockTransport(respond)
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=httpx2.Client(transport=transport))


@pytest.mark.parametrize("name", RECORDED)
def test_sdk_accumulates_the_stream_to_the_same_object_as_the_whole_answer(name: str) -> None:
    whole, frames = RECORDED[name]
    body = orjson.dumps(DIALECT.write_answer(DIALECT.read_answer(whole), context(), TOKENS))
    parsed = client_of(body, "application/json").responses.parse(model="acme/fast", input="hi")
    stream = written_stream(streamed_events(frames))
    with client_of(stream, "text/event-stream").responses.stream(model="acme/fast", input="hi") as events:
        last = list(events)[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert without_parsed(last.response.to_dict()) == without_parsed(parsed.to_dict())
    assert parsed.output_text == "".join(
        part.text for part in DIALECT.read_answer(whole).parts if isinstance(part, Text)
    )


def without_parsed(value: Any) -> Any:
    """The SDK parses only complete streams, and without a format it says null."""
    if isinstance(value, dict):
        return {name: without_parsed(inner) for name, inner in value.items() if not name.startswith("parsed")}
    return [without_parsed(inner) for inner in value] if isinstance(value, list) else value


def events_of(stream: bytes) -> list[tuple[str, Any]]:
    """Type and item, delta or text of each event between start and end."""
    return [(e["type"].removeprefix("response."), e) for e in payloads(stream)[2:]]


def test_call_of_a_namespaced_tool_is_split_again() -> None:
    inner = {"type": "function", "name": "close", "parameters": {"type": "object"}, "strict": False}
    request_body = ASKED | {"tools": [{"type": "namespace", "name": "agents", "description": "d", "tools": [inner]}]}
    answer = Answer("msg_1", 1, [ToolCall("c", "agents__close", "{}")], Stop(TOOL_CALLS))
    body = DIALECT.write_answer(answer, context(request_body), TOKENS)
    check(body, Response)
    assert (body["output"][0]["namespace"], body["output"][0]["name"]) == ("agents", "close")
    call: list[AnswerEvent] = [
        ToolCallStarted(0, "c", "agents__close"),
        ToolCallDelta(0, "{}"),
        Stopped(Stop(TOOL_CALLS)),
    ]
    streamed = payloads(written_stream(iter([[Started("msg_1", 1)], call]), request_body))
    assert streamed[-1]["response"] == body


@pytest.mark.parametrize(
    ("arguments", "text"), [('{"input":"*** Begin"}', "*** Begin"), ("oops", "oops"), ("[1]", "[1]")]
)
def test_function_that_stands_for_a_custom_tool_is_its_call(arguments: str, text: str) -> None:
    request_body = ASKED | {"tools": [{"type": "custom", "name": "patch", "format": {"type": "text"}}]}
    answer = Answer("c1", 1, [ToolCall("c", "patch", arguments)], Stop(TOOL_CALLS))
    body = DIALECT.write_answer(answer, context(request_body), TOKENS)
    check(body, Response)
    assert body["output"][0] | {"id": ""} == {
        "type": "custom_tool_call",
        "id": "",
        "call_id": "c",
        "name": "patch",
        "input": text,
    }
    call: list[AnswerEvent] = [
        ToolCallStarted(0, "c", "patch"),
        *(ToolCallDelta(0, c) for c in arguments),
        Stopped(Stop(TOOL_CALLS)),
    ]
    stream = written_stream(iter([[Started("c1", 1)], call]), request_body)
    assert payloads(stream)[-1]["response"] == body
    assert [e["delta"] for kind, e in events_of(stream) if kind == "custom_tool_call_input.delta"] == [text]


def test_opaque_member_of_a_call_goes_before_it_sealed() -> None:
    extra = {"google": {"thought_signature": "abc"}}
    answer = Answer("c1", 1, [ToolCall("", "f", "{}", extra=extra)], Stop(TOOL_CALLS))
    body = DIALECT.write_answer(answer, context(), TOKENS)
    reasoning, call = body["output"]
    assert unseal(reasoning["encrypted_content"]) == (
        "chat_completions",
        {"tool_call_extra": {call["call_id"]: extra}},
    )
    events: list[AnswerEvent] = [
        Started("c1", 1),
        ToolCallStarted(0, "", "f", extra=extra),
        ToolCallDelta(0, "{}"),
        Stopped(Stop(TOOL_CALLS)),
    ]
    stream = written_stream(iter([events]))
    assert payloads(stream)[-1]["response"] == body
    for event in payloads(stream):
        check(event, ResponseStreamEvent)


def test_interleaved_calls_come_one_after_the_other() -> None:
    events: list[AnswerEvent] = [
        Started("c1", 1),
        ToolCallStarted(0, "a", "f"),
        ToolCallStarted(1, "b", "g"),
        ToolCallDelta(1, '{"b"'),
        ToolCallDelta(0, '{"a"'),
        ToolCallDelta(1, ":1}"),
        ToolCallDelta(0, ":1}"),
        Stopped(Stop(TOOL_CALLS)),
    ]
    stream = written_stream(iter([[event] for event in events]))
    ended = [e["item"]["arguments"] for kind, e in events_of(stream) if kind == "output_item.done"]
    assert ended == ['{"a":1}', '{"b":1}']
    places = [e["output_index"] for _, e in events_of(stream)[:-1]]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("kind", "code"),
    [("overloaded_error", "server_error"), ("rate_limit_error", "rate_limit_exceeded"), ("odd", "server_error")],
)
def test_failure_within_a_stream_is_a_failed_response(kind: str, code: str) -> None:
    writer = DIALECT.new_stream_writer(context())
    stream = writer.write([Started("c1", 1), TextDelta("I "), Failed(kind, "Overloaded")])
    error, last = payloads(stream)[-2:]
    check(error, ResponseStreamEvent)
    check(last, ResponseStreamEvent)
    assert (error["type"], error["code"], error["message"]) == ("error", code, "Overloaded")
    assert last["type"] == "response.failed"
    assert (last["response"]["status"], last["response"]["error"]) == (
        "failed",
        {"code": code, "message": "Overloaded"},
    )


@pytest.mark.parametrize(
    ("events", "kind", "message"),
    [
        ([{"type": "error", "code": "rate_limit_exceeded", "message": "slow"}], "rate_limit_exceeded", "slow"),
        ([{"type": "error", "error": {"type": "server_error", "message": "oops"}}], "server_error", "oops"),
        (
            [{"type": "response.failed", "response": {"error": {"code": "server_error", "message": "oops"}}}],
            "server_error",
            "oops",
        ),
    ],
)
def test_failure_is_read_in_each_form(events: list[Json], kind: str, message: str) -> None:
    reader = DIALECT.new_stream_reader()
    assert [one for event in events for one in reader.read(event)] == [Failed(kind, message)]


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        ("end", "completed", None),
        ("stop_sequence", "completed", None),
        ("tool_calls", "completed", None),
        ("max_tokens", "incomplete", "max_output_tokens"),
        ("context_full", "incomplete", "max_output_tokens"),
        ("refused", "incomplete", "content_filter"),
    ],
)
def test_status_says_why_the_answer_ended(stop: str, status: str, reason: str | None) -> None:
    body = DIALECT.write_answer(Answer("c1", 1, [Text("I ")], Stop(stop)), context(), None)
    check(body, Response)
    assert body["status"] == status
    assert body["output"][0]["status"] == status
    assert (body["incomplete_details"] or {}).get("reason") == reason
    assert body["usage"] is None


def test_structured_output_is_parsed_by_the_sdk() -> None:
    class Weather(BaseModel):
        city: str

    answer = Answer("c1", 1, [Text('{"city":"Paris"}')], Stop("end"))
    body = orjson.dumps(DIALECT.write_answer(answer, context(), TOKENS))
    client = client_of(body, "application/json")
    parsed = client.responses.parse(model="m", input="hi", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Paris")
    stream = written_stream(
        iter([[Started("c1", 1), TextDelta('{"city":'), TextDelta('"Paris"}'), Stopped(Stop("end"))]])
    )
    client = client_of(stream, "text/event-stream")
    with client.responses.stream(model="m", input="hi", text_format=Weather) as events:
        assert events.get_final_response().output_parsed == Weather(city="Paris")


def test_endless_answer_is_cut() -> None:
    writer = DIALECT.new_stream_writer(context())
    with pytest.raises(UpstreamCutError):
        writer.write([TextDelta("x" * (MAX_GATHERED_CHARS + 1))])


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
JSON_TEXTS = st.dictionaries(TEXTS, TEXTS, max_size=2).map(lambda texts: orjson.dumps(texts).decode())
EXTRA = st.none() | st.just({"google": {"thought_signature": "c2ln"}})
PARTS = st.lists(
    TEXTS.map(Text)
    | TEXTS.map(Refusal)
    | st.builds(Reasoning, TEXTS, st.just("messages"), TEXTS.map(lambda text: {"type": "thinking", "thinking": text}))
    | st.builds(ToolCall, TEXTS, st.sampled_from(["f", "agents__f"]), JSON_TEXTS, extra=EXTRA)
    | st.builds(ToolCall, TEXTS, st.just("g"), TEXTS, st.just(True)),
    max_size=5,
)
REASONS = st.sampled_from([END, MAX_TOKENS, REFUSED, TOOL_CALLS])


def told_by(part: AnswerPart, number: int, cut_at: int) -> list[AnswerEvent]:
    """The events of one part, its text in two pieces."""
    if isinstance(part, ToolCall):
        pieces = [part.arguments[:cut_at], part.arguments[cut_at:]]
        start = ToolCallStarted(number, part.id, part.name, part.custom, part.extra)
        return [start, *(ToolCallDelta(number, piece) for piece in pieces if piece), PartEnded()]
    kind: Any = {Text: TextDelta, Refusal: RefusalDelta, Reasoning: ReasoningDelta}[type(part)]
    ended = ReasoningEnded(part) if isinstance(part, Reasoning) else PartEnded()
    return [*(kind(piece) for piece in (part.text[:cut_at], part.text[cut_at:]) if piece), ended]


@given(PARTS, REASONS, st.integers(0, 9))
def test_any_answer_is_kept_and_streamed_as_it_is_written_whole(
    parts: list[AnswerPart], reason: str, cut_at: int
) -> None:
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    space = {"type": "namespace", "name": "agents", "description": "d", "tools": [tool]}
    request_body = ASKED | {"reasoning": {"summary": "auto"}, "tools": [tool, space]}
    answer = Answer("msg_1", 5, parts, stop_of(reason, None, parts))
    body = DIALECT.write_answer(answer, context(request_body), TOKENS)
    events = [told_by(part, number, cut_at) for number, part in enumerate(parts)]
    stream = payloads(written_stream(iter([[Started("msg_1", 5)], *events, [Stopped(answer.stop)]]), request_body))
    assert stream[-1]["response"] == body
    read = opened(DIALECT.read_request({"input": body["output"], "tools": request_body["tools"]}))
    calls = {part.id: part.extra for part in parts if isinstance(part, ToolCall) and part.extra}
    read_parts = [part for turn in read.turns for part in turn.parts if not is_extra(part)]
    assert [plain(part) for part in read_parts] == [plain(part) for part in parts]
    assert sum(is_extra(part) for turn in read.turns for part in turn.parts) >= len(calls)


def is_extra(part: object) -> bool:
    return isinstance(part, Reasoning) and part.dialect == "chat_completions"


def plain(part: object) -> object:
    """A part as the next request can have it: opaque members of calls come beside them, and refusals are said."""
    return replace(part, extra=None) if isinstance(part, ToolCall) else part


def test_answers_of_a_server_that_sends_one_id_have_their_own() -> None:
    first, second = (
        DIALECT.write_answer(Answer("", created_s, [Text("hi")], Stop(END)), context(), TOKENS) for created_s in (5, 6)
    )
    assert first["id"] != second["id"]
    assert first["output"][0]["id"] != second["output"][0]["id"]
