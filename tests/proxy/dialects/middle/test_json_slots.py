"""Long strings are put back wherever a translation encodes a member again, and nowhere else."""

from typing import Any

import orjson
import pytest

from proxy.dialects.middle.json_slots import json_slots, restore_slots
from proxy.json_text.large_json import LONG_BYTES, Outline, parse_with_placeholders

LONG = "x" * (LONG_BYTES + 1)


def parsed(body: dict[str, Any]) -> tuple[dict[str, Any], Outline]:
    result = parse_with_placeholders(orjson.dumps(body))
    assert result is not None
    json, outline = result
    assert outline is not None
    return json, outline


def bodies(slot: Any) -> list[dict[str, Any]]:
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": slot}}
    return [
        {"messages": [{"role": "assistant", "tool_calls": [call]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": slot}}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"a": slot}}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": slot}]}]},
        {"messages": [{"role": "assistant", "reasoning_details": [{"type": "reasoning.encrypted", "data": slot}]}]},
        {"input": [{"type": "function_call", "arguments": slot}]},
        {"input": [{"type": "reasoning", "encrypted_content": slot}]},
    ]


@pytest.mark.parametrize("number", range(len(bodies(""))))
def test_slots_are_restored_in_place(number: int) -> None:
    body = bodies(LONG)[number] | {"system": LONG}
    json, outline = parsed(body)
    assert restore_slots(json_slots(json), outline)
    assert {name: value for name, value in json.items() if name != "system"} == bodies(LONG)[number]
    assert json["system"] != LONG


def test_slots_of_answers_are_found() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert json_slots({"choices": [{"message": {"tool_calls": [call]}}]}) == [(call["function"], "arguments")]
    item = {"type": "function_call", "arguments": "{}"}
    assert json_slots({"output": [item]}) == [(item, "arguments")]


@pytest.mark.parametrize(
    "body", [{}, {"messages": 1}, {"messages": [1, {"content": 1}]}, {"input": "x"}, {"choices": [1]}]
)
def test_bodies_of_any_form_are_searched(body: dict[str, Any]) -> None:
    assert json_slots(body) == []
