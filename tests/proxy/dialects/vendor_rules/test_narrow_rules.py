"""Demands of one vendor are met where there is one right way; callers are told what is left out."""

from typing import Any

import orjson
import pytest

from policy.endpoints import Target
from proxy.errors import UntranslatableError
from tests.proxy.dialects.samples import (
    CHAT,
    MESSAGES,
    SLUG,
    VENDOR_A,
    VENDOR_B,
    VENDOR_C,
    build_request,
    first_attempt,
    received,
)

Json = dict[str, Any]
OPTIONAL: Json = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]}
REQUIRED: Json = OPTIONAL | {"required": ["a", "b"]}
ASK: Json = {"model": SLUG, "max_tokens": 9000, "messages": [{"role": "user", "content": "hi"}]}


def asked(target: Target, path: str = MESSAGES, **more: Any) -> Json:
    body: Json = orjson.loads(bytes(build_request(received(ASK | more, path), target, "k").body))
    return body


def strict_tool(schema: Json) -> Json:
    return {"name": "f", "input_schema": schema, "strict": True}


@pytest.mark.parametrize("thinking", [{}, {"thinking": {"type": "adaptive"}}], ids=["by Chat", "by Responses"])
def test_a_strict_tool_with_optional_members_is_told_to_be_strict_no_more(thinking: Json) -> None:
    more = {"tools": [strict_tool(OPTIONAL)], **thinking}
    tool = asked(VENDOR_B, **more)["tools"][0]
    function = tool.get("function", tool)
    assert (function["strict"], function["parameters"]) == (False, OPTIONAL)
    assert "x-tollgate-left-out: tools.0.strict\r\n" in first_attempt(received(ASK | more, MESSAGES), VENDOR_B).notice


def test_a_strict_tool_whose_members_are_all_required_stays_strict() -> None:
    function = asked(VENDOR_B, tools=[strict_tool(REQUIRED)])["tools"][0]["function"]
    assert (function["strict"], function["parameters"]) == (True, REQUIRED | {"additionalProperties": False})


@pytest.mark.parametrize(
    "inner",
    [
        {"properties": {"x": OPTIONAL}, "required": ["x"]},
        {"properties": {"x": {"type": "array", "items": OPTIONAL}}, "required": ["x"]},
        {"properties": {"x": {"anyOf": [{"type": "null"}, OPTIONAL]}}, "required": ["x"]},
        {"properties": {}, "$defs": {"x": OPTIONAL}},
        {"properties": {"x": {"type": "object", "additionalProperties": {"type": "string"}}}, "required": ["x"]},
    ],
)
def test_optional_members_are_found_at_any_depth(inner: Json) -> None:
    tool = asked(VENDOR_B, tools=[strict_tool({"type": "object"} | inner)])["tools"][0]
    assert tool["function"]["strict"] is False


def test_an_output_with_optional_members_is_strict_no_more() -> None:
    output: Json = {"output_config": {"format": {"type": "json_schema", "schema": OPTIONAL}}}
    assert asked(VENDOR_B, **output)["response_format"]["json_schema"]["strict"] is False
    notice = first_attempt(received(ASK | output, MESSAGES), VENDOR_B).notice
    assert notice == "x-tollgate-left-out: output_config.format (strict)\r\n"


def test_other_vendors_get_strict_schemas_as_they_are() -> None:
    function = asked(VENDOR_C, tools=[strict_tool(OPTIONAL)])["tools"][0]["function"]
    assert (function["strict"], function["parameters"]) == (True, OPTIONAL)


def test_more_stop_sequences_than_the_vendor_takes_are_refused_by_the_callers_name() -> None:
    stops: Json = {"stop_sequences": list("abcde")}
    with pytest.raises(UntranslatableError) as refusal:
        asked(VENDOR_B, **stops)
    assert refusal.value.field == "stop_sequences"
    assert asked(VENDOR_C, **stops)["stop"] == list("abcde")


def test_a_cap_below_that_of_responses_goes_to_chat_completions() -> None:
    request = received(ASK | {"max_tokens": 15, "thinking": {"type": "adaptive"}}, MESSAGES)
    assert build_request(request, VENDOR_B, "k").path == CHAT


def test_a_long_end_users_id_is_hashed_for_messages() -> None:
    long = asked(VENDOR_A, CHAT, user="u" * 257)["metadata"]["user_id"]
    assert len(long) == 64
    assert asked(VENDOR_A, CHAT, user="u" * 256)["metadata"]["user_id"] == "u" * 256
