"""Requests of Chat Completions callers, read into the middle or refused by name."""

from typing import Any

import pytest

from proxy.dialects.chat_completions.request_reader import read_request
from proxy.dialects.middle.request import (
    Audio,
    ConversationTurn,
    Document,
    Image,
    OutputFormat,
    Reasoning,
    ReasoningSettings,
    Refusal,
    Request,
    Sampling,
    Source,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from proxy.errors import UntranslatableError
from tests.fakes.seals import opened, seal

USER = {"role": "user", "content": "hi"}
PNG = "data:image/png;base64,iVBOR"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
CACHE = {"type": "ephemeral"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER, "strict": True}}
PATCH = {"type": "custom", "custom": {"name": "patch"}}
GRAMMAR = {"syntax": "lark", "definition": "start: x"}


def asked(**body: Any) -> Request:
    return read_request({"model": "acme/fast", "messages": [USER]} | body)


def turns_of(*messages: dict[str, Any]) -> list[ConversationTurn]:
    return asked(messages=list(messages)).turns


def parts_of(*content: dict[str, Any]) -> list[Any]:
    return turns_of({"role": "user", "content": list(content)})[0].parts


def request(**members: Any) -> Request:
    return Request([ConversationTurn("user", [Text("hi")])], include_usage=False, **members)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, request()),
        ({"stream": True}, request(stream=True)),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            Request([ConversationTurn("user", [Text("hi")])], stream=True, include_usage=True),
        ),
        ({"max_tokens": 7}, request(max_output_tokens=7)),
        ({"max_tokens": 1, "max_completion_tokens": 9}, request(max_output_tokens=9)),
        ({"max_completion_tokens": None}, request()),
        ({"temperature": 0, "top_p": 0.9}, request(sampling=Sampling(temperature=0, top_p=0.9))),
        ({"stop": "END"}, request(sampling=Sampling(stop=["END"]))),
        ({"stop": ["a", "b"]}, request(sampling=Sampling(stop=["a", "b"]))),
        (
            {"seed": 1, "n": 2, "frequency_penalty": 0.5, "presence_penalty": -1, "logit_bias": {"1": 5}},
            request(
                sampling=Sampling(seed=1, answers=2, frequency_penalty=0.5, presence_penalty=-1, logit_bias={"1": 5})
            ),
        ),
        ({"logprobs": True, "top_logprobs": 3}, request(sampling=Sampling(logprobs=True, top_logprobs=3))),
        ({"n": 1, "logprobs": False, "logit_bias": {}, "store": False, "top_logprobs": 0}, request()),
        ({"frequency_penalty": 0.0, "presence_penalty": 0, "response_format": {"type": "text"}}, request()),
        ({"logit_bias": None, "audio": None, "anything": None, "functions": []}, request()),
        ({"metadata": {"team": "a"}, "modalities": ["text"], "verbosity": "medium", "service_tier": "auto"}, request()),
        ({"user": "u1"}, request(user="u1")),
        ({"user": "u1", "safety_identifier": "s1"}, request(user="s1")),
        ({"verbosity": "low", "service_tier": "flex"}, request(verbosity="low", service_tier="flex")),
        ({"reasoning_effort": "xhigh"}, request(reasoning=ReasoningSettings(enabled=True, effort="xhigh"))),
        ({"reasoning_effort": "none"}, request(reasoning=ReasoningSettings(enabled=False))),
        ({"parallel_tool_calls": False}, request(parallel_tool_calls=False)),
        ({"cache_control": CACHE, "prompt_cache_key": "k"}, request(cache=CACHE, cache_key="k")),
        ({"response_format": {"type": "json_object"}}, request(output_format=OutputFormat("json_object"))),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": WEATHER}}},
            request(output_format=OutputFormat("json_schema", schema=WEATHER, name="n")),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": WEATHER, "strict": False, "description": "d"},
                }
            },
            request(output_format=OutputFormat("json_schema", schema=WEATHER, name="n", description="d", strict=False)),
        ),
        ({"tools": [TOOL]}, request(tools=[Tool("weather", "d", WEATHER, strict=True)])),
        (
            {"tools": [TOOL | {"cache_control": CACHE}]},
            request(tools=[Tool("weather", "d", WEATHER, True, cache=CACHE)]),
        ),
        ({"tools": [{"type": "function", "function": {"name": "now"}}]}, request(tools=[Tool("now")])),
        ({"tools": [PATCH]}, request(tools=[Tool("patch", custom={"type": "text"})])),
        (
            {"tools": [{"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": GRAMMAR}}}]},
            request(tools=[Tool("p", custom={"type": "grammar"} | GRAMMAR)]),
        ),
        ({"tool_choice": "required"}, request(tool_choice=ToolChoice("required"))),
        (
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            request(tool_choice=ToolChoice("named", "weather")),
        ),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "patch"}}},
            request(tool_choice=ToolChoice("named", "patch")),
        ),
        (
            {
                "tools": [TOOL, PATCH],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [PATCH, TOOL]},
                },
            },
            request(
                tools=[Tool("weather", "d", WEATHER, True), Tool("patch", custom={"type": "text"})],
                tool_choice=ToolChoice("required"),
            ),
        ),
    ],
)
def test_settings_are_read(body: dict[str, Any], expected: Request) -> None:
    assert asked(**body) == expected


def test_fields_name_the_callers_members() -> None:
    fields = asked(max_tokens=1, n=2, reasoning_effort="low", response_format={"type": "json_object"}, seed=None).fields
    assert fields == {
        "max_output_tokens": "max_tokens",
        "answers": "n",
        "reasoning": "reasoning_effort",
        "output_format": "response_format",
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"store": True}, "store"),
        ({"brand_new": 1}, "brand_new"),
        ({"top_k": 5}, "top_k"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": 1}, "stop"),
        ({"stop": [1]}, "stop.0"),
        ({"user": 1}, "user"),
        ({"stream_options": {"brand_new": 1}}, "stream_options.brand_new"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"verbosity": "chatty"}, "verbosity"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": None}, "messages"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "user", "content": None}]}, "messages.1.content"),
        ({"messages": [USER | {"brand_new": 1}]}, "messages.0.brand_new"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "system", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x"}}]}]},
            "messages.0.content.0.image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
            "messages.0.content.0.file.file_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "JVB"}}]}]},
            "messages.0.content.0.file.file_data",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "file", "file": {"file_data": "data:text/plain;base64,/w=="}}],
                    }
                ]
            },
            "messages.0.content.0.file.file_data",
        ),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages.0.function_call"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages.0.audio"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "mcp"}]}]},
            "messages.0.tool_calls.0.type",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages.0.tool_calls.0.id",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        (
            {
                "messages": [
                    {
                        "role": "tool",
                        "tool_call_id": "c",
                        "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
                    }
                ]
            },
            "messages.0.content.0.type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools.0.function.x"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "hosted"}}, "tool_choice.type"),
        (
            {
                "tools": [TOOL, PATCH],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}},
            },
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_member_that_the_middle_cannot_hold_is_refused(body: dict[str, Any], field: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        asked(**body)
    assert caught.value.field == field


def test_roles_and_names_are_read() -> None:
    assert turns_of(
        {"role": "developer", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "c", "name": "ann"},
        {"role": "assistant", "content": "d", "name": "bot"},
    ) == [
        ConversationTurn("developer", [Text("a")]),
        ConversationTurn("system", [Text("b")]),
        ConversationTurn("user", [Text("c")], name="ann"),
        ConversationTurn("assistant", [Text("d")], name="bot"),
    ]


def test_parts_of_a_user_are_read() -> None:
    assert parts_of(
        {"type": "text", "text": "a", "cache_control": CACHE, "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://h/x.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVB"}},
        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;charset=utf-8;base64,w7Y="}},
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
    ) == [
        Text("a", cache=CACHE),
        Image(Source("base64", "iVBOR", "image/png"), detail="low"),
        Image(Source("url", "https://h/x.png")),
        Document(Source("base64", "JVB", "application/pdf"), title="a.pdf"),
        Document(Source("text", "ö", "text/plain"), title="a.txt"),
        Audio("UklG", "wav"),
    ]


def test_each_part_knows_its_path() -> None:
    turns = turns_of(USER, {"role": "user", "content": [{"type": "text", "text": "a"}]})
    assert [(turn.field, turn.parts[0].field) for turn in turns] == [
        ("messages.0", "messages.0.content"),
        ("messages.1", "messages.1.content.0"),
    ]


def test_calls_and_results_are_read() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"google": 1}},
        {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "x"}, "index": 1},
    ]
    assert turns_of(
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "cold", "cache_control": CACHE},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "a"}]},
    ) == [
        ConversationTurn(
            "assistant", [ToolCall("c1", "f", "{}", extra={"google": 1}), ToolCall("c2", "g", "x", custom=True)]
        ),
        ConversationTurn("user", [ToolResult("c1", [Text("cold")], cache=CACHE)]),
        ConversationTurn("user", [ToolResult("c2", [Text("a")], custom=True)]),
    ]


def test_mark_of_a_message_is_that_of_its_last_part() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (turn,) = turns_of({"role": "user", "content": content, "cache_control": CACHE})
    assert [part.cache for part in turn.parts] == [None, CACHE]
    longer = CACHE | {"ttl": "1h"}
    own = [{"type": "text", "text": "a", "cache_control": longer}]
    (turn,) = turns_of({"role": "user", "content": own, "cache_control": CACHE})
    assert [part.cache for part in turn.parts] == [longer]


def test_refusals_are_read() -> None:
    (turn,) = turns_of({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": "never"})
    assert turn.parts == [Refusal("no"), Refusal("never")]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"reasoning_content": "hm"}, [Reasoning("hm", "chat_completions", {"reasoning_content": "hm"})]),
        ({"reasoning": "hm"}, [Reasoning("hm", "chat_completions", {"reasoning": "hm"})]),
        (
            {
                "reasoning_content": "hm",
                "reasoning_details": [
                    {"type": "reasoning.encrypted", "data": seal("messages", {"a": 1})},
                    {"type": "reasoning.encrypted", "data": seal("messages", {"b": 2})},
                ],
            },
            [Reasoning("hm", "messages", {"a": 1}), Reasoning("", "messages", {"b": 2})],
        ),
        (
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "abc"}]},
            [
                Reasoning(
                    "", "chat_completions", {"reasoning_details": [{"type": "reasoning.encrypted", "data": "abc"}]}
                )
            ],
        ),
        (
            {
                "reasoning_details": [{"type": "reasoning.encrypted", "data": seal("messages", {"a": 1})}],
                "extra_content": {"g": 1},
            },
            [Reasoning("", "messages", {"a": 1}), Reasoning("", "chat_completions", {"extra_content": {"g": 1}})],
        ),
        ({"extra_content": {"g": 1}}, [Reasoning("", "chat_completions", {"extra_content": {"g": 1}})]),
        ({"reasoning_content": "", "reasoning_details": []}, []),
    ],
)
def test_reasoning_is_read(members: dict[str, Any], expected: list[Reasoning]) -> None:
    (turn,) = opened(Request(turns_of({"role": "assistant", "content": "a"} | members))).turns
    assert turn.parts == [*expected, Text("a")]
