"""Malformed requests are refused, and malformed answers read: nothing else is raised, whatever a member holds."""

import contextlib
import copy
import string
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.chat_completions.dialect import DIALECT as CHAT
from proxy.dialects.messages.dialect import DIALECT as MESSAGES
from proxy.dialects.middle.answer import Stopped
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.request import Request, Tool
from proxy.dialects.responses.dialect import DIALECT
from proxy.dialects.sse import data_of
from proxy.errors import UntranslatableError
from tests.fakes.seals import seals_of
from tests.proxy.dialects.responses.recorded import RECORDED

Json = dict[str, Any]
EVERYTHING: Json = {
    "model": "acme/fast",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "h"}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
                {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="},
                {"type": "input_file", "file_url": "https://x.test/a.pdf"},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a"}]},
    ],
    "tools": [
        {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}},
        {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": True,
    "max_output_tokens": 99,
    "temperature": 0.5,
    "top_p": 0.5,
    "include": ["reasoning.encrypted_content"],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "prompt_cache_key": "k",
    "safety_identifier": "u",
    "service_tier": "auto",
    "metadata": {"a": "b"},
    "stream": True,
}
LEAF = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(string.printable, max_size=5)
ANYTHING = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
CONTEXT = AnswerContext(
    "acme/fast", Request([], tools=[Tool("f"), Tool("apply_patch", custom={"type": "text"})]), 1, seals_of()
)


def altered(value: Any, other: Any, data: st.DataObject) -> Any:
    """A copy of `value` with `other` in one place."""
    copied = copy.deepcopy(value)
    holder, at = data.draw(st.sampled_from(places(copied)))
    holder[at] = other
    return copied


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each list or object within `value`, with each of its indexes or names."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, at) for at, _ in inner] + [place for _, child in inner for place in places(child)]


@pytest.mark.parametrize("target", [CHAT, MESSAGES, DIALECT], ids=lambda dialect: dialect.name)
@given(other=ANYTHING, data=st.data())
def test_malformed_request_is_refused_or_read(target: Dialect, other: Any, data: st.DataObject) -> None:
    body = altered(EVERYTHING, other, data)
    with contextlib.suppress(UntranslatableError):
        request = DIALECT.read_request(body)
        request.tool_choice = request.output_format = None
        orjson.dumps(target.write_request(request, "m", "VENDOR_B"))


@given(other=ANYTHING, data=st.data())
def test_answer_to_a_malformed_request_is_written(other: Any, data: st.DataObject) -> None:
    body = altered(EVERYTHING, other, data)
    with contextlib.suppress(UntranslatableError):
        context = AnswerContext("acme/fast", DIALECT.read_request(body), 1, seals_of())
        for whole, _ in RECORDED.values():
            orjson.dumps(DIALECT.write_answer(DIALECT.read_answer(whole), context, None))


@pytest.mark.parametrize("caller", [CHAT, MESSAGES, DIALECT], ids=lambda dialect: dialect.name)
@given(name=st.sampled_from(list(RECORDED)), other=ANYTHING, data=st.data())
def test_malformed_answer_is_read(caller: Dialect, name: str, other: Any, data: st.DataObject) -> None:
    answer = DIALECT.read_answer(altered(RECORDED[name][0], other, data))
    orjson.dumps(caller.write_answer(answer, CONTEXT, None))


@pytest.mark.parametrize("caller", [CHAT, MESSAGES, DIALECT], ids=lambda dialect: dialect.name)
@given(name=st.sampled_from(list(RECORDED)), other=ANYTHING, data=st.data())
def test_malformed_stream_is_read(caller: Dialect, name: str, other: Any, data: st.DataObject) -> None:
    events = altered([orjson.loads(data_of(frame)) for frame in RECORDED[name][1]], other, data)
    reader = DIALECT.new_stream_reader()
    writer = caller.new_stream_writer(CONTEXT)
    event_lists = [reader.read(event) for event in events if isinstance(event, dict)]
    for some in event_lists:
        writer.write(some)
    if any(isinstance(one, Stopped) for some in event_lists for one in some):
        writer.closing(None)


def test_unaltered_request_is_read() -> None:
    assert DIALECT.read_request(EVERYTHING).left_out == ["tools.3 (web_search)"]
