"""Tools whose names a vendor would refuse get others, and callers see their own in answers and in every turn."""

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.endpoints import Target
from proxy.dialects.middle.request import NAMED, USER, ConversationTurn, Request, Text, Tool, ToolCall, ToolChoice
from proxy.dialects.vendor_rules.tool_names import accepted_names, with_names
from tests.proxy.dialects.samples import (
    CHAT,
    JSON,
    MESSAGES,
    SLUG,
    SSE,
    VENDOR_A,
    VENDOR_C,
    answer_reader,
    build_request,
    events,
    frames,
    payloads,
    read,
    received,
)

Json = dict[str, Any]
LONG = "mcp__a_server_with_a_long_name__a_tool_with_a_name_that_is_longer_than_64_characters"
DOTTED = "files.read"
ODD = [LONG, DOTTED, "mcp:read", "名前", f"{LONG}_2", "a b"]
CALLERS = {"chat": (CHAT, VENDOR_A), "messages": (MESSAGES, VENDOR_C), "responses": ("/v1/responses", VENDOR_C)}


def request_of(names: list[str], calls: tuple[str, ...] = (), choice_name: str = "") -> Request:
    turns = [
        ConversationTurn(USER, [Text("hi")]),
        ConversationTurn("assistant", [ToolCall("c", name, "{}") for name in calls]),
    ]
    choice = ToolChoice(NAMED, choice_name) if choice_name else None
    return Request(turns, tools=[Tool(name) for name in names], tool_choice=choice)


@given(st.lists(st.text(min_size=1) | st.sampled_from(ODD), unique=True))
def test_accepted_names_are_accepted_and_distinct(names: list[str]) -> None:
    request = request_of(names)
    tools = [tool.name for tool in with_names(request, accepted_names(request)).tools]
    assert len(set(tools)) == len(names)
    for name, new_name in zip(names, tools, strict=True):
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", new_name)
        assert new_name == name or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)


def test_a_name_that_another_tool_has_already_is_not_given_again() -> None:
    [short] = accepted_names(request_of([LONG])).values()
    names = accepted_names(request_of([LONG, short]))
    assert set(names) == {LONG}
    assert names[LONG] != short


def test_past_calls_and_the_choice_have_the_same_names_as_the_tools() -> None:
    request = request_of([LONG], calls=(LONG, DOTTED), choice_name=LONG)
    names = accepted_names(request)
    result = with_names(request, names)
    assert result.tool_choice == ToolChoice(NAMED, names[LONG])
    assert [part.name for part in result.turns[1].parts if isinstance(part, ToolCall)] == [names[LONG], names[DOTTED]]
    assert [part.name for part in request.turns[1].parts if isinstance(part, ToolCall)] == [LONG, DOTTED]


def asked_by(caller: str, **more: Any) -> Json:
    """A call that offers a tool of a long name."""
    turns = [{"role": "user", "content": "hi"}]
    if caller == "chat":
        tools: list[Json] = [{"type": "function", "function": {"name": LONG, "parameters": {"type": "object"}}}]
        return {"model": SLUG, "messages": turns, "tools": tools} | more
    if caller == "messages":
        tools = [{"name": LONG, "input_schema": {"type": "object"}}]
        return {"model": SLUG, "messages": turns, "max_tokens": 9, "tools": tools} | more
    tools = [{"type": "function", "name": LONG, "parameters": {"type": "object"}}]
    return {"model": SLUG, "input": turns, "tools": tools} | more


def answer_of(target: Target, name: str, *, stream: bool) -> bytes:
    if target is VENDOR_A:
        block = {"type": "tool_use", "id": "t", "name": name, "input": {}}
        if not stream:
            return orjson.dumps({"id": "msg_1", "content": [block], "stop_reason": "tool_use"})
        return events(
            {"type": "message_start", "message": {"id": "msg_1"}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_stop"},
        )
    call = {"index": 0, "id": "c", "function": {"name": name, "arguments": "{}"}}
    if stream:
        return frames({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    return orjson.dumps({"id": "c", "choices": [{"message": {"tool_calls": [call]}}]})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("caller", CALLERS)
def test_answers_name_the_tool_as_its_caller_does(caller: str, stream: bool) -> None:
    path, target = CALLERS[caller]
    request = received(asked_by(caller, stream=stream), path)
    tool = orjson.loads(bytes(build_request(request, target, "k").body))["tools"][0]
    name = tool.get("name") or tool["function"]["name"]
    assert len(name) <= 64
    output = read(answer_reader(request, target, SSE if stream else JSON), [answer_of(target, name, stream=stream)])
    assert payloads(output) if stream else orjson.loads(output)
    assert LONG.encode() in output
    assert name.encode() not in output


def test_a_call_of_the_last_turn_is_asked_under_the_name_of_its_tool() -> None:
    call = {"type": "function_call", "call_id": "c", "name": LONG, "arguments": "{}"}
    turns = [{"role": "user", "content": "hi"}, call, {"type": "function_call_output", "call_id": "c", "output": "r"}]
    body = orjson.loads(
        bytes(build_request(received(asked_by("responses", input=turns), "/v1/responses"), VENDOR_C, "k").body)
    )
    past = body["messages"][1]["tool_calls"][0]["function"]["name"]
    assert past == body["tools"][0]["function"]["name"]
