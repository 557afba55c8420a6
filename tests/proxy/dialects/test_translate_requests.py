"""A request asked in the other dialect: the same meaning, or a refusal that names the field."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.endpoints import Target
from proxy.dialects.chat_completions.dialect import DIALECT as CHAT_DIALECT
from proxy.dialects.messages.dialect import DIALECT as MESSAGES_DIALECT
from proxy.errors import UntranslatableError
from proxy.json_text.sliced_json import AT_ONCE_BYTES, parse_in_slices
from proxy.time_slices import at_once
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

USER = {"role": "user", "content": "hi"}
PNG = "data:image/png;base64,iVBOR"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": WEATHER, "strict": True},
}
TOOL = {"name": "weather", "description": "d", "input_schema": WEATHER}
STRICT_TOOL = TOOL | {"strict": True}


def to_messages(**chat: Any) -> dict[str, Any]:
    request = CHAT_DIALECT.read_request({"model": SLUG, "messages": [USER]} | chat)
    return MESSAGES_DIALECT.write_request(request, "claude-x", "VENDOR_A")


def to_chat(**members: Any) -> dict[str, Any]:
    request = MESSAGES_DIALECT.read_request({"model": SLUG, "max_tokens": 5, "messages": [USER]} | members)
    return CHAT_DIALECT.write_request(request, "gpt-x", "VENDOR_C")


# --- Chat Completions → Messages ----------------------------------------------------------------------------------


def test_chat_request_to_a_messages_target() -> None:
    body = {"model": SLUG, "messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
    call = build_request(received(body), VENDOR_A, "sk-ant")
    assert call.path == "/v1/messages"
    assert call.headers["x-api-key"] == "sk-ant"
    assert orjson.loads(bytes(call.body)) == {
        "model": "claude-x",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }


@pytest.mark.parametrize(
    ("chat", "members"),
    [
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 8}, {"max_tokens": 8}),
        ({"max_tokens": 1, "max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"max_completion_tokens": None}, {"max_tokens": 4096}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"temperature": 0}, {"temperature": 0}),
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ["a", "b"]}, {"stop_sequences": ["a", "b"]}),
        ({"user": "u1"}, {"metadata": {"user_id": "u1"}}),
        ({"metadata": {"team": "a"}, "n": 1, "logprobs": False, "logit_bias": {}, "store": False}, {}),
        ({"frequency_penalty": 0.0, "presence_penalty": 0, "response_format": {"type": "text"}}, {}),
        ({"logit_bias": None, "audio": None, "anything": None}, {}),
        ({"tools": [CHAT_TOOL]}, {"tools": [STRICT_TOOL]}),
        (
            {"tools": [{"type": "function", "function": {"name": "now"}}]},
            {"tools": [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]},
        ),
        ({"tool_choice": "auto"}, {}),
        *(
            ({"tools": [CHAT_TOOL], "tool_choice": choice}, {"tools": [STRICT_TOOL], "tool_choice": vendor_choice})
            for choice, vendor_choice in [
                ("auto", {"type": "auto"}),
                ("none", {"type": "none"}),
                ("required", {"type": "any"}),
                ({"type": "function", "function": {"name": "weather"}}, {"type": "tool", "name": "weather"}),
            ]
        ),
        (
            {"tools": [CHAT_TOOL], "parallel_tool_calls": False},
            {"tools": [STRICT_TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        (
            {"tools": [CHAT_TOOL], "parallel_tool_calls": False, "tool_choice": "required"},
            {"tools": [STRICT_TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        ),
        ({"parallel_tool_calls": True}, {}),
    ],
)
def test_chat_members_become_messages_members(chat: dict[str, Any], members: dict[str, Any]) -> None:
    assert to_messages(**chat) == to_messages() | members


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"seed": 1}, "seed"),
        ({"brand_new": 1}, "brand_new"),
        ({"stop": 1}, "stop"),
        ({"user": 1}, "user"),
        ({"messages": None}, "messages"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "user", "content": None}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages.0.content.0.input_audio"),
        ({"messages": [{"role": "system", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x"}}]}]},
            "messages.0.content.0.image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
            "messages.0.content.0.file.file_id",
        ),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages.0.function_call"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "custom"}]}]},
            "messages.0.tool_calls.0.custom",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ],
)
def test_chat_member_that_messages_lacks_is_refused(chat: dict[str, Any], field: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        to_messages(**chat)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_chat_conversation_with_tools_and_images_is_translated() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    body = to_messages(
        messages=[
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PNG}}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call, call | {"id": "c2", "function": {"name": "now", "arguments": ""}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "cold"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "noon"}]},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "https://h/x.png", "detail": "low"}}],
            },
            {"role": "assistant", "content": ""},
        ]
    )
    assert body["system"] == "be brief"
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "c2", "name": "now", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "cold"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "noon"},
                {"type": "image", "source": {"type": "url", "url": "https://h/x.png"}},
            ],
        },
    ]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/v1/moderations"])
def test_siblings_of_chat_completions_are_refused(path: str) -> None:
    with pytest.raises(UntranslatableError, match=f"nothing like {path}"):
        build_request(received({"model": SLUG, "input": "x"}, path), VENDOR_A, "k")


# --- Messages → Chat Completions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "path", "cap", "model"),
    [
        (VENDOR_B, CHAT, "max_completion_tokens", "gpt-x"),
        (
            VENDOR_C,
            "/v1/projects/my-project/locations/eu-west1/endpoints/openapi/chat/completions",
            "max_tokens",
            "gem-x",
        ),
    ],
)
def test_messages_request_to_a_chat_target(target: Target, path: str, cap: str, model: str) -> None:
    body = {"model": SLUG, "max_tokens": 5, "messages": [USER], "stream": True, "system": "be brief"}
    call = build_request(received(body, MESSAGES), target, "sk-1")
    assert (call.path, call.headers["authorization"]) == (path, "Bearer sk-1")
    assert orjson.loads(bytes(call.body)) == {
        "model": model,
        cap: 5,
        "messages": [{"role": "system", "content": "be brief"}, USER],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("members", "chat"),
    [
        ({"temperature": 1, "top_p": 0.2, "stop_sequences": ["x"]}, {"temperature": 1, "top_p": 0.2, "stop": ["x"]}),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto", "thinking": {"type": "disabled"}}, {"user": "u"}),
        ({"stream": False, "stop_sequences": [], "tools": [], "system": ""}, {}),
        (
            {
                "system": [
                    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "b"},
                ]
            },
            {"messages": [{"role": "system", "content": "a\nb"}, USER]},
        ),
        (
            {
                "tools": [TOOL | {"cache_control": {}}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
            {
                "tools": [
                    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}
                ],
                "tool_choice": "auto",
                "parallel_tool_calls": False,
            },
        ),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "tool", "name": "weather"}},
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        ),
    ],
)
def test_messages_members_become_chat_members(members: dict[str, Any], chat: dict[str, Any]) -> None:
    assert to_chat(**members) == to_chat() | chat


def block(**content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [content]}]}


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"top_k": 5}, "top_k"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        (block(type="image", source={"type": "file", "file_id": "f"}), "messages.0.content.0.source.type"),
        (block(type="tool_result", content="x"), "messages.0.content.0.tool_use_id"),
        (
            block(type="tool_result", tool_use_id="t", content=[{"type": "image"}]),
            "messages.0.content.0.content.0.source",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]}]},
            "messages.0.content.0.input",
        ),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ],
)
def test_messages_member_that_chat_lacks_is_refused(members: dict[str, Any], field: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        to_chat(**members)
    assert caught.value.field == field


def test_messages_conversation_of_blocks_is_translated() -> None:
    chat = to_chat(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "text", "text": "here"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "calling"},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "and this"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "cold"}]},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}},
                    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVB"}},
                ],
            },
        ]
    )
    arguments = {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert chat["messages"] == [
        {"role": "user", "content": "look\nhere"},
        {
            "role": "assistant",
            "content": "calling",
            "tool_calls": [{"id": "t1", "type": "function", "function": arguments}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "cold"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and this"},
                {"type": "image_url", "image_url": {"url": PNG}},
                {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVB"}},
            ],
        },
    ]


# --- both ---------------------------------------------------------------------------------------------------------

NAMES = [
    "model",
    "messages",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "tool_choice",
    "function",
    "system",
    "source",
    "name",
]
WORDS = [
    "user",
    "assistant",
    "tool",
    "system",
    "text",
    "image",
    "image_url",
    "tool_use",
    "tool_result",
    "function",
    "{",
    "",
]
NAMES += ["tool_calls", "input", "image_url", "url", "stop", "stop_sequences", "metadata", "arguments", "input_schema"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(0, 1) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=20,
)


@given(
    st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=6), st.sampled_from([(CHAT, VENDOR_A), (MESSAGES, VENDOR_B)])
)
def test_any_request_is_translated_or_refused(body: dict[str, Any], way: tuple[str, Target]) -> None:
    path, target = way
    request = received(body | {"model": SLUG}, path)
    try:
        call = build_request(request, target, "k")
    except UntranslatableError:
        with pytest.raises(UntranslatableError):
            first_attempt(request, target)
        return
    assert orjson.loads(bytes(call.body))["model"] == target.target_model


# --- Requests that are read in slices -------------------------------------------------------------------------------

LONG = 'say "hi"\n' * (AT_ONCE_BYTES // 8)


def request_parsed_in_slices(body: dict[str, Any], path: str, target: Target) -> dict[str, Any]:
    raw = orjson.dumps(body)
    request = received(raw, path)
    request.json, request.outline = at_once(parse_in_slices(raw))
    assert request.outline is not None
    translation: dict[str, Any] = orjson.loads(bytes(build_request(request, target, None).body))
    return translation


def using(tool_input: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": tool_input}
    return {"model": SLUG, "max_tokens": 5, "messages": [{"role": "assistant", "content": [block]}]}


def test_long_tool_input_stays_json_inside_a_string() -> None:
    body = request_parsed_in_slices(using({"text": LONG}), MESSAGES, VENDOR_B)
    assert orjson.loads(body["messages"][0]["tool_calls"][0]["function"]["arguments"]) == {"text": LONG}


def test_long_tool_arguments_become_the_input() -> None:
    function = {"name": "f", "arguments": orjson.dumps({"text": LONG}).decode()}
    message = {"role": "assistant", "tool_calls": [{"id": "t", "type": "function", "function": function}]}
    body = request_parsed_in_slices({"model": SLUG, "messages": [USER, message]}, CHAT, VENDOR_A)
    assert body["messages"][1]["content"][0]["input"] == {"text": LONG}


def test_tool_input_above_the_bound_is_refused() -> None:
    with pytest.raises(UntranslatableError, match="too much"):
        request_parsed_in_slices(using({"text": 16 * LONG}), MESSAGES, VENDOR_B)


def test_tool_input_nested_too_deeply_is_refused() -> None:
    deep = orjson.Fragment(b"[" * 300 + b"]" * 300)
    with pytest.raises(UntranslatableError, match="deeply"):
        first_attempt(received(orjson.dumps(using({"a": deep})), MESSAGES), VENDOR_B)
