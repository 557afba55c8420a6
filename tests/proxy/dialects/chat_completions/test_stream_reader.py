"""Streams of Chat Completions servers: each adds up to the whole answer."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.chat_completions.answer_reader import read_answer
from proxy.dialects.chat_completions.stream_reader import ChatStreamReader
from proxy.dialects.middle.answer import END, AnswerEvent, Stop, Stopped, ToolCallDelta, ToolCallStarted
from proxy.dialects.middle.request import ToolCall
from tests.proxy.dialects.assembling import assembled
from tests.proxy.dialects.chat_completions.recorded import (
    OSLO,
    RECORDED,
    ROME,
    call_delta,
    chunk,
    frames,
    stream,
    whole,
)


def events_of(received: list[bytes]) -> list[AnswerEvent]:
    reader = ChatStreamReader()
    events: list[AnswerEvent] = []
    for frame in received:
        data = frame.removeprefix(b"data: ").strip()
        events += reader.done_received() if data == b"[DONE]" else reader.read(orjson.loads(data))
    return events


def calls_of(received: list[bytes]) -> list[tuple[str, str]]:
    parts = assembled(events_of(received)).parts
    return [(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)]


@pytest.mark.parametrize("name", RECORDED)
def test_stream_adds_up_to_the_whole_answer(name: str) -> None:
    body, received = RECORDED[name]
    assert assembled(events_of(received)) == read_answer(body)


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [call_delta(0, None, "f", OSLO), call_delta(0, None, "f", ROME)], id="no ids, index 0, whole in one chunk"
        ),
        pytest.param([call_delta(None, None, "f", OSLO), call_delta(None, None, "f", ROME)], id="neither id nor index"),
        pytest.param(
            [
                call_delta(None, None, "f", OSLO[:3]),
                call_delta(None, None, None, OSLO[3:]),
                call_delta(None, None, "f", ROME),
            ],
            id="neither id nor index, in pieces",
        ),
        pytest.param(
            [call_delta(0, None, "f", OSLO[:3]), call_delta(0, None, "f", OSLO[3:]), call_delta(1, None, "f", ROME)],
            id="no ids, the name in every delta",
        ),
        pytest.param(
            [
                call_delta(0, "a1", "f", OSLO[:3]),
                call_delta(0, "a2", None, OSLO[3:]),
                call_delta(1, "b1", "f", ROME[:3]),
                call_delta(1, "b2", None, ROME[3:]),
            ],
            id="another id in every delta",
        ),
        pytest.param(
            [
                call_delta(0, "a", None, ""),
                call_delta(0, "a", None, OSLO[:3]),
                call_delta(0, "a", "f", OSLO[3:]),
                call_delta(1, "b", "f", ROME),
            ],
            id="the name after the id",
        ),
        pytest.param(
            [call_delta(0, "f", "f", OSLO), call_delta(1, "f", "f", ROME)], id="the same id for calls of two indices"
        ),
        pytest.param(
            [
                call_delta(0, "a", "f", OSLO[:3]),
                call_delta(0, "b", "f", ROME[:3]),
                call_delta(0, "a", None, OSLO[3:]),
                call_delta(0, "b", None, ROME[3:]),
            ],
            id="interleaved, all with index 0",
        ),
        pytest.param(
            [
                call_delta(0, "a", "f", OSLO[:3]),
                call_delta(0, None, None, OSLO[3:]),
                call_delta(0, "b", "f", ROME[:3]),
                call_delta(0, None, None, ROME[3:]),
            ],
            id="in pieces, all with index 0",
        ),
        pytest.param(
            [call_delta(0, None, "f", OSLO[:3]), call_delta(0, None, None, OSLO[3:]), call_delta(0, None, "f", ROME)],
            id="no ids, index 0, in pieces",
        ),
        pytest.param(
            [
                call_delta(0, "a", "f", OSLO[:3]),
                call_delta(1, None, None, OSLO[3:]),
                call_delta(2, "b", "f", ROME[:3]),
                call_delta(3, None, None, ROME[3:6]),
                call_delta(4, None, None, ROME[6:]),
            ],
            id="an index that counts up with each delta",
        ),
        pytest.param(
            [
                call_delta(0, "a", "f", OSLO[:3]),
                call_delta(0, None, None, OSLO[3:]),
                call_delta(1, "b", "f", ROME[:3]),
                call_delta(0, None, None, ROME[3:]),
            ],
            id="deltas that keep the index of the first call",
        ),
        pytest.param(
            [
                call_delta(0, "a", None, ""),
                call_delta(0, None, "f", OSLO),
                call_delta(0, "b", None, ""),
                call_delta(0, None, "f", ROME),
            ],
            id="all with index 0, the name after the id",
        ),
    ],
)
def test_parallel_calls_come_out_apart(deltas: list[dict[str, Any]]) -> None:
    assert calls_of(stream(deltas, "tool_calls")) == [("f", OSLO), ("f", ROME)]


def test_calls_of_one_stream_have_ids_of_their_own() -> None:
    deltas = [call_delta(0, "f", "f", OSLO), call_delta(1, "f", "f", ROME), call_delta(2, None, "f", ROME)]
    ids = {event.id for event in events_of(stream(deltas)) if isinstance(event, ToolCallStarted)}
    assert len(ids) == 3


@pytest.mark.parametrize("index", [[], {}, "0", None, 1.5, True])
def test_index_of_a_wrong_type_counts_as_none(index: Any) -> None:
    deltas = [call_delta(0, "a", "f", OSLO[:3]), call_delta(0, None, None, OSLO[3:])]
    deltas[1]["tool_calls"][0]["index"] = index
    assert calls_of(stream(deltas)) == [("f", OSLO)]


def test_legacy_function_call_is_read() -> None:
    deltas = [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": OSLO[:3]}},
        {"function_call": {"arguments": OSLO[3:]}},
    ]
    assert calls_of(stream(deltas, "function_call")) == [("f", OSLO)]


def test_custom_call_is_read() -> None:
    deltas = [
        {"tool_calls": [{"index": 0, "id": "c", "type": "custom", "custom": {"name": "g", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "x y"}}]},
    ]
    assert assembled(events_of(stream(deltas))).parts == [ToolCall("c", "g", "x y", custom=True)]


def test_call_that_never_gets_a_name_is_not_lost() -> None:
    assert calls_of(stream([call_delta(0, "a", None, OSLO)])) == [("", OSLO)]


def test_call_is_told_as_it_arrives() -> None:
    reader = ChatStreamReader()
    reader.read(chunk({"role": "assistant"}))
    first = reader.read(chunk(call_delta(0, "a", "f", "")))
    assert [type(event) for event in first] == [ToolCallStarted]
    assert reader.read(chunk(call_delta(0, None, None, "{"))) == [ToolCallDelta(0, "{")]


def test_done_completes_a_stream_without_finish_reason() -> None:
    received = frames([chunk({"content": "a"})])
    assert assembled(events_of(received)).parts == read_answer(whole({"content": "a"})).parts
    assert not any(isinstance(event, Stopped) for event in events_of(received[:-1]))
    assert events_of(received[-1:]) == [Stopped(Stop(END))], "an answer without a word"


def test_first_chunk_of_other_servers_says_nothing() -> None:
    azure = {"id": "", "created": 0, "choices": [], "prompt_filter_results": []}
    assert events_of(frames([azure])[:-1]) == []


def test_further_choices_are_ignored() -> None:
    second = chunk({"content": "b"})
    second["choices"][0]["index"] = 1
    events = events_of(frames([chunk({"content": "a"}), second, chunk({}, "stop")]))
    assert assembled(events).parts == read_answer(whole({"content": "a"})).parts


NAMES = ["choices", "delta", "index", "content", "refusal", "tool_calls", "function", "custom", "function_call", "id"]
NAMES += ["finish_reason", "usage", "reasoning_content", "reasoning_details", "extra_content", "logprobs", "arguments"]
NAMES += ["name", "text", "type", "error"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "x", "{}", "stop"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=15,
)


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=4), max_size=4), st.lists(JUNK, max_size=3))
def test_hostile_chunks_raise_nothing(junk: list[dict[str, Any]], deltas: list[Any]) -> None:
    reader = ChatStreamReader()
    for one in [*junk, *(chunk(delta) for delta in deltas), *({"choices": [delta]} for delta in deltas)]:
        reader.read(one)
    reader.done_received()
    read_answer({"choices": deltas} | (junk[0] if junk else {}))
