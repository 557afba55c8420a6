"""Reasoning and other state of a vendor comes back to it with the next turn, through a caller of another dialect."""

from typing import Any

import pytest

from policy.billing import Tokens
from proxy.dialects.chat_completions.dialect import DIALECT as CHAT
from proxy.dialects.messages.dialect import DIALECT as MESSAGES
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.request import Request, Tool
from proxy.dialects.responses.dialect import DIALECT as RESPONSES
from tests.fakes.seals import opened, seals_of

USER: dict[str, Any] = {"role": "user", "content": "hi"}
SIGNED = {"google": {"thought_signature": "c2ln"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
HIDDEN = {"type": "redacted_thinking", "data": "abc"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}


def answered(target_dialect: Dialect, caller_dialect: Dialect, answer: dict[str, Any]) -> dict[str, Any]:
    """The caller's body for a target's answer."""
    context = AnswerContext("acme/chat", Request([], tools=[Tool("f")]), 5, seals_of())
    return caller_dialect.write_answer(target_dialect.read_answer(answer), context, Tokens(input=1, output=1))


def continued(dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    """The caller's next request: the answer as it came, and the results of its calls."""
    if dialect is CHAT:
        message = {name: value for name, value in body["choices"][0]["message"].items() if value is not None}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in message["tool_calls"]]
        return {"model": "s", "messages": [USER, message, *results], "reasoning_effort": "high"}
    if dialect is MESSAGES:
        uses = [block for block in body["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "r"} for use in uses]
        turns = [USER, {"role": "assistant", "content": body["content"]}, {"role": "user", "content": results}]
        return {"model": "s", "max_tokens": 5, "messages": turns}
    calls = [item for item in body["output"] if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "r"} for call in calls]
    return {"model": "s", "input": [USER, *body["output"], *outputs]}


def chat_answer(**message: Any) -> dict[str, Any]:
    full_message = {"role": "assistant", "content": None, **message}
    return {"id": "c", "created": 5, "choices": [{"index": 0, "message": full_message, "finish_reason": "tool_calls"}]}


@pytest.mark.parametrize("caller_dialect", [MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [CALL | {"extra_content": SIGNED}]},
        {"reasoning_content": "Hm.", "tool_calls": [CALL]},
        {"reasoning_content": "Hm.", "extra_content": SIGNED, "tool_calls": [CALL | {"extra_content": SIGNED}]},
        {
            "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "signature": "s", "index": 0}],
            "tool_calls": [CALL],
        },
    ],
    ids=["thought signature", "reasoning_content", "both", "reasoning_details"],
)
def test_chat_target_gets_its_own_back(caller_dialect: Dialect, message: dict[str, Any]) -> None:
    request = opened(
        caller_dialect.read_request(continued(caller_dialect, answered(CHAT, caller_dialect, chat_answer(**message))))
    )
    _, returned, _ = CHAT.write_request(request, "m", "VENDOR_C")["messages"]
    assert returned == {"role": "assistant", "content": None, **message}


@pytest.mark.parametrize("blocks", [[THOUGHT], [HIDDEN], [THOUGHT, HIDDEN, THOUGHT | {"thinking": "So."}]])
def test_messages_target_gets_its_own_back_from_a_chat_caller(blocks: list[Any]) -> None:
    content = [*blocks, USE]
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use"}
    request = opened(CHAT.read_request(continued(CHAT, answered(MESSAGES, CHAT, answer))))
    body = MESSAGES.write_request(request, "m", "VENDOR_A")
    assert body["messages"][1] == {"role": "assistant", "content": content}
    assert body["thinking"]["type"] == "adaptive"
    assert request.reasoning_off == ""


def test_responses_target_gets_its_own_back_from_a_chat_caller() -> None:
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "e",
    }
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": [item, call]}
    request = opened(CHAT.read_request(continued(CHAT, answered(RESPONSES, CHAT, answer))))
    body = RESPONSES.write_request(request, "m", "VENDOR_B")
    returned = [entry for entry in body["input"] if entry.get("type") == "reasoning"]
    assert returned == [item]
