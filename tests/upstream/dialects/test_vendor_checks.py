"""The scripted vendors refuse what the real ones refuse, and name the member at fault."""

from copy import deepcopy as copy_of
from typing import Any

import pytest

from tests.upstream.dialects import chat, chat_checks, messages, messages_checks, responses, responses_checks
from tests.upstream.dialects.refusing import RefusedError
from tests.upstream.dialects.scenarios import THOUGHT, Json, RedactedThinking, Thinking, signed, what_was_understood

SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
OPEN: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="

CHAT: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": PNG}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city":"Rome"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "21"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}},
    "max_completion_tokens": 99,
    "temperature": 0.5,
}
MESSAGES: Json = {
    "model": "m",
    "max_tokens": 99,
    "temperature": 0.5,
    "system": "Be kind.",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
            ],
        },
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "21"}]},
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}],
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
RESPONSES: Json = {
    "model": "m",
    "instructions": "Be kind.",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look"},
                {"type": "input_image", "image_url": PNG, "detail": "auto"},
                {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "21"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
    "text": {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}},
    "max_output_tokens": 99,
    "temperature": 0.5,
}


def test_the_same_request_is_understood_alike_in_every_dialect() -> None:
    understood = []
    for dialect, checks, body in (
        (chat, chat_checks, CHAT),
        (messages, messages_checks, MESSAGES),
        (responses, responses_checks, RESPONSES),
    ):
        checks.check(body)
        understood.append(what_was_understood(dialect.read(body)))
    assert understood[0] == understood[1] == understood[2]


def changed(body: Json, path: str, value: Any) -> Json:
    """`body` with the member at a dotted path replaced; None removes it."""
    copy: Any = copy_of(body)
    holder = copy
    *above, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    for name in above:
        holder = holder[name]
    if value is not None:
        holder[last] = value
    elif last in holder or isinstance(last, int):
        del holder[last]
    return dict(copy)


def refusal(check: Any, body: Json) -> str:
    with pytest.raises(RefusedError) as error:
        check(body)
    return str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("messages.3", None, "without an answer"),
        ("messages.2", None, "messages.2.tool_call_id"),
        ("messages.3.tool_call_id", "c2", "messages.3.tool_call_id"),
        ("messages.2.tool_calls", [], "messages.2.tool_calls"),
        ("messages.2.tool_calls.0.id", "c" * 41, "messages.2.tool_calls.0.id"),
        ("messages.2.tool_calls.0.function.arguments", "{", "arguments"),
        ("messages.1.content.1.image_url.url", "file:///etc/passwd", "messages.1.content.1"),
        ("messages.1.content.1.image_url.url", "data:image/png;base64,*", "not valid base64"),
        ("messages.1.name", "two words", "messages.1.name"),
        ("tools.0.function.parameters", OPEN, "additionalProperties"),
        ("response_format.json_schema.schema", OPEN, "additionalProperties"),
        ("response_format.json_schema.name", "two words", "json_schema.name"),
        ("tools", None, ""),
        ("top_k", 5, "top_k"),
        ("thinking", {"type": "enabled", "budget_tokens": 2000}, "thinking"),
        ("max_tokens", 5, "max_tokens"),
        ("temperature", 2.5, "temperature"),
        ("stop", ["a", "b", "c", "d", "e"], "stop"),
        ("tool_choice", {"type": "function", "function": {"name": "g"}}, "tool_choice"),
        ("stream_options", {"include_usage": True}, "stream_options"),
    ],
)
def test_chat_vendor_refuses(path: str, value: Any, field: str) -> None:
    body = changed(CHAT, path, value)
    if path == "tools":
        body |= {"tool_choice": "auto"}
    assert field in refusal(chat_checks.check, body)


THINKING: Json = {"type": "enabled", "budget_tokens": 1024}


def thinking(*blocks: Json, **members: Any) -> Json:
    """A request with thinking on, whose assistant turn has these blocks before its tool use."""
    body = changed(changed(MESSAGES, "temperature", None), "max_tokens", 4096) | {"thinking": THINKING}
    return changed(body, "messages.1.content", [*blocks, *MESSAGES["messages"][1]["content"]]) | members


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("max_tokens", None, "max_tokens"),
        ("temperature", 1.5, "temperature"),
        ("messages.0", None, "first message"),
        ("messages.2", None, "t1"),
        ("messages.1", None, "t1"),
        ("messages.1.content.0.id", "call.1", "messages.1.content.0.id"),
        ("messages.2.content.0.tool_use_id", "t2", "messages.2"),
        ("messages.0.content.0.text", " ", "messages.0.content.0"),
        ("messages.0.content.1.source.media_type", "image/tiff", "media_type"),
        ("messages.0.content.1.source.data", "*", "base64"),
        ("messages.0.name", "bob", "messages.0.name"),
        ("tools.0.name", "a.b", "tools.0.name"),
        ("tools.0.input_schema", {"properties": {}}, "tools.0.input_schema.type"),
        ("tools.0.input_schema", OPEN, "additionalProperties"),
        ("output_config.format.schema", OPEN, "additionalProperties"),
        ("tool_choice", {"type": "tool", "name": "g"}, "tool_choice.name"),
        ("stop_sequences", [" "], "stop_sequences.0"),
        ("response_format", {"type": "text"}, "response_format"),
        ("n", 1, "n: "),
        ("thinking", {"type": "enabled", "budget_tokens": 99}, "thinking.budget_tokens"),
        ("thinking", THINKING, "thinking.budget_tokens"),
    ],
)
def test_messages_vendor_refuses(path: str, value: Any, field: str) -> None:
    assert field in refusal(messages_checks.check, changed(MESSAGES, path, value))


def test_messages_vendor_wants_its_own_thoughts_back_before_tool_use() -> None:
    thought = {"type": "thinking", "thinking": THOUGHT, "signature": signed(THOUGHT)}
    messages_checks.check(thinking(thought))
    messages_checks.check(thinking({"type": "redacted_thinking", "data": RedactedThinking().data}))
    assert "but found `tool_use`" in refusal(messages_checks.check, thinking())
    assert "signature" in refusal(messages_checks.check, thinking(thought | {"thinking": "Another thought."}))
    assert "data" in refusal(messages_checks.check, thinking({"type": "redacted_thinking", "data": "x"}))


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"max_tokens": 1024}, "budget_tokens"),
    ],
)
def test_messages_vendor_refuses_beside_thinking(members: Json, field: str) -> None:
    thought = {"type": "thinking", "thinking": THOUGHT, "signature": signed(THOUGHT)}
    assert field in refusal(messages_checks.check, thinking(thought, **members))


def test_messages_vendor_wants_results_first_in_their_turn() -> None:
    result = MESSAGES["messages"][2]["content"][0]
    text = {"type": "text", "text": "Here."}
    messages_checks.check(changed(MESSAGES, "messages.2.content", [result, text]))
    body = changed(MESSAGES, "messages.2.content", [text, result])
    assert "must come first" in refusal(messages_checks.check, body)


def test_messages_vendor_takes_four_cache_breakpoints() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text: Json = {"type": "text", "text": "a"} | mark
    body = MESSAGES | {"messages": [{"role": "user", "content": [text] * 4}]}
    messages_checks.check(body)
    assert "cache_control" in refusal(messages_checks.check, body | mark)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("input.2", None, "No tool output found"),
        ("input.1", None, "No tool call found"),
        ("input.1.id", "call_1", "begins with 'fc'"),
        ("input.1.call_id", "c" * 65, "call_id"),
        ("input.1.arguments", "{", "arguments"),
        ("input.0.content.0.type", "text", "input.0.content"),
        ("tools.0.parameters", OPEN, "additionalProperties"),
        ("text.format.schema", OPEN, "additionalProperties"),
        ("max_output_tokens", 15, "max_output_tokens"),
        ("max_tokens", 99, "max_tokens"),
        ("stop", ["END"], "stop"),
        ("messages", [], "messages"),
        ("previous_response_id", "resp_1", "previous_response_id"),
        ("tool_choice", {"type": "function", "name": "g"}, "tool_choice"),
    ],
)
def test_responses_vendor_refuses(path: str, value: Any, field: str) -> None:
    problem = refusal(responses_checks.check, changed(RESPONSES, path, value))
    assert field in problem


def test_responses_vendor_takes_back_only_reasoning_that_it_encrypted() -> None:
    item: Json = {"type": "reasoning", "id": "rs_1", "summary": []}
    encrypted = item | {"encrypted_content": responses.encrypted(Thinking(THOUGHT))}
    body = RESPONSES | {"input": [RESPONSES["input"][0], encrypted, *RESPONSES["input"][1:]]}
    responses_checks.check(body)
    assert ("assistant", Thinking(THOUGHT)) in responses.read(body).parts
    assert "not found" in refusal(responses_checks.check, changed(body, "input.1", item))
    forged = item | {"encrypted_content": "bm90IGpzb24="}
    assert "verified" in refusal(responses_checks.check, changed(body, "input.1", forged))


def test_responses_takes_what_codex_sends_beside_the_types_of_the_sdk() -> None:
    developer_message = {
        "type": "message",
        "id": "msg_1",
        "role": "developer",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    thought: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None}
    thought |= {"encrypted_content": responses.encrypted(Thinking(THOUGHT))}
    body = copy_of(RESPONSES) | {"client_metadata": {"thread_id": "t"}}
    body["input"] = [developer_message, thought, *body["input"]]
    responses_checks.check(body)
    body["input"].append({"type": "message", "role": "user", "content": [{"type": "output_text", "text": "Hi"}]})
    with pytest.raises(RefusedError):
        responses_checks.check(body)
