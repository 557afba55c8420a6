"""The members of a Messages request are kept in the middle, or refused by the name of the field."""

from typing import Any

import pytest

from proxy.dialects.messages.request_reader import read_request
from proxy.dialects.middle.request import (
    JSON_SCHEMA,
    SYSTEM,
    USER,
    Document,
    OutputFormat,
    Reasoning,
    ReasoningSettings,
    Source,
    Text,
    ToolCall,
    ToolResult,
)
from proxy.errors import UntranslatableError
from tests.fakes.seals import seal

Json = dict[str, Any]


def body(**more: Any) -> Json:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]} | more


def turn_of(*blocks: Json, role: str = "user") -> Json:
    return body(messages=[{"role": role, "content": list(blocks)}])


def parts_of(*blocks: Json, role: str = "user") -> list[Any]:
    return list(read_request(turn_of(*blocks, role=role)).turns[0].parts)


def result(*blocks: Json, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": "a", "content": list(blocks), **more}


PDF: Json = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
FILE: Json = {"type": "file", "file_id": "file_1"}
TOOL: Json = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("members", "field"),
    [
        (body(container="c"), "container"),
        (body(mcp_servers=[{"type": "url"}]), "mcp_servers"),
        (body(inference_geo="us"), "inference_geo"),
        (body(speed="fast"), "speed"),
        (body(service_tier="priority"), "service_tier"),
        (body(invented=1), "invented"),
        (body(thread={"type": "continue", "previous_message_id": "msg_1"}), "thread"),
        (body(thread={"type": "create", "invented": 1}), "thread.invented"),
        (body(max_tokens=0), "max_tokens"),
        (body(max_tokens="9"), "max_tokens"),
        (body(stream=1), "stream"),
        (body(temperature="hot"), "temperature"),
        (body(top_k=0.5), "top_k"),
        (body(stop_sequences="END"), "stop_sequences"),
        (body(stop_sequences=[1]), "stop_sequences.0"),
        (body(metadata={"user_id": 1}), "metadata.user_id"),
        (body(system=[{"type": "image"}]), "system.0.type"),
        (body(system=[1]), "system.0"),
        (body(messages=None), "messages"),
        (body(messages=["x"]), "messages.0"),
        (body(messages=[{"role": "tool", "content": "x"}]), "messages.0.role"),
        (body(messages=[{"role": "user", "content": 1}]), "messages.0.content"),
        (body(messages=[{"role": "user", "content": "x", "name": "n"}]), "messages.0.name"),
        (turn_of({"type": "image", "source": FILE}), "messages.0.content.0.source.type"),
        (
            turn_of({"type": "image", "source": PDF, "transformations": {"oversized_image": "error"}}),
            "messages.0.content.0.transformations",
        ),
        (turn_of({"type": "document", "source": FILE}), "messages.0.content.0.source.type"),
        (
            turn_of({"type": "document", "source": PDF, "citations": {"enabled": True}}),
            "messages.0.content.0.citations",
        ),
        (
            turn_of({"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}}),
            "messages.0.content.0.source.content.0.type",
        ),
        (turn_of({"type": "container_upload", "file_id": "f"}), "messages.0.content.0.type"),
        (turn_of({"type": "server_tool_use"}, role="assistant"), "messages.0.content.0.type"),
        (turn_of({"type": "image", "source": PDF}, role="assistant"), "messages.0.content.0.type"),
        (turn_of({"type": "image", "source": PDF}, role="system"), "messages.0.content.0.type"),
        (turn_of({"type": "text", "text": "x", "invented": 1}), "messages.0.content.0.invented"),
        (turn_of(result({"type": "browser_state"})), "messages.0.content.0.content.0.type"),
        (turn_of(result(toolset_name="x")), "messages.0.content.0.toolset_name"),
        (
            turn_of({"type": "tool_use", "id": "a", "name": "f", "input": "x"}, role="assistant"),
            "messages.0.content.0.input",
        ),
        (
            turn_of(
                {
                    "type": "tool_use",
                    "id": "a",
                    "name": "f",
                    "input": {},
                    "caller": {"type": "code_execution_20250825"},
                },
                role="assistant",
            ),
            "messages.0.content.0.caller",
        ),
        (body(tools=[TOOL | {"type": "bash_20250124"}]), "tools.0.type"),
        (body(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools.0.type"),
        (body(tools=[TOOL, {"type": "text_editor_20250728", "name": "x"}]), "tools.1.type"),
        (body(tools=[{"name": "f"}]), "tools.0.input_schema"),
        (body(tools=[TOOL | {"allowed_callers": ["code_execution_20250825"]}]), "tools.0.allowed_callers"),
        (body(tool_choice={"type": "some"}), "tool_choice.type"),
        (body(tool_choice={"type": "tool"}), "tool_choice.name"),
        (body(thinking={"type": "enabled"}), "thinking.budget_tokens"),
        (body(thinking={"type": "deep"}), "thinking.type"),
        (body(thinking={"type": "adaptive", "display": "all"}), "thinking.display"),
        (body(output_config={"effort": "none"}), "output_config.effort"),
        (body(output_config={"task_budget": {}}), "output_config.task_budget"),
        (body(output_config={"format": {"type": "grammar"}}), "output_config.format.type"),
        (body(output_format={"type": "json_schema"}), "output_format.schema"),
    ],
)
def test_what_the_middle_cannot_hold_is_refused_by_name(members: Json, field: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        read_request(members)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "more",
    [
        {"service_tier": "auto", "speed": "standard", "mcp_servers": [], "container": None},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"diagnostics": {"previous_message_id": None}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "between_tools"}},
        {"metadata": {"tenant": "x"}},
        {"thread": {"type": "create"}},
        {"metadata": None, "system": None, "tools": None, "tool_choice": None, "stop_sequences": None},
    ],
)
def test_neutral_members_and_hints_request_nothing(more: Json) -> None:
    assert read_request(body(**more)) == read_request(body())


def test_first_request_of_claude_code_is_read() -> None:
    request = read_request(
        body(
            stream=True,
            thinking={"type": "adaptive"},
            output_config={"effort": "high"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            metadata={"user_id": '{"device_id":"0024"}'},
            system=[{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}}],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "go"}]},
                {"role": "system", "content": "Available agent types"},
            ],
        )
    )
    assert [turn.role for turn in request.turns] == [SYSTEM, USER, SYSTEM]
    assert request.turns[0].parts == [Text("You are", cache={"type": "ephemeral"})]
    assert request.reasoning == ReasoningSettings(enabled=True, effort="high")
    assert request.user == '{"device_id":"0024"}'


def test_settings_know_the_caller_s_names() -> None:
    request = read_request(
        body(
            stop_sequences=["x"],
            thinking={"type": "adaptive"},
            output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}},
            metadata={"user_id": "u"},
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )
    )
    assert [request.field_of(name) for name in ("max_output_tokens", "stop", "reasoning", "output_format")] == [
        "max_tokens",
        "stop_sequences",
        "thinking",
        "output_config.format",
    ]
    assert request.field_of("user") == "metadata.user_id"
    assert request.field_of("parallel_tool_calls") == "tool_choice.disable_parallel_tool_use"
    assert read_request(body(output_config={"effort": "low"})).field_of("reasoning") == "output_config.effort"


@pytest.mark.parametrize(("budget", "effort"), [(1024, "low"), (4095, "low"), (4096, "medium"), (16384, "high")])
def test_budget_implies_an_effort(budget: int, effort: str) -> None:
    settings = read_request(body(thinking={"type": "enabled", "budget_tokens": budget})).reasoning
    assert settings == ReasoningSettings(enabled=True, effort=effort, budget_tokens=budget)


def test_effort_without_thinking_does_not_enable_it() -> None:
    assert read_request(body(output_config={"effort": "max"})).reasoning == ReasoningSettings(effort="max")


def test_old_output_format_is_the_same_as_the_new_one() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    old = read_request(body(output_format=form))
    assert old == read_request(body(output_config={"format": form}))
    assert old.output_format == OutputFormat(JSON_SCHEMA, {"type": "object"}, name="output", strict=True)
    assert old.field_of("output_format") == "output_format"


def test_vendor_s_own_thinking_is_kept_whole() -> None:
    thinking = {"type": "thinking", "thinking": "Hm", "signature": "EqQ"}
    redacted = {"type": "redacted_thinking", "data": "Emw"}
    assert parts_of(thinking, redacted, role="assistant") == [
        Reasoning("Hm", "messages", thinking),
        Reasoning("", "messages", redacted),
    ]


def test_sealed_reasoning_stays_sealed() -> None:
    native = {"id": "rs_1", "encrypted_content": "gAAA"}
    sealed = seal("responses", native)
    assert parts_of(
        {"type": "thinking", "thinking": "Hm", "signature": sealed},
        {"type": "redacted_thinking", "data": sealed},
        role="assistant",
    ) == [Reasoning("Hm", sealed=sealed), Reasoning("", sealed=sealed)]


def test_reasoning_without_a_signature_has_no_native_block() -> None:
    block = {"type": "thinking", "thinking": "Hm", "signature": ""}
    assert parts_of(block, role="assistant") == [Reasoning("Hm")]


def test_result_of_a_tool_keeps_its_blocks_and_its_error() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    (part,) = parts_of(
        result({"type": "text", "text": "bad"}, image, is_error=True, cache_control={"type": "ephemeral"})
    )
    assert isinstance(part, ToolResult)
    assert (part.is_error, part.cache, len(part.parts)) == (True, {"type": "ephemeral"}, 2)
    (empty,) = parts_of({"type": "tool_result", "tool_use_id": "a"})
    assert empty == ToolResult("a", [])


def test_search_result_becomes_a_document_with_its_origin() -> None:
    block = {
        "type": "search_result",
        "source": "http://x",
        "title": "T",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "citations": {"enabled": False},
    }
    document = Document(Source("text", "a\nb", "text/plain"), title="T (http://x)")
    assert parts_of(block) == [document]
    assert parts_of(result(block)) == [ToolResult("a", [document])]


def test_tool_reference_names_the_tool() -> None:
    assert parts_of(result({"type": "tool_reference", "tool_name": "f"})) == [
        ToolResult("a", [Text("Tool available: f")])
    ]


def test_document_of_text_blocks_is_plain_text() -> None:
    for content in ("ab", [{"type": "text", "text": "ab"}]):
        assert parts_of({"type": "document", "source": {"type": "content", "content": content}, "title": "T"}) == [
            Document(Source("text", "ab", "text/plain"), title="T")
        ]


def test_input_that_was_no_json_is_given_back_as_it_was() -> None:
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {"INVALID_JSON": '{"x":'}}
    assert parts_of(block, role="assistant") == [ToolCall("a", "f", '{"x":')]


def test_hints_of_tools_are_skipped_and_examples_kept() -> None:
    (tool,) = read_request(
        body(tools=[TOOL | {"type": "custom", "defer_loading": True, "input_examples": [{"a": 1}], "strict": True}])
    ).tools
    assert tool.schema == {"type": "object", "examples": [{"a": 1}]}
    assert tool.strict is True


def test_too_deep_input_is_refused() -> None:
    deep: Json = {}
    for _ in range(500):
        deep = {"a": deep}
    with pytest.raises(UntranslatableError) as caught:
        parts_of({"type": "tool_use", "id": "a", "name": "f", "input": deep}, role="assistant")
    assert caught.value.field == "messages.0.content.0.input"
