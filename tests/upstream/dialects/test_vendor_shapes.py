"""The scripted vendors' answers have the shapes of the vendors' published SDK types, strictly, in every scenario."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse as MessagesErrorResponse
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject

from tests.upstream.dialects import chat, messages, responses
from tests.upstream.dialects.scenarios import (
    FAILURES,
    SCENARIOS,
    STOP_SEQUENCE,
    Answer,
    Failure,
    Json,
    Prompt,
    Refusal,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    respond,
)
from tests.upstream.dialects.shapes import Mismatch, mismatches
from tests.upstream.dialects.vendor import DIALECTS, Dialect, listing

REASONING = {"effort": "high", "summary": "auto"}
BODY: Json = {"stream_options": {"include_usage": True}, "reasoning": REASONING, "include": [responses.ENCRYPTED]}
EXTENSIONS = {"reasoning_content"}  # compatible servers have it; the SDK's types do not
SAYS_SOMETHING = sorted(SCENARIOS)


def prompt_of(scenario: str, *more: Any, **members: Any) -> Prompt:
    parts = (("user", Text(f"[[scenario:{scenario}]]")), *more)
    tool = Tool("get_weather", None, {"type": "object", "properties": {"city": {"type": "string"}}}, False)
    defaults: Json = {"tools": (tool,), "thinks": True, "limits": {"stop": [STOP_SEQUENCE]}}
    return Prompt("m", False, parts, **(defaults | members))


def answer_of(prompt: Prompt) -> Answer:
    answer = respond(prompt)
    assert isinstance(answer, Answer)
    return answer


def check(value: Json, kind: Any) -> None:
    problems = [one for one in mismatches(value, kind) if one.path.rpartition(".")[2] not in EXTENSIONS]
    assert not problems, (problems, value)


@pytest.mark.parametrize("scenario", SAYS_SOMETHING)
@pytest.mark.parametrize(
    ("render", "kind"),
    [(chat.whole, ChatCompletion), (messages.whole, Message), (responses.whole, Response)],
    ids=["chat", "messages", "responses"],
)
def test_whole_answer_has_the_shape_of_the_sdk(
    render: Callable[[Json, Prompt, Answer], Json], kind: Any, scenario: str
) -> None:
    prompt = prompt_of(scenario)
    check(render(BODY, prompt, answer_of(prompt)), kind)


def streamed(dialect: str, prompt: Prompt) -> Iterator[Json]:
    """The events of a stream, without `ping`s and errors, which the SDKs' types leave out."""
    render = {"chat": chat.chunks, "messages": messages.events, "responses": responses.events}[dialect]
    events = render(BODY, prompt, answer_of(prompt))
    return (event for event in events if event.get("type") != "ping" and "error" not in event)


@pytest.mark.parametrize("scenario", SAYS_SOMETHING)
@pytest.mark.parametrize(
    ("dialect", "kind"),
    [("chat", ChatCompletionChunk), ("messages", RawMessageStreamEvent), ("responses", ResponseStreamEvent)],
)
def test_each_streamed_event_has_the_shape_of_the_sdk(dialect: str, kind: Any, scenario: str) -> None:
    for event in streamed(dialect, prompt_of(scenario)):
        check(event, kind)


@pytest.mark.parametrize("failure", FAILURES)
def test_errors_have_the_shape_of_the_sdks(failure: str) -> None:
    for failure_answer in (chat.failed(FAILURES[failure]), responses.failed(FAILURES[failure])):
        check(failure_answer[1]["error"], ErrorObject)
    check(messages.failed(FAILURES[failure])[1], MessagesErrorResponse)


def test_listings_have_the_shape_of_the_sdks() -> None:
    check(listing(False)["data"][0], Model)
    check(listing(True)["data"][0], ModelInfo)


# --- equal content --------------------------------------------------------------------------------------------------


def said(dialect: str, prompt: Prompt) -> Any:
    """The text, the thoughts, the tool calls and the billed tokens of a whole answer, read from its dialect."""
    render = {"chat": chat.whole, "messages": messages.whole, "responses": responses.whole}[dialect]
    return READERS[dialect](render(BODY, prompt, answer_of(prompt)))


def _said_in_chat(body: Json) -> Any:
    message = body["choices"][0]["message"]
    usage = body["usage"]
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
    tokens = usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    return message["content"] or message["refusal"] or "", message.get("reasoning_content", ""), calls, tokens


def _said_in_messages(body: Json) -> Any:
    blocks = body["content"]
    usage = body["usage"]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    cached = usage["cache_read_input_tokens"]
    tokens = usage["input_tokens"] + cached, usage["output_tokens"], cached
    return "".join(texts) or (body["stop_details"] or {}).get("explanation", ""), "".join(thoughts), calls, tokens


def _said_in_responses(body: Json) -> Any:
    parts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
    texts = [part.get("text") or part.get("refusal") for part in parts]
    summaries = [part["text"] for item in body["output"] if item["type"] == "reasoning" for part in item["summary"]]
    items = [item for item in body["output"] if item["type"] == "function_call"]
    calls = [(item["name"], json.loads(item["arguments"])) for item in items]
    usage = body["usage"]
    tokens = usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return "".join(texts), "".join(summaries), calls, tokens


READERS: dict[str, Callable[[Json], Any]] = {
    "chat": _said_in_chat,
    "messages": _said_in_messages,
    "responses": _said_in_responses,
}


@pytest.mark.parametrize("scenario", SAYS_SOMETHING)
def test_content_and_tokens_are_equal_in_every_dialect(scenario: str) -> None:
    prompt = prompt_of(scenario)
    parts = answer_of(prompt).parts
    texts = "".join(part.text for part in parts if isinstance(part, Text | Refusal))
    thoughts = "".join(part.text for part in parts if isinstance(part, Thinking))
    calls = [(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)]
    expected = (texts, thoughts, calls, tuple(answer_of(prompt).tokens))
    assert [said(dialect, prompt) for dialect in READERS] == [expected] * 3


def test_scenarios_cover_every_kind_of_answer() -> None:
    answers = [answer_of(prompt_of(scenario)) for scenario in SCENARIOS]
    assert {answer.stop for answer in answers} == {"end", "tools", "length", "stop", "refusal"}
    assert len({answer.tokens for answer in answers}) == len(answers), "two scenarios bill the same"


def test_tool_loop_ends_with_what_the_tools_said() -> None:
    call = ("assistant", ToolCall("c1", "get_weather", {"city": "Paris"}))
    prompt = prompt_of("tools", call, ("tool", ToolResult("c1", (Text("21 degrees"),))))
    [part] = answer_of(prompt).parts
    assert isinstance(part, Text)
    assert "21 degrees" in part.text


def test_script_goes_on_when_all_calls_have_results_that_say_what_it_expects() -> None:
    turns = [
        {"expects": [], "says": "Reading.", "calls": [["weather", {"city": "Rome"}], ["weather", {"city": "Bonn"}]]},
        {"expects": ["Hello"], "says": "Done.", "calls": []},
    ]

    def answered(*results: str) -> Answer | Failure:
        result_parts = [("tool", ToolResult(str(number), (Text(text),))) for number, text in enumerate(results)]
        script = ("user", Text(f"[[scenario:scripted]] {json.dumps(turns)}"))
        return respond(prompt_of("plain", script, *result_parts))

    first = answered()
    assert isinstance(first, Answer)
    calls = [part for part in first.parts if isinstance(part, ToolCall)]
    assert [(call.name, call.arguments["city"]) for call in calls] == [("get_weather", "Rome"), ("get_weather", "Bonn")]
    assert calls[0].id != calls[1].id
    assert answered("Hello", "no such file").parts[-1] == Text("Done.")  # type: ignore[union-attr]
    for lacking in (("Bye", "no such file"), ("Hello",)):
        assert isinstance(answered(*lacking), Failure)


def test_responses_calls_a_tool_of_a_namespace_by_both_names() -> None:
    function = {"type": "function", "name": "close_agent", "strict": False, "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [function]}
    turns = [{"expects": [], "says": "Closing.", "calls": [["close_agent", {}]]}]
    message = {"role": "user", "content": f"[[scenario:scripted]] {json.dumps(turns)}"}
    body: Json = {"model": "m", "input": [message], "tools": [space]}
    prompt = responses.read(body)
    [_, call] = responses.whole(body, prompt, answer_of(prompt))["output"]
    assert (call["namespace"], call["name"]) == ("agents", "close_agent")


def test_custom_tool_is_called_with_plain_text_in_both_dialects_of_openai() -> None:
    turns = [{"expects": [], "says": "Patching.", "calls": [["apply_patch", {"input": "*** Begin Patch"}]]}]
    message = {"role": "user", "content": f"[[scenario:scripted]] {json.dumps(turns)}"}
    body: Json = {"model": "m", "input": [message], "tools": [{"type": "custom", "name": "apply_patch"}]}
    prompt = responses.read(body)
    whole = responses.whole(body, prompt, answer_of(prompt))
    check(whole, Response)
    assert whole["output"][-1]["input"] == "*** Begin Patch"
    for event in responses.events(body, prompt, answer_of(prompt)):
        check(event, ResponseStreamEvent)
    body = {"model": "m", "messages": [message], "tools": [{"type": "custom", "custom": {"name": "apply_patch"}}]}
    prompt = chat.read(body)
    completion = chat.whole(body, prompt, answer_of(prompt))
    check(completion, ChatCompletion)
    assert completion["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == "*** Begin Patch"


def test_each_turn_of_a_conversation_has_another_id() -> None:
    turn = ("assistant", Text("42"))
    for dialect in DIALECTS:
        prompts = (prompt_of("plain"), prompt_of("plain", turn))
        first, second = (dialect.whole(BODY, prompt, answer_of(prompt))["id"] for prompt in prompts)
        assert first != second


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_frames_are_events_that_end_the_stream(dialect: Dialect) -> None:
    prompt = prompt_of("plain")
    frames = list(dialect.frames(BODY, prompt, answer_of(prompt)))
    assert all(frame.endswith(b"\n\n") and b"data: " in frame for frame in frames)
    ending = {"chat": b"data: [DONE]", "messages": b"event: message_stop", "responses": b"event: response.completed"}
    assert frames[-1].startswith(ending[dialect.name])


# --- the comparison itself can fail ---------------------------------------------------------------------------------


def test_differences_from_an_sdk_type_are_found() -> None:
    prompt = prompt_of("plain")
    body = messages.whole(BODY, prompt, answer_of(prompt))
    usage = {name: value for name, value in body["usage"].items() if name != "input_tokens"}
    wrong = body | {"usage": usage, "stop_reason": "stop", "choices": []}
    wrong["content"] = [{"type": "text", "text": 1}]
    assert {one.path for one in mismatches(wrong, Message)} == {
        "usage.input_tokens",
        "stop_reason",
        "choices",
        "content.0.text",
    }
    assert mismatches({"a": True}, dict[str, int]) == [Mismatch("a", "must be int, not True")]
