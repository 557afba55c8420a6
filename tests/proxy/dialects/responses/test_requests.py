"""Requests of the Responses dialect: what is read and written again is the same, and what cannot be kept is named."""

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from proxy.dialects.middle.request import (
    ASSISTANT,
    BASE64,
    JSON_OBJECT,
    NAMED,
    PLAIN_TEXT,
    SYSTEM,
    USER,
    Audio,
    ConversationTurn,
    Document,
    Image,
    OutputFormat,
    Reasoning,
    ReasoningSettings,
    Request,
    Source,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from proxy.dialects.responses.dialect import DIALECT
from proxy.errors import UntranslatableError
from tests.fakes.seals import opened, seal
from tests.upstream.dialects.shapes import mismatches

Json = dict[str, Any]
WORDS = st.text("abc é\n", min_size=1, max_size=6)
NAMES = st.text("abc", min_size=1, max_size=4)
IDS = st.text("abc", min_size=1, max_size=4).map("call_{}".format)
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
PDF = "data:application/pdf;base64,JVBERg=="


def written(request: Request, provider: str = "VENDOR_B") -> Json:
    body = DIALECT.write_request(request, "gpt-x", provider)
    assert not mismatches(body, ResponseCreateParamsBase | _Streamed), mismatches(body, ResponseCreateParamsBase)
    return body


class _Streamed(ResponseCreateParamsBase):
    stream: bool


def read(**members: Any) -> Request:
    return DIALECT.read_request({"model": "acme/fast", "input": "hi"} | members)


def message(role: str, *content: Json) -> Json:
    return {"type": "message", "role": role, "content": list(content)}


INPUT_TEXTS = WORDS.map(lambda text: {"type": "input_text", "text": text})
IMAGES = st.sampled_from(["https://x.test/a.png", "data:image/png;base64,iVBORw=="]).flatmap(
    lambda url: st.sampled_from(["low", "high", "auto"]).map(
        lambda detail: {"type": "input_image", "image_url": url, "detail": detail}
    )
)
FILES = st.sampled_from(
    [
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        {"type": "input_file", "file_url": "https://x.test/a.pdf"},
    ]
)
USERS = st.lists(INPUT_TEXTS | IMAGES | FILES, min_size=1, max_size=3).map(lambda c: message("user", *c))
DEVELOPERS = st.tuples(st.sampled_from(["system", "developer"]), INPUT_TEXTS).map(lambda pair: message(*pair))
SAID = st.lists(
    WORDS.map(lambda text: {"type": "output_text", "text": text, "annotations": []})
    | WORDS.map(lambda text: {"type": "refusal", "refusal": text}),
    min_size=1,
    max_size=2,
).map(lambda c: message("assistant", *c) | {"status": "completed"})
CALLS = st.builds(
    lambda id, name, text, custom: (
        {"type": "custom_tool_call", "call_id": id, "name": name, "input": text}
        if custom
        else {"type": "function_call", "call_id": id, "name": name, "arguments": f"[{text}"}
    ),
    IDS,
    NAMES,
    WORDS,
    st.booleans(),
)
REASONING = st.builds(
    lambda id, text, data: {
        "summary": [{"type": "summary_text", "text": text}],
        "type": "reasoning",
        "id": f"rs_{id}",
        "encrypted_content": data,
    },
    NAMES,
    WORDS,
    NAMES,
)
OUTPUTS = st.lists(INPUT_TEXTS | IMAGES | FILES, min_size=2, max_size=3) | WORDS


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """Items as the writer writes them: each call has its result, and the last word is not the assistant's."""
    items: list[Json] = []
    for _ in range(draw(st.integers(1, 3))):
        items += draw(st.lists(USERS | DEVELOPERS, max_size=2))
        items += draw(st.lists(REASONING | SAID, max_size=2))
        calls = draw(st.lists(CALLS, max_size=2, unique_by=lambda call: call["call_id"]))
        calls = [call | {"call_id": f"{call['call_id']}{len(items)}"} for call in calls]
        items += calls
        items += [
            {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": draw(OUTPUTS)} for call in calls
        ]
    items.append(draw(USERS))
    for place, item in enumerate(items):
        if item.get("role") == "assistant":
            item["id"] = f"msg_{place}"
    return items if items[0].get("role") != "system" else [draw(USERS), *items[1:]]


FUNCTIONS = st.builds(
    lambda name, strict, about: {"type": "function", "name": name, "parameters": SCHEMA, "strict": strict, **about},
    NAMES.map("f_{}".format),
    st.booleans(),
    st.sampled_from([{}, {"description": "Does it."}]),
)
CUSTOM = st.builds(
    lambda name, form: {"type": "custom", "name": name, "format": form},
    NAMES.map("c_{}".format),
    st.sampled_from([{"type": "text"}, {"type": "grammar", "syntax": "lark", "definition": "start: A"}]),
)
FORMATS = st.sampled_from(
    [
        {"type": "json_object"},
        {"type": "json_schema", "name": "n", "schema": SCHEMA},
        {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"},
    ]
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "instructions": WORDS,
        "max_output_tokens": st.integers(16, 99),
        "temperature": st.sampled_from([0.0, 0.5, 2]),
        "top_p": st.just(0.5),
        "stream": st.just(True),
        "prompt_cache_key": WORDS,
        "service_tier": st.sampled_from(["flex", "priority"]),
        "safety_identifier": WORDS,
        "text": st.fixed_dictionaries({"format": FORMATS}, optional={"verbosity": st.sampled_from(["low", "high"])}),
        "reasoning": st.sampled_from(
            [
                {"effort": "none"},
                {"summary": "auto"},
                *({"effort": e, "summary": "auto"} for e in ("minimal", "low", "medium", "high", "xhigh", "max")),
            ]
        ),
        "top_logprobs": st.integers(1, 20),
    },
)


@given(conversations(), SETTINGS, st.lists(FUNCTIONS | CUSTOM, max_size=3, unique_by=lambda t: t["name"]), st.data())
def test_request_read_and_written_again_is_the_same(
    items: list[Json], settings: Json, tools: list[Json], data: st.DataObject
) -> None:
    if settings.get("text", {}).get("format") == {"type": "json_object"}:
        settings.pop("instructions", None)  # they become an item
    body: Json = {"model": "gpt-x", "input": items, "store": False} | settings
    include = ["message.output_text.logprobs"] if "top_logprobs" in settings else []
    if settings.get("reasoning", {"effort": "none"}) != {"effort": "none"}:
        include.append("reasoning.encrypted_content")
    if include:
        body["include"] = include
    if tools:
        choices = [{"type": tool["type"], "name": tool["name"]} for tool in tools]
        body["tools"] = tools
        body["tool_choice"] = data.draw(st.sampled_from(["auto", "none", "required", *choices]))
        body["parallel_tool_calls"] = data.draw(st.booleans())
    assert DIALECT.write_request(DIALECT.read_request(body), "gpt-x", "VENDOR_B") == body


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"of_next_year": 1}, "of_next_year"),
        ({"include": ["of_next_year"]}, "include.0"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"verbosity": "mute"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input.0.type"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input.0.role"),
        ({"input": [message("user", {"type": "input_image", "file_id": "f"})]}, "input.0.content.0.file_id"),
        ({"input": [message("user", {"type": "input_file", "file_id": "f"})]}, "input.0.content.0.file_id"),
        ({"input": [message("user", {"type": "video"})]}, "input.0.content.0.type"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_only_the_vendor_can_do_is_refused_by_name(members: Json, field: str) -> None:
    with pytest.raises(UntranslatableError) as raised:
        read(**members)
    assert raised.value.field == field


def test_settings_that_request_nothing_are_accepted() -> None:
    hints = {
        "store": True,
        "background": False,
        "metadata": {"a": "b"},
        "client_metadata": {"session_id": "s"},
        "stream_options": {"include_obfuscation": True},
        "truncation": "disabled",
        "max_tool_calls": 3,
        "prompt_cache_retention": "24h",
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"context": "all_turns", "effort": None, "summary": None},
        "previous_response_id": None,
        "service_tier": "auto",
    }
    assert read(**hints) == read()


def test_history_becomes_turns() -> None:
    items = [
        {"role": "user", "content": "Look."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "abc"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Yes.", "annotations": [{}], "logprobs": []}],
        },
        {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "plain"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "1"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"}],
        },
    ]  # fmt: skip
    assert read(input=items).turns == [
        ConversationTurn(USER, [Text("Look.")]),
        ConversationTurn(
            ASSISTANT,
            [
                Reasoning(
                    "", "responses", {"summary": [], "type": "reasoning", "id": "rs_1", "encrypted_content": "abc"}
                ),
                Text("Yes."),
                ToolCall("c1", "f", "{}"),
                ToolCall("c2", "g", "plain", custom=True),
            ],
        ),
        ConversationTurn(
            USER,
            [
                ToolResult("c1", [Text("1")]),
                ToolResult("c2", [Image(Source(BASE64, "AA==", "image/png"), "high")], custom=True),
            ],
        ),
    ]


def test_sealed_reasoning_is_another_vendors_block() -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": "s"}
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    sealed = item | {"encrypted_content": seal("messages", block)}
    assert opened(read(input=[sealed])).turns == [ConversationTurn(ASSISTANT, [Reasoning("hm", "messages", block)])]


def test_text_file_is_a_plain_text_document() -> None:
    data = f"data:text/plain;base64,{b64encode('é'.encode()).decode()}"
    part = {"type": "input_file", "filename": "a.txt", "file_data": data}
    request = read(input=[message("user", part), message("user", {"type": "input_text", "text": "x"})])
    assert request.turns[0].parts == [Document(Source(PLAIN_TEXT, "é", "text/plain"), "a.txt")]
    assert written(request)["input"][0]["content"] == [{"type": "input_text", "text": "a.txt\né"}]


def test_namespaces_are_joined_to_names_and_hosted_tools_beside_functions_are_left_out() -> None:
    inner = {"type": "function", "name": "close", "parameters": SCHEMA, "strict": False}
    space = {"type": "namespace", "name": "agents", "description": "Sub-agents.", "tools": [inner]}
    request = read(tools=[space, {"type": "web_search", "external_web_access": True}], tool_choice="auto")
    assert request.tools == [Tool("agents__close", "Sub-agents.", SCHEMA, False, namespaced=("agents", "close"))]
    assert request.left_out == ["tools.1 (web_search)"]
    call = {"type": "function_call", "call_id": "c", "namespace": "agents", "name": "close", "arguments": "{}"}
    assert read(input=[call]).turns[0].parts == [ToolCall("c", "agents__close", "{}")]


def test_additional_tools_are_tools() -> None:
    inner = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
    items = [{"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [inner]}, message("user")]
    assert read(input=items).tools == [Tool("f", None, SCHEMA, False)]


def test_allowed_tools_are_the_mode_where_they_are_all_tools() -> None:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in "fg"]
    every = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": n} for n in "fg"]}
    assert read(tools=tools, tool_choice=every).tool_choice == ToolChoice("required")
    with pytest.raises(UntranslatableError, match=r"tool_choice\.tools"):
        read(tools=tools, tool_choice=every | {"tools": [{"type": "function", "name": "f"}]})


@pytest.mark.parametrize("setting", ["top_k", "seed", "frequency_penalty", "logit_bias", "stop", "answers"])
def test_sampling_that_the_dialect_lacks_is_refused_with_the_callers_name(setting: str) -> None:
    request = Request([ConversationTurn(USER, [Text("hi")])], fields={setting: "the_callers_name"})
    setattr(request.sampling, setting, {"stop": ["END"], "logit_bias": {"1": 1}, "seed": 0}.get(setting, 2))
    with pytest.raises(UntranslatableError, match="the_callers_name"):
        written(request)


def test_instructions_are_an_item_where_json_is_asked_for() -> None:
    turns = [ConversationTurn(SYSTEM, [Text("Answer in JSON.")]), ConversationTurn(USER, [Text("hi")])]
    body = written(Request(turns, output_format=OutputFormat(JSON_OBJECT)))
    assert [item["role"] for item in body["input"]] == ["system", "user"]
    assert "instructions" not in body
    assert written(Request(turns))["instructions"] == "Answer in JSON."


def test_unfinished_answer_of_the_assistant_is_refused() -> None:
    turns = [ConversationTurn(USER, [Text("hi")]), ConversationTurn(ASSISTANT, [Text("I ")], field="messages.1")]
    with pytest.raises(UntranslatableError, match=r"messages\.1"):
        written(Request(turns))


def test_what_has_no_member_is_said_in_text() -> None:
    calls = [ToolCall("c" * 65, "f", "{}"), ToolCall("d", "f", "{}")]
    results = [ToolResult("c" * 65, [Text("no")], is_error=True), ToolResult("d", [], is_error=True)]
    turns = [
        ConversationTurn(USER, [Text("hi")], name="ann"),
        ConversationTurn(ASSISTANT, [*calls]),
        ConversationTurn(USER, [*results]),
    ]
    items = written(Request(turns))["input"]
    assert items[0]["content"] == [{"type": "input_text", "text": "[ann]: hi"}]
    assert [item["output"] for item in items[3:]] == ["Error: no", "Error"]
    assert items[1]["call_id"] == items[3]["call_id"]
    assert len(items[1]["call_id"]) <= 64


def test_developer_is_written_to_the_vendor_alone() -> None:
    request = read(input=[message("developer", {"type": "input_text", "text": "x"}), {"role": "user", "content": "y"}])
    assert [written(request, provider)["input"][0]["role"] for provider in ("VENDOR_B", "PLATFORM")] == [
        "developer",
        "system",
    ]


@pytest.mark.parametrize(
    ("settings", "field", "expected"),
    [
        (ReasoningSettings(enabled=False), "thinking", None),
        (ReasoningSettings(enabled=False), "reasoning_effort", {"effort": "none"}),
        (ReasoningSettings(enabled=True), "thinking", {"summary": "auto"}),
        (ReasoningSettings(enabled=True, budget_tokens=2000), "thinking", {"effort": "low", "summary": "auto"}),
        (ReasoningSettings(enabled=True, budget_tokens=31999), "thinking", {"effort": "high", "summary": "auto"}),
        (ReasoningSettings(enabled=True, effort="max"), "thinking", {"effort": "xhigh", "summary": "auto"}),
        (ReasoningSettings(enabled=True, effort="low", visible=False), "thinking", {"effort": "low"}),
    ],
)
def test_reasoning_settings(settings: ReasoningSettings, field: str, expected: Json | None) -> None:
    request = Request([ConversationTurn(USER, [Text("hi")])], reasoning=settings, fields={"reasoning": field})
    body = written(request)
    assert body.get("reasoning") == expected
    assert ("reasoning.encrypted_content" in body.get("include", [])) == (expected not in (None, {"effort": "none"}))


def test_long_user_is_hashed() -> None:
    request = Request([ConversationTurn(USER, [Text("hi")])], user="x" * 200, fields={"user": "metadata.user_id"})
    assert len(written(request)["safety_identifier"]) == 64


def test_forced_custom_tool() -> None:
    tools = [Tool("patch", custom={"type": "text"})]
    request = Request([ConversationTurn(USER, [Text("hi")])], tools=tools, tool_choice=ToolChoice(NAMED, "patch"))
    assert written(request)["tool_choice"] == {"type": "custom", "name": "patch"}


def test_audio_is_read_and_written_to_no_target_of_this_dialect() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    request = read(input=[message("user", part)])
    assert request.turns[0].parts == [Audio("UklGRg==", "wav")]
    with pytest.raises(UntranslatableError, match=r"input\.0\.content\.0"):
        written(request)


def test_context_of_a_file_goes_before_it() -> None:
    part = Document(Source(BASE64, "JVBERg==", "application/pdf"), "a.pdf", "It is old.")
    assert written(Request([ConversationTurn(USER, [part])]))["input"][0]["content"] == [
        {"type": "input_text", "text": "It is old."},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
    ]


def test_system_prompt_alone_is_an_item() -> None:
    body = written(Request([ConversationTurn(SYSTEM, [Text("Say hi.")])]))
    assert body["input"] == [message("system", {"type": "input_text", "text": "Say hi."})]
    assert "instructions" not in body


def test_call_without_arguments_has_an_empty_object() -> None:
    turns = [
        ConversationTurn(USER, [Text("hi")]),
        ConversationTurn(ASSISTANT, [ToolCall("c", "f", "")]),
        ConversationTurn(USER, [ToolResult("c", [])]),
    ]
    assert written(Request(turns))["input"][1]["arguments"] == "{}"
