"""A long string comes through a translation whole, wherever the other dialect encodes it again."""

from base64 import b64encode
from typing import Any

import orjson
import pytest

from proxy.dialects.chat_completions.dialect import DIALECT as CHAT
from proxy.dialects.messages.dialect import DIALECT as MESSAGES
from proxy.dialects.middle.dialect import AnswerContext, Dialect
from proxy.dialects.middle.json_slots import json_slots, restore_slots
from proxy.dialects.middle.request import Request
from proxy.dialects.responses.dialect import DIALECT as RESPONSES
from proxy.json_text.sliced_json import AT_ONCE_BYTES, parse_in_slices
from proxy.time_slices import at_once
from tests.fakes.seals import seals_of

Json = dict[str, Any]
LONG = "a long text " * (AT_ONCE_BYTES // 8)
FILE = "data:text/plain;base64," + b64encode(LONG.encode()).decode()
PDF = "data:application/pdf;base64," + b64encode(LONG.encode()).decode()


def message(*content: Json) -> Json:
    return {"type": "message", "role": "user", "content": list(content)}


def output(value: Any) -> list[Json]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": "c", "output": value}]


LONG_ITEMS: dict[str, list[Json]] = {
    "text": [message({"type": "input_text", "text": LONG})],
    "image": [message({"type": "input_image", "image_url": "data:image/png;base64," + LONG.replace(" ", "+")})],
    "pdf": [message({"type": "input_file", "filename": "a.pdf", "file_data": PDF})],
    "text-file": [message({"type": "input_file", "filename": "a.txt", "file_data": FILE})],
    "arguments": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": orjson.dumps([LONG]).decode()}],
    "custom-input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": LONG}],
    "output": output(LONG),
    "output-file": output([{"type": "input_file", "filename": "a.txt", "file_data": FILE}]),
    "reasoning": [{"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": LONG}]}],
}


def parsed(body: Json) -> tuple[Json, Any]:
    """The body with placeholders, and its outline; the members that are encoded again are restored."""
    value, outline = at_once(parse_in_slices(orjson.dumps(body)))
    assert outline is not None
    assert restore_slots(json_slots(value), outline)
    return value, outline


@pytest.mark.parametrize("target", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("kind", LONG_ITEMS)
def test_long_request_is_translated_as_a_short_one_is(kind: str, target: Dialect) -> None:
    items = LONG_ITEMS[kind] + ([] if kind == "text" else [message({"type": "input_text", "text": "go on"})])
    if kind == "arguments":
        items[0] |= {"arguments": orjson.dumps({"a": LONG}).decode()}
    tools = [{"type": "custom" if kind == "custom-input" else "function", "name": "f"}]
    body = {"model": "m", "input": items, "tools": tools}
    with_placeholders, outline = parsed(body)
    translated = target.write_request(RESPONSES.read_request(with_placeholders), "m", "VENDOR_B_COMPATIBLE")
    restored = orjson.loads(bytes(outline.restored_body(orjson.dumps(translated))))
    assert restored == target.write_request(RESPONSES.read_request(body), "m", "VENDOR_B_COMPATIBLE")


@pytest.mark.parametrize("caller", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("sealed", [False, True])
def test_long_answer_is_translated_as_a_short_one_is(caller: Dialect, sealed: bool) -> None:
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": LONG}]}
    text = {"type": "output_text", "text": LONG, "annotations": []}
    body: Json = {
        "id": "resp_1",
        "status": "completed",
        "output": [
            reasoning | ({"encrypted_content": LONG} if sealed else {}),
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": orjson.dumps({"a": LONG}).decode()},
        ],
    }
    context = AnswerContext("acme/fast", Request([]), 1, seals_of())
    with_placeholders, outline = parsed(body)
    translated = caller.write_answer(RESPONSES.read_answer(with_placeholders), context, None)
    restored = orjson.loads(bytes(outline.restored_body(orjson.dumps(translated))))
    assert restored == caller.write_answer(RESPONSES.read_answer(body), context, None)
