"""Chat Completions requests in the form in which the dialect's writer says them, and their check by the SDK's types."""

from collections.abc import Iterator
from typing import Any

import orjson
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from pydantic import TypeAdapter

Json = dict[str, Any]

_PLAIN: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
_STREAMED: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)
_OF_OTHER_VENDORS = frozenset(("reasoning_content", "reasoning", "reasoning_details", "extra_content"))


def validated(body: Json) -> Json:
    """`body`, after a check that it has only members of the SDK's types and of other vendors' reasoning."""
    sdk_body = orjson.loads(orjson.dumps(body))
    for message in sdk_body["messages"]:
        for holder in (message, *message.get("tool_calls", ())):
            for name in _OF_OTHER_VENDORS & holder.keys():
                del holder[name]
    adapter = _STREAMED if sdk_body.get("stream") else _PLAIN
    _exhaust(adapter.validate_python(sdk_body, extra="forbid"))
    return body


def _exhaust(value: Any) -> None:
    """Read all of a validated value: pydantic checks an `Iterable` only as it is read."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, str | bytes) or not isinstance(value, list | Iterator):
        return
    for inner in value:
        _exhaust(inner)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
WORDS = st.sampled_from(["weather", "now", "patch"])
SCHEMAS = st.just({"type": "object", "properties": {"city": {"type": "string"}}})
EXTRA = st.just({"google": {"thought_signature": "c2ln"}})


def members(required: Json | None = None, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(required or {}, optional=optional)


IMAGES = members(
    {"type": st.just("image_url")}
    | {
        "image_url": members(
            {"url": st.sampled_from(["https://h/x.png", "data:image/png;base64,iVBOR"])},
            detail=st.sampled_from(["low", "high", "auto"]),
        )
    }
)
FILES = st.builds(
    lambda name: {"type": "file", "file": {"filename": name, "file_data": "data:application/pdf;base64,JVB"}},
    TEXTS.filter(bool),
)
AUDIO = st.just({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}})
TEXT_PARTS = st.builds(lambda text: {"type": "text", "text": text}, TEXTS)
SEVERAL_TEXTS = st.lists(TEXT_PARTS, min_size=2, max_size=3)
CONTENTS = (
    TEXTS
    | SEVERAL_TEXTS
    | st.tuples(IMAGES | FILES | AUDIO, st.lists(IMAGES | TEXT_PARTS, max_size=2)).map(lambda pair: [pair[0], *pair[1]])
)
SYSTEM = members({"role": st.sampled_from(["system", "developer"]), "content": TEXTS | SEVERAL_TEXTS}, name=WORDS)
USER = members({"role": st.just("user"), "content": CONTENTS}, name=WORDS)
REASONING: st.SearchStrategy[Json] = st.sampled_from(
    [
        {},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        {"extra_content": {"google": 1}},
    ]
)
ARGUMENTS = st.sampled_from(["", "{}", '{"a":1}', "{bad"])


@st.composite
def exchanges(draw: st.DrawFn) -> list[Json]:
    """An assistant's message, and the results of its calls."""
    calls = [draw(_call(f"c{number}")) for number in range(draw(st.integers(0, 3)))]
    text = draw(TEXTS)
    message: Json = {"role": "assistant", "content": draw(st.sampled_from([None, text])) if calls else text}
    message |= draw(REASONING)
    if draw(st.booleans()):
        message |= {"content": None, "refusal": text}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": draw(TEXTS)} for call in calls]
    return [message | ({"tool_calls": calls} if calls else {}), *results]


@st.composite
def _call(draw: st.DrawFn, id: str) -> Json:
    if draw(st.booleans()):
        return {"id": id, "type": "custom", "custom": {"name": draw(WORDS), "input": draw(TEXTS)}}
    call = {"id": id, "type": "function", "function": {"name": draw(WORDS), "arguments": draw(ARGUMENTS)}}
    return call | ({"extra_content": draw(EXTRA)} if draw(st.booleans()) else {})


TOOLS = st.one_of(
    st.builds(
        lambda inner: {"type": "function", "function": inner},
        members({"name": WORDS}, description=TEXTS, parameters=SCHEMAS, strict=st.booleans()),
    ),
    st.builds(
        lambda inner: {"type": "custom", "custom": inner},
        members(
            {"name": WORDS},
            description=TEXTS,
            format=st.just({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: x"}}),
        ),
    ),
)
FORMATS = st.just({"type": "json_object"}) | st.builds(
    lambda inner: {"type": "json_schema", "json_schema": inner},
    members({"name": WORDS}, description=TEXTS, schema=SCHEMAS, strict=st.booleans()),
)
SETTINGS = members(
    max_completion_tokens=st.integers(1, 9),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    stop=st.lists(TEXTS, min_size=1, max_size=2),
    seed=st.integers(0, 9),
    frequency_penalty=st.floats(0.1, 2),
    presence_penalty=st.floats(-2, -0.1),
    logit_bias=st.just({"1": 5}),
    n=st.integers(2, 3),
    logprobs=st.just(True),
    top_logprobs=st.integers(1, 3),
    response_format=FORMATS,
    reasoning_effort=st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
    verbosity=st.sampled_from(["low", "high"]),
    service_tier=st.sampled_from(["flex", "priority"]),
    prompt_cache_key=TEXTS,
    user=TEXTS,
)


@st.composite
def requests(draw: st.DrawFn) -> Json:
    """A request that the writer writes for `VENDOR_B` as it was read."""
    body: Json = {"model": "gpt-x", "messages": draw(st.lists(SYSTEM, max_size=2))}
    for _ in range(draw(st.integers(0, 2))):
        body["messages"] += [draw(USER), *draw(exchanges())]
    body["messages"].append(draw(USER | SYSTEM))
    body |= draw(SETTINGS)
    if draw(st.booleans()) and "user" in body:
        body["safety_identifier"] = body.pop("user")
    if draw(st.booleans()):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if draw(st.booleans()):
        body["tools"] = draw(st.lists(TOOLS, min_size=1, max_size=3, unique_by=lambda tool: tool[tool["type"]]["name"]))
        tool = body["tools"][0]
        kind = tool["type"]
        named_choice = {"type": kind, kind: {"name": tool[kind]["name"]}}
        body["tool_choice"] = draw(st.sampled_from(["auto", "none", "required", named_choice]))
        body["parallel_tool_calls"] = draw(st.booleans())
    return body


REQUESTS = requests()
