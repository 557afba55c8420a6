"""Calls, messages and results in any order reach each target in an order that its vendor accepts."""

from itertools import permutations
from typing import Any

import orjson
import pytest

from tests.proxy.dialects.messages.sdk import check_request
from tests.proxy.dialects.samples import CHAT, SLUG, VENDOR_A, VENDOR_C, build_request, received

Json = dict[str, Any]
ITEMS: dict[str, Json] = {
    "a": {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    "b": {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
    "A": {"type": "function_call_output", "call_id": "a", "output": "result of a"},
    "B": {"type": "function_call_output", "call_id": "b", "output": "result of b"},
    "m": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "said"}]},
    "u": {"type": "message", "role": "user", "content": "asked"},
}
ORDERS = sorted({"".join(order) for letters in ("aAm", "aAu", "abAB", "abABu") for order in permutations(letters)})
# A message of the assistant's that comes last would be continued: that is refused, in any order.
ORDERS = [order for order in ORDERS if order[-1] != "m"]


def body_for(order: str) -> Json:
    return {"model": SLUG, "input": [{"role": "user", "content": "hi"}, *(ITEMS[name] for name in order)]}


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_reaches_a_chat_server_with_results_behind_their_calls(order: str) -> None:
    sent_request = build_request(received(body_for(order), "/v1/responses"), VENDOR_C, "k")
    open_ids: list[str] = []
    for message in orjson.loads(bytes(sent_request.body))["messages"]:
        if message["role"] == "tool":
            open_ids.remove(message["tool_call_id"])
        else:
            assert not open_ids
            open_ids = [call["id"] for call in message.get("tool_calls", [])]
    assert not open_ids


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_reaches_a_messages_server_with_results_behind_their_calls(order: str) -> None:
    call = build_request(received(body_for(order), "/v1/responses"), VENDOR_A, "k")
    body = orjson.loads(bytes(call.body))
    check_request(body)
    open_ids: list[str] = []
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(results) == sorted(open_ids)
        assert [block["type"] for block in blocks[: len(results)]] == ["tool_result"] * len(results)
        open_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert not open_ids


def test_chat_messages_between_a_call_and_its_result_follow_the_result() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "meanwhile"},
        {"role": "tool", "tool_call_id": "a", "content": "r"},
    ]
    sent_request = build_request(received({"model": SLUG, "messages": turns}, CHAT), VENDOR_A, "k")
    last = orjson.loads(bytes(sent_request.body))["messages"][-1]
    assert [block["type"] for block in last["content"]] == ["tool_result", "text"]
