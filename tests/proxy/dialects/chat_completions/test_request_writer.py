"""Requests for Chat Completions targets: the middle's meaning, or a refusal that names the caller's member."""

from typing import Any

import pytest

from proxy.dialects.chat_completions.request_reader import read_request
from proxy.dialects.chat_completions.request_writer import write_request
from proxy.dialects.middle.request import (
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
from tests.proxy.dialects.chat_completions.requests import validated

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
PNG = Source("base64", "iVBOR", "image/png")
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}}
PDF = Source("base64", "JVB", "application/pdf")
PDF_PART = {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVB"}}
HI = ConversationTurn("user", [Text("hi")])
GRAMMAR = {"syntax": "lark", "definition": "start: x"}


def body_of(request: Request, provider: str = "VENDOR_B") -> dict[str, Any]:
    return validated(write_request(request, "gpt-x", provider))


def messages_of(*turns: ConversationTurn, provider: str = "VENDOR_B") -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = body_of(Request(list(turns)), provider)["messages"]
    return messages


def written(provider: str = "VENDOR_B", **members: Any) -> dict[str, Any]:
    body = body_of(Request([HI], **members), provider)
    assert (body.pop("model"), body.pop("messages")) == ("gpt-x", [{"role": "user", "content": "hi"}])
    return body


@pytest.mark.parametrize(
    ("members", "body"),
    [
        ({"max_output_tokens": 5}, {"max_completion_tokens": 5}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        (
            {"sampling": Sampling(temperature=0, top_p=0.5, stop=["a"], seed=1, answers=2)},
            {"temperature": 0, "top_p": 0.5, "stop": ["a"], "seed": 1, "n": 2},
        ),
        ({"sampling": Sampling(logprobs=True, top_logprobs=2)}, {"logprobs": True, "top_logprobs": 2}),
        (
            {"verbosity": "low", "service_tier": "flex", "user": "u"},
            {"verbosity": "low", "service_tier": "flex", "user": "u"},
        ),
        ({"cache": {"type": "ephemeral"}, "cache_key": "k"}, {"prompt_cache_key": "k"}),
        (
            {"tools": [Tool("f", "d", WEATHER, True, cache={"type": "ephemeral"})], "parallel_tool_calls": False},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "description": "d", "parameters": WEATHER, "strict": True},
                    }
                ],
                "parallel_tool_calls": False,
            },
        ),
        ({"parallel_tool_calls": False}, {}),
        ({"tool_choice": ToolChoice("none")}, {}),
        ({"tool_choice": ToolChoice("auto")}, {}),
        ({"tool_choice": ToolChoice("required")}, {"tool_choice": "required"}),
        (
            {"tool_choice": ToolChoice("named", "f")},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"output_format": OutputFormat("json_schema", WEATHER, strict=True)},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": WEATHER, "strict": True},
                }
            },
        ),
        ({"output_format": OutputFormat("json_object")}, {"response_format": {"type": "json_object"}}),
        ({"reasoning": ReasoningSettings(enabled=True, effort="high")}, {"reasoning_effort": "high"}),
        (
            {"reasoning": ReasoningSettings(enabled=True, effort="max"), "fields": {"reasoning": "thinking"}},
            {"reasoning_effort": "xhigh"},
        ),
        ({"reasoning": ReasoningSettings(enabled=True, effort="max")}, {"reasoning_effort": "max"}),
        ({"user": "u", "fields": {"user": "metadata.user_id"}}, {"safety_identifier": "u"}),
        ({"reasoning": ReasoningSettings(enabled=True)}, {}),
        ({"reasoning": ReasoningSettings(enabled=True, budget_tokens=2000)}, {"reasoning_effort": "low"}),
        ({"reasoning": ReasoningSettings(enabled=True, budget_tokens=4096)}, {"reasoning_effort": "medium"}),
        ({"reasoning": ReasoningSettings(enabled=True, budget_tokens=31999)}, {"reasoning_effort": "high"}),
        ({"reasoning": ReasoningSettings(enabled=False), "fields": {"reasoning": "thinking"}}, {}),
        (
            {"reasoning": ReasoningSettings(enabled=False), "fields": {"reasoning": "reasoning.effort"}},
            {"reasoning_effort": "none"},
        ),
    ],
)
def test_settings_are_written(members: dict[str, Any], body: dict[str, Any]) -> None:
    assert written(**members) == body


def test_servers_of_other_vendors_get_only_what_they_know() -> None:
    assert written("VENDOR_C", max_output_tokens=5, cache_key="k") == {"max_tokens": 5}
    assert messages_of(ConversationTurn("developer", [Text("a")]), HI, provider="PLATFORM")[0] == {
        "role": "system",
        "content": "a",
    }
    assert messages_of(ConversationTurn("developer", [Text("a")]), HI)[0] == {"role": "developer", "content": "a"}


def test_long_user_id_is_hashed() -> None:
    assert written(user="u" * 64)["user"] == "u" * 64
    first = written(user="u" * 65)["user"]
    second = written(user="v" * 65)["user"]
    assert (len(first), first == second) == (64, False)


def test_top_k_is_refused_by_the_callers_name() -> None:
    with pytest.raises(UntranslatableError) as caught:
        written(sampling=Sampling(top_k=5), fields={"top_k": "sampling.top_k"})
    assert caught.value.field == "sampling.top_k"


def test_several_texts_are_one_for_servers_that_may_take_no_parts() -> None:
    turns = [ConversationTurn("system", [Text("a"), Text("b")]), ConversationTurn("user", [Text("c"), Text("d")])]
    assert [message["content"] for message in messages_of(*turns, provider="PLATFORM")] == ["a\nb", "c\nd"]
    parts = [[{"type": "text", "text": text} for text in texts] for texts in ("ab", "cd")]
    assert [message["content"] for message in messages_of(*turns)] == parts


def test_system_turns_stay_where_they_are() -> None:
    assert messages_of(ConversationTurn("system", [Text("a")]), HI, ConversationTurn("system", [Text("c")]), HI) == [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "hi"},
    ]


def test_results_come_first_and_their_attachments_after_them() -> None:
    turns = [
        ConversationTurn(
            "assistant",
            [Text("a"), Text("b"), ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}"), ToolCall("3", "h", "{}")],
        ),
        ConversationTurn("user", [Text("and"), ToolResult("1", [Text("x"), Image(PNG)])]),
        ConversationTurn("user", [ToolResult("2", [Document(PDF)], is_error=True), ToolResult("3", [], is_error=True)]),
        ConversationTurn("user", [Text("go on")]),
    ]
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id, name in (("1", "f"), ("2", "g"), ("3", "h"))
    ]
    assert messages_of(turns[0], *turns[2:]) == [
        {"role": "assistant", "content": "ab", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "2", "content": "Error: (see the attachment below)"},
        {"role": "tool", "tool_call_id": "3", "content": "Error"},
        {"role": "user", "content": [PDF_PART, {"type": "text", "text": "go on"}]},
    ]
    assert messages_of(*turns[:2]) == [
        {"role": "assistant", "content": "ab", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "user", "content": [PNG_PART, {"type": "text", "text": "and"}]},
    ]


def test_attachments_of_several_turns_follow_the_last_result() -> None:
    """OpenAI refuses a message between the results of one assistant's message."""
    results = [ConversationTurn("user", [ToolResult(id, [Image(PNG)])]) for id in ("1", "2")]
    messages = messages_of(*results, ConversationTurn("assistant", [Text("I see")]), HI)
    assert [message["role"] for message in messages] == ["tool", "tool", "user", "assistant", "user"]
    assert messages[2]["content"] == [PNG_PART, PNG_PART]
    assert [message["role"] for message in messages_of(*results)] == ["tool", "tool", "user"]


def test_documents_are_written() -> None:
    (message,) = messages_of(
        ConversationTurn(
            "user", [Document(Source("text", "body", "text/plain"), title="t", context="c"), Document(PDF, context="c")]
        )
    )
    assert message["content"] == [
        {"type": "text", "text": "t\nc\nbody"},
        {"type": "text", "text": "c"},
        PDF_PART,
    ]


def test_document_at_a_url_is_refused() -> None:
    with pytest.raises(UntranslatableError) as caught:
        messages_of(
            ConversationTurn("user", [Document(Source("url", "https://h/x.pdf"), field="messages.0.content.2")])
        )
    assert caught.value.field == "messages.0.content.2"


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_part_in_the_wrong_role_is_refused(role: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        messages_of(ConversationTurn(role, [Image(PNG, field="input.3")]), HI)
    assert caught.value.field == "input.3"


def test_prefill_is_refused() -> None:
    with pytest.raises(UntranslatableError) as caught:
        messages_of(HI, ConversationTurn("assistant", [Text("The answer is")], field="messages.1"))
    assert caught.value.field == "messages.1"


def test_long_call_ids_are_shortened_alike_in_call_and_result() -> None:
    long = "c" * 41
    call, result = messages_of(
        ConversationTurn("assistant", [ToolCall(long, "f", "{}")]), ConversationTurn("user", [ToolResult(long, [])])
    )
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) <= 40


def test_own_reasoning_is_returned_and_that_of_others_dropped() -> None:
    extra = {"google": {"thought_signature": "s"}}
    (message, _) = messages_of(
        ConversationTurn(
            "assistant",
            [
                Reasoning("hm", "messages", {"type": "thinking"}),
                Reasoning("a", "chat_completions", {"reasoning_content": "a", "reasoning_details": [{"x": 1}]}),
                Reasoning("b", "chat_completions", {"reasoning_content": "b", "tool_call_extra": {"1": extra}}),
                Reasoning("c", "chat_completions", {"reasoning_content": 5, "role": "system", "tool_call_extra": 5}),
                Reasoning("d"),
                Text("t"),
                ToolCall("1", "f", "{}"),
                ToolCall("2", "f", "{}", extra={"own": 1}),
            ],
        ),
        HI,
    )
    assert (message["role"], message["content"]) == ("assistant", "t")
    assert message["reasoning_content"] == "a\n\nb"
    assert message["reasoning_details"] == [{"x": 1}]
    assert [call["extra_content"] for call in message["tool_calls"]] == [extra, {"own": 1}]


def test_turn_of_nothing_but_foreign_reasoning_is_left_out() -> None:
    assert (
        messages_of(HI, ConversationTurn("assistant", [Reasoning("hm")]), HI) == [{"role": "user", "content": "hi"}] * 2
    )


def test_refusal_is_written() -> None:
    message, _ = messages_of(ConversationTurn("assistant", [Refusal("no")]), HI)
    assert message == {"role": "assistant", "content": None, "refusal": "no"}


def test_custom_tools_are_functions_where_the_target_has_none() -> None:
    request = Request(
        [ConversationTurn("assistant", [ToolCall("1", "p", 'x"y', custom=True)]), HI],
        tools=[Tool("p", "d", custom={"type": "grammar"} | GRAMMAR), Tool("q", custom={"type": "text"})],
        tool_choice=ToolChoice("named", "p"),
    )
    native = body_of(request)
    assert native["tools"] == [
        {
            "type": "custom",
            "custom": {"name": "p", "description": "d", "format": {"type": "grammar", "grammar": GRAMMAR}},
        },
        {"type": "custom", "custom": {"name": "q"}},
    ]
    assert native["tool_choice"] == {"type": "custom", "custom": {"name": "p"}}
    assert native["messages"][0]["tool_calls"][0]["custom"] == {"name": "p", "input": 'x"y'}
    other = body_of(request, "VENDOR_B_COMPATIBLE")
    schema = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    description = "d\n\nThe input must match this lark grammar:\nstart: x"
    assert [tool["function"] for tool in other["tools"]] == [
        {"name": "p", "parameters": schema, "description": description},
        {"name": "q", "parameters": schema},
    ]
    assert other["tool_choice"] == {"type": "function", "function": {"name": "p"}}
    assert other["messages"][0]["tool_calls"][0]["function"] == {"name": "p", "arguments": '{"input":"x\\"y"}'}
    assert read_request(native).tools == request.tools
