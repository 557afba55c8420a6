"""Requests of other dialects reach a Messages target in the vendor's form, or are refused."""

from typing import Any

import pytest

from proxy.dialects.messages.request_writer import write_request
from proxy.dialects.middle.request import (
    ASSISTANT,
    AUTO,
    BASE64,
    DEVELOPER,
    JSON_OBJECT,
    JSON_SCHEMA,
    NAMED,
    NONE,
    PLAIN_TEXT,
    REQUIRED,
    SYSTEM,
    URL,
    USER,
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
    TurnPart,
)
from proxy.errors import UntranslatableError
from tests.proxy.dialects.messages.sdk import check_request

Json = dict[str, Any]
ASK = ConversationTurn(USER, [Text("hi")])
TOOL = Tool("f", schema={"type": "object"})
THINK = ReasoningSettings(enabled=True, effort="high")
OWN = Reasoning("Hm", "messages", {"type": "thinking", "thinking": "Hm", "signature": "EqQ"})


def written(*turns: ConversationTurn, model: str = "claude-x", **settings: Any) -> Json:
    body = write_request(Request(list(turns or (ASK,)), **settings), model, "VENDOR_A")
    check_request(body)
    return body


def messages(*turns: ConversationTurn) -> list[Json]:
    entries: list[Json] = written(*turns)["messages"]
    return entries


def user(*parts: TurnPart) -> ConversationTurn:
    return ConversationTurn(USER, list(parts))


def assistant(*parts: TurnPart) -> ConversationTurn:
    return ConversationTurn(ASSISTANT, list(parts))


def system(text: str, role: str = SYSTEM) -> ConversationTurn:
    return ConversationTurn(role, [Text(text)])


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"sampling": Sampling(seed=0)}, "seed"),
        ({"sampling": Sampling(frequency_penalty=0.5)}, "frequency_penalty"),
        ({"sampling": Sampling(presence_penalty=-1)}, "presence_penalty"),
        ({"sampling": Sampling(logit_bias={"1": 2})}, "logit_bias"),
        ({"sampling": Sampling(answers=2)}, "answers"),
        ({"sampling": Sampling(logprobs=True)}, "logprobs"),
        ({"sampling": Sampling(temperature=1.1)}, "temperature"),
        ({"sampling": Sampling(temperature=0.5), "reasoning": THINK}, "temperature"),
        ({"sampling": Sampling(top_p=0.5), "reasoning": THINK}, "top_p"),
        ({"sampling": Sampling(stop=["x", "\n"])}, "stop"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"output_format": OutputFormat(JSON_OBJECT)}, "output_format"),
    ],
)
def test_settings_that_messages_lacks_are_refused_by_the_caller_s_name(settings: Json, setting: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        written(fields={setting: "theirs"}, **settings)
    assert caught.value.field == "theirs"


@pytest.mark.parametrize(
    "part",
    [
        Audio("UklG", "wav"),
        Document(Source(BASE64, "QQ==", "text/csv")),
    ],
)
def test_parts_that_messages_lacks_are_refused_by_their_path(part: TurnPart) -> None:
    part.field = "messages.0.content.1"
    with pytest.raises(UntranslatableError) as caught:
        written(user(Text("x"), part))
    assert caught.value.field == "messages.0.content.1"


def test_neutral_settings_are_left_out() -> None:
    body = written(
        sampling=Sampling(frequency_penalty=0, presence_penalty=0.0, logit_bias={}, answers=1, top_logprobs=0),
        parallel_tool_calls=True,
        cache_key="k",
        reasoning=ReasoningSettings(enabled=False, effort="none"),
        tool_choice=ToolChoice(NONE),
    )
    assert body == {"model": "claude-x", "max_tokens": 4096, "messages": [{"role": "user", "content": "hi"}]}


def test_leading_system_turns_are_the_system_prompt() -> None:
    body = written(system("a"), system("b", DEVELOPER), ASK, system("c", DEVELOPER))
    assert body["system"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert body["messages"] == [{"role": "user", "content": "hi"}, {"role": "system", "content": "c"}]


def test_last_of_system_turns_alone_is_the_user_s_message() -> None:
    body = written(system("a"), system("b"))
    assert (body["system"], body["messages"]) == ("a", [{"role": "user", "content": "b"}])
    assert "system" not in written(system("a"))


def test_system_turn_comes_between_a_user_s_message_and_an_answer() -> None:
    final_turn = assistant(Text("done"))
    entries = messages(ASK, system("a"), user(Text("b")), system("c"), final_turn, system("d"), user(Text("e")))
    assert entries == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "e"},
        {"role": "system", "content": "d"},
    ]


@pytest.mark.parametrize("model", ["claude-sonnet-4-5-20250929", "claude-opus-4-20250514", "claude-3-5-haiku-latest"])
def test_older_model_gets_all_system_turns_in_its_system_prompt(model: str) -> None:
    body = written(system("a"), ASK, system("b"), model=model)
    assert body["system"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert body["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("model", ["claude-opus-4-8", "claude-opus-4-8-20260528", "claude-opus-5", "any"])
def test_newer_model_gets_system_turns_in_their_places(model: str) -> None:
    assert [turn["role"] for turn in written(ASK, system("b"), model=model)["messages"]] == ["user", "system"]


def test_adjacent_turns_of_one_role_are_merged_with_results_first() -> None:
    entries = messages(
        ASK,
        assistant(ToolCall("a", "f", "{}")),
        assistant(ToolCall("b", "f", '{"x":1}')),
        user(Text("and")),
        user(ToolResult("a", [Text("1")])),
        user(ToolResult("b", [])),
    )
    assert [message["role"] for message in entries] == ["user", "assistant", "user"]
    assert [block["type"] for block in entries[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert entries[1]["content"][1]["input"] == {"x": 1}


def test_blank_text_and_empty_turns_are_left_out() -> None:
    assert messages(ASK, assistant(Text("")), user(Text(" \n"), Text("go"))) == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "go"}]}
    ]


def test_ids_of_calls_are_made_acceptable_and_unique() -> None:
    entries = messages(
        ASK,
        assistant(ToolCall("functions.f:0", "f", "{}"), ToolCall("", "f", "{}")),
        user(ToolResult("functions.f:0", []), ToolResult("", [])),
        assistant(ToolCall("functions.f:0", "f", "{}")),
        user(ToolResult("functions.f:0", [])),
    )
    calls = [block["id"] for message in entries[1::2] for block in message["content"]]
    results = [block["tool_use_id"] for message in entries[2::2] for block in message["content"]]
    assert calls == results == ["functions_f_0", "call_1", "functions_f_0_2"]


def test_name_of_a_past_call_is_made_acceptable() -> None:
    entries = messages(ASK, assistant(ToolCall("a", "agents.close", "{}")), user(ToolResult("a", [])))
    assert entries[1]["content"][0]["name"] == "agents_close"


def test_results_keep_images_documents_and_errors() -> None:
    image = Image(Source(BASE64, "iVBO", "image/png"), "high")
    document = Document(Source(URL, "http://x"), title="T")
    call = assistant(ToolCall("a", "f", "{}"))
    (block,) = messages(ASK, call, user(ToolResult("a", [Text("1"), image, document], is_error=True)))[2]["content"]
    assert block["is_error"] is True
    assert block["content"] == [
        {"type": "text", "text": "1"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
        {"type": "document", "source": {"type": "url", "url": "http://x"}, "title": "T"},
    ]


def test_plain_text_document_keeps_its_title() -> None:
    (block,) = messages(user(Document(Source(PLAIN_TEXT, "abc", "text/plain"), title="T")))[0]["content"]
    assert block["source"] == {"type": "text", "media_type": "text/plain", "data": "abc"}
    assert block["title"] == "T"


def test_name_of_a_participant_stands_before_the_text() -> None:
    assert messages(ConversationTurn(USER, [Text("hi")], name="Ann")) == [{"role": "user", "content": "[Ann]: hi"}]


def test_invalid_arguments_are_kept_as_text() -> None:
    call = assistant(ToolCall("a", "f", '{"x":'))
    assert messages(ASK, call, user(ToolResult("a", [])))[1]["content"][0]["input"] == {"INVALID_JSON": '{"x":'}


def test_custom_tool_becomes_a_function_of_one_text() -> None:
    custom = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
    body = written(
        ASK,
        assistant(ToolCall("a", "patch", "*** Begin", custom=True)),
        user(ToolResult("a", [Text("ok")], custom=True)),
        tools=[Tool("patch", "Edits.", custom=custom), Tool("plain", custom={"type": "text"})],
    )
    assert body["tools"][0]["input_schema"]["required"] == ["input"]
    assert body["tools"][0]["description"] == "Edits.\n\nThe input must match this lark grammar:\nstart: x"
    assert "description" not in body["tools"][1]
    assert body["messages"][1]["content"][0]["input"] == {"input": "*** Begin"}


def test_tools_keep_strictness_and_get_a_schema() -> None:
    tools = written(tools=[Tool("a", strict=True), Tool("b", schema={"properties": {}}, strict=False)])["tools"]
    assert tools == [
        {"name": "a", "input_schema": {"type": "object", "properties": {}}, "strict": True},
        {"name": "b", "input_schema": {"type": "object", "properties": {}}, "strict": False},
    ]


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice(AUTO), True, {"type": "auto"}),
        (ToolChoice(REQUIRED), None, {"type": "any"}),
        (ToolChoice(NAMED, "f"), False, {"type": "tool", "name": "f", "disable_parallel_tool_use": True}),
        (ToolChoice(NONE), False, {"type": "none"}),
    ],
)
def test_tool_choice(choice: ToolChoice | None, parallel: bool | None, expected: Json | None) -> None:
    body = written(tools=[TOOL], tool_choice=choice, parallel_tool_calls=parallel)
    assert body.get("tool_choice") == expected


def test_strict_schema_is_kept_and_another_one_is_closed() -> None:
    schema: Json = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "object"}},
            "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "object", "additionalProperties": True}]},
        },
        "$defs": {"c": {"properties": {}}},
        "default": {"type": "object"},
    }
    strict = written(output_format=OutputFormat(JSON_SCHEMA, schema, strict=True))
    assert strict["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    loose = written(output_format=OutputFormat(JSON_SCHEMA, schema, description="D"))["output_config"]["format"][
        "schema"
    ]
    assert loose == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "object", "additionalProperties": False}},
            "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "object", "additionalProperties": True}]},
        },
        "$defs": {"c": {"properties": {}, "additionalProperties": False}},
        "default": {"type": "object"},
        "additionalProperties": False,
        "description": "D",
    }
    assert "additionalProperties" not in schema


@pytest.mark.parametrize(
    ("settings", "members"),
    [
        (None, {}),
        (ReasoningSettings(enabled=False), {}),
        (ReasoningSettings(visible=True), {"thinking": {"type": "adaptive", "display": "summarized"}}),
        (ReasoningSettings(enabled=False, visible=True), {}),
        (ReasoningSettings(effort="high"), {"output_config": {"effort": "high"}}),
        (THINK, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        (
            ReasoningSettings(enabled=True, effort="minimal", visible=True),
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}},
        ),
        (
            ReasoningSettings(enabled=True, budget_tokens=2000, effort="low"),
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        ),
    ],
)
def test_reasoning_settings(settings: ReasoningSettings | None, members: Json) -> None:
    body = written(reasoning=settings, max_output_tokens=9)
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == members


@pytest.mark.parametrize(
    ("model", "is_adaptive"),
    [
        ("claude-opus-4-6", True),
        ("claude-sonnet-4-6", True),
        ("claude-sonnet-5", True),
        ("claude-sonnet-4-5-20250929", False),
        ("claude-opus-4-20250514", False),
        ("claude-3-7-sonnet-latest", False),
    ],
)
def test_models_without_adaptive_thinking_get_a_budget(model: str, is_adaptive: bool) -> None:
    settings = ReasoningSettings(enabled=True, effort="high", visible=True)
    body = written(model=model, reasoning=settings)
    budget = {"thinking": {"type": "enabled", "budget_tokens": 16384}}
    adaptive = {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}}
    thinking_members = {name: body[name] for name in ("thinking", "output_config") if name in body}
    assert thinking_members == (adaptive if is_adaptive else budget)
    assert body["max_tokens"] == (16384 if is_adaptive else 20480)


def test_budget_stays_below_the_cap_or_thinking_is_off() -> None:
    old = "claude-sonnet-4-5"
    assert written(model=old, reasoning=THINK, max_output_tokens=4000)["thinking"]["budget_tokens"] == 3000
    request = Request([ASK], reasoning=THINK, max_output_tokens=1000)
    assert "thinking" not in write_request(request, old, "VENDOR_A")
    assert request.reasoning_off == "the cap on output tokens leaves no room"


def test_default_cap_leaves_room_for_thinking() -> None:
    assert written()["max_tokens"] == 4096
    assert written(reasoning=THINK)["max_tokens"] == 16384
    budget = ReasoningSettings(enabled=True, budget_tokens=20000)
    assert written(reasoning=budget)["max_tokens"] == 24096
    assert written(reasoning=THINK, max_output_tokens=7)["max_tokens"] == 7


def thinks(*turns: ConversationTurn, **settings: Any) -> bool:
    """Return whether thinking is on; check that `reasoning_off` says so if it is off."""
    request = Request(list(turns), reasoning=THINK, tools=[TOOL], **settings)
    on = "thinking" in write_request(request, "m", "VENDOR_A")
    assert on is not bool(request.reasoning_off)
    return on


CALL = ToolCall("a", "f", "{}")
RESULT = ToolResult("a", [Text("1")])


def test_thinking_is_off_where_a_tool_loop_began_without_this_vendor_s_reasoning() -> None:
    foreign = Reasoning("Hm", "responses", {"id": "rs"})
    assert not thinks(ASK, assistant(CALL), user(RESULT))
    assert not thinks(ASK, assistant(foreign, CALL), user(RESULT))
    assert not thinks(ASK, assistant(CALL), user(RESULT, Text("and")))
    assert thinks(ASK, assistant(OWN, CALL), user(RESULT))
    assert thinks(ASK, assistant(CALL), user(RESULT), assistant(Text("done")), ASK)


def test_thinking_is_off_where_a_call_is_forced() -> None:
    assert not thinks(ASK, tool_choice=ToolChoice(REQUIRED))
    assert not thinks(ASK, tool_choice=ToolChoice(NAMED, "f"))
    assert thinks(ASK, tool_choice=ToolChoice(AUTO))


def test_thinking_is_off_where_the_caller_began_the_answer() -> None:
    assert not thinks(ASK, assistant(Text("So")))


def test_only_the_vendor_s_own_reasoning_is_returned_to_it() -> None:
    foreign = Reasoning("Hm", "responses", {"id": "rs"})
    entries = messages(ASK, assistant(OWN, foreign, Reasoning("Hm"), Text("a"), Refusal("b")), ASK)
    assert entries[1]["content"] == [OWN.native, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_prefill_ends_without_white_space() -> None:
    assert messages(ASK, assistant(Text("So \n")))[1]["content"] == "So"
    assert messages(ASK, assistant(Text("a "), Text("b ")))[1]["content"][1]["text"] == "b"


def test_cache_marks_are_kept() -> None:
    mark = {"type": "ephemeral"}
    call = ToolCall("a", "f", "{}", cache=mark)
    image = Image(Source(URL, "http://x"), cache=mark)
    body = written(
        user(Text("x", cache=mark), image),
        assistant(call),
        user(ToolResult("a", [Text("1", cache=mark)], cache=mark)),
        tools=[Tool("f", cache=mark)],
        cache=mark,
    )
    blocks = [block for message in body["messages"] for block in message["content"]]
    assert [block["cache_control"] for block in [*blocks, blocks[3]["content"][0], body["tools"][0], body]] == [
        mark
    ] * 7


def test_verbosity_is_left_out_and_told() -> None:
    request = Request([ASK], verbosity="low", fields={"verbosity": "text.verbosity"})
    check_request(write_request(request, "m", "VENDOR_A"))
    assert request.left_out == ["text.verbosity (low)"]


def test_user_and_stream_are_passed_on() -> None:
    body = written(user="u", stream=True, sampling=Sampling(top_k=5, top_p=0.5, temperature=1, stop=["x"]))
    assert body["metadata"] == {"user_id": "u"}
    assert (body["stream"], body["top_k"], body["top_p"], body["stop_sequences"]) == (True, 5, 0.5, ["x"])
