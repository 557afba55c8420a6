"""No translation rounds a number in JSON that callers and models wrote: arguments, schemas, inputs, history."""

from typing import Any

import orjson
import pytest

from policy.endpoints import CHAT_COMPLETIONS, RESPONSES, Target
from policy.endpoints import MESSAGES as MESSAGES_DIALECT
from proxy.errors import UntranslatableError
from proxy.json_text.large_json import LONG_BYTES, parse_with_placeholders
from proxy.json_text.request_json import request_json_at_once
from tests.proxy.dialects.samples import (
    CHAT,
    JSON,
    MESSAGES,
    SLUG,
    SSE,
    VENDOR_A,
    VENDOR_B,
    VENDOR_C,
    FakeReceived,
    answer_reader,
    build_request,
    events,
    frames,
    payloads,
    read,
    received,
)

Json = dict[str, Any]
NUMBERS = '{"big":123456789012345678901234567890,"long":0.1000000000000000055511151231257827,"zero":-0.0,"one":1.0}'
BEYOND_DOUBLES = '{"vast":1e400,"low":[-1e999],"half":0.50}'
PATHS = {CHAT_COMPLETIONS: CHAT, MESSAGES_DIALECT: MESSAGES, RESPONSES: "/v1/responses"}
TARGETS = {CHAT_COMPLETIONS: VENDOR_C, MESSAGES_DIALECT: VENDOR_A, RESPONSES: VENDOR_B}
PAIRS = [(caller, target) for caller in PATHS for target in PATHS if caller != target]


def request_text(caller: str, padding: str = "", numbers: str = NUMBERS) -> bytes:
    """A call with such numbers in a schema and in a past call. It asks for reasoning: VENDOR_B then gets Responses."""
    exact = orjson.Fragment(numbers)
    schema = {"type": "object", "properties": {"n": {"const": exact}}}
    user = {"role": "user", "content": f"hi{padding}"}
    if caller == CHAT_COMPLETIONS:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": numbers}}
        result: Json = {"role": "tool", "tool_call_id": "c1", "content": "r"}
        members: Json = {"messages": [user, {"role": "assistant", "tool_calls": [call]}, result]}
        members["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        members["reasoning_effort"] = "low"
    elif caller == MESSAGES_DIALECT:
        use = {"type": "tool_use", "id": "c1", "name": "f", "input": exact}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}]}
        members = {"messages": [user, {"role": "assistant", "content": [use]}, result], "max_tokens": 9000}
        members |= {"tools": [{"name": "f", "input_schema": schema}], "thinking": {"type": "adaptive"}}
    else:
        item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": numbers}
        members = {"input": [user, item, {"type": "function_call_output", "call_id": "c1", "output": "r"}]}
        members["tools"] = [{"type": "function", "name": "f", "parameters": schema}]
        members["reasoning"] = {"effort": "low"}
    return orjson.dumps({"model": SLUG} | members)


def occurrences(body: bytes, numbers: str = NUMBERS) -> int:
    return body.count(numbers.encode()) + body.count(orjson.dumps(numbers)[1:-1])


def received_beyond_doubles(text: bytes, path: str) -> FakeReceived:
    """A request with numbers that orjson refuses, as it is read."""
    request = received(b'{"model":"acme/fast"}', path)
    assert isinstance(request, FakeReceived)
    request.body = text
    parsed = request_json_at_once(text)
    assert parsed is not None
    request.json, request.outline = parsed
    return request


@pytest.mark.parametrize(("caller", "target"), PAIRS)
def test_a_request_keeps_the_numbers_of_schemas_and_history(caller: str, target: str) -> None:
    request = received(request_text(caller), PATHS[caller])
    assert occurrences(bytes(build_request(request, TARGETS[target], "k").body)) == 2


@pytest.mark.parametrize(("caller", "target"), PAIRS)
def test_a_long_request_keeps_them_too(caller: str, target: str) -> None:
    text = request_text(caller, "x" * (3 * LONG_BYTES))
    result = parse_with_placeholders(text)
    assert result is not None
    request = received(text, PATHS[caller])
    assert isinstance(request, FakeReceived)
    request.json, request.outline = result
    assert request.outline is not None
    assert occurrences(bytes(build_request(request, TARGETS[target], "k").body)) == 2


@pytest.mark.parametrize(("caller", "target"), PAIRS)
def test_a_request_keeps_numbers_beyond_a_double(caller: str, target: str) -> None:
    request = received_beyond_doubles(request_text(caller, numbers=BEYOND_DOUBLES), PATHS[caller])
    assert occurrences(bytes(build_request(request, TARGETS[target], "k").body), BEYOND_DOUBLES) == 2


# VENDOR_B takes Chat Completions as they are.
@pytest.mark.parametrize(("caller", "target"), [pair for pair in PAIRS if pair != (CHAT_COMPLETIONS, RESPONSES)])
def test_a_figure_beyond_a_double_is_refused_by_name_in_translation(caller: str, target: str) -> None:
    text = request_text(caller)[:-1] + b',"temperature":1e400}'
    with pytest.raises(UntranslatableError, match="temperature"):
        build_request(received_beyond_doubles(text, PATHS[caller]), TARGETS[target], "k")


def test_inputs_of_whole_answers_keep_numbers_beyond_a_double() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": orjson.Fragment(BEYOND_DOUBLES)}
    body = {"id": "msg_1", "type": "message", "content": [use], "stop_reason": "tool_use"}
    assert occurrences(answered(CHAT_COMPLETIONS, VENDOR_A, orjson.dumps(body)), BEYOND_DOUBLES) == 1
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": BEYOND_DOUBLES}}
    body = {"id": "c", "choices": [{"message": {"tool_calls": [call]}}]}
    reader = answer_reader(received({"model": SLUG, "messages": [], "max_tokens": 5}, MESSAGES), VENDOR_C, JSON)
    assert occurrences(read(reader, [orjson.dumps(body)]), BEYOND_DOUBLES) == 1


def test_a_schema_that_is_closed_for_the_target_keeps_its_numbers() -> None:
    schema = {"type": "object", "properties": {"n": {"const": orjson.Fragment(NUMBERS)}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "o", "schema": schema}}
    text = orjson.dumps({"model": SLUG, "messages": [], "response_format": response_format})
    assert occurrences(bytes(build_request(received(text, CHAT), VENDOR_A, "k").body)) == 1


def test_an_input_in_a_whole_answer_keeps_its_numbers() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": orjson.Fragment(NUMBERS)}
    body = {"id": "msg_1", "type": "message", "content": [use], "stop_reason": "tool_use"}
    assert occurrences(answered(CHAT_COMPLETIONS, VENDOR_A, orjson.dumps(body))) == 1


@pytest.mark.parametrize("arguments", [NUMBERS, orjson.Fragment(NUMBERS)], ids=["text", "an object, as some send it"])
def test_arguments_in_a_whole_answer_keep_their_numbers(arguments: object) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = orjson.dumps({"id": "c", "choices": [{"message": {"tool_calls": [call]}}]})
    assert occurrences(answered(MESSAGES_DIALECT, VENDOR_C, body)) == 1


def test_a_streamed_input_keeps_its_numbers() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": orjson.Fragment(NUMBERS)}
    stream = events(
        {"type": "message_start", "message": {"id": "msg_1"}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    )
    assert occurrences(answered(CHAT_COMPLETIONS, VENDOR_A, stream, stream=True)) == 1


def test_streamed_arguments_that_are_an_object_keep_their_numbers() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": orjson.Fragment(NUMBERS)}}
    stream = frames({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    assert occurrences(answered(MESSAGES_DIALECT, VENDOR_C, stream, stream=True)) == 1


def answered(caller: str, target: Target, answer: bytes, *, stream: bool = False) -> bytes:
    """Return the caller's bytes for an answer of the target."""
    body: dict[str, Any] = {"model": SLUG, "messages": [], "stream": stream, "max_tokens": 5}
    reader = answer_reader(received(body, PATHS[caller]), target, SSE if stream else JSON)
    output = read(reader, [answer])
    assert payloads(output) if stream else orjson.loads(output)
    return output
