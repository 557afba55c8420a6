"""Requests: reading and writing one takes work in proportion to what it holds, from each dialect to each other one."""

from collections.abc import Callable
from typing import Any

import pytest

from policy.endpoints import Target
from proxy.dialects.counting.request_text import RequestTokens
from proxy.dialects.registry import Dialects
from tests.fakes.seals import SEAL_KEYS
from tests.proxy.dialects.samples import CHAT, MESSAGES, SLUG, VENDOR_A, VENDOR_B, VENDOR_C, received
from tests.proxy.growth.work import check_grows_linearly, counted

Json = dict[str, Any]
RESPONSES = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
OPENAI = Target("VENDOR_B", secret_id="s", target_model="gpt-x")
STRICT = {"input_schema": SCHEMA, "strict": True}
SEALED = "tollgate.1.messages.eyJ0eXBlIjoidGhpbmtpbmcifQ"


def chat(messages: list[Json], **more: Any) -> Json:
    return {"model": SLUG, "messages": [*messages, {"role": "user", "content": "go on"}], **more}


def messages(turns: list[Json], **more: Any) -> Json:
    return {
        "model": SLUG,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}, *turns, {"role": "user", "content": "go on"}],
        **more,
    }


def responses(items: list[Json], **more: Any) -> Json:
    return {"model": SLUG, "input": [*items, {"role": "user", "content": "go on"}], **more}


def call(id: str, name: str = "f") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": '{"q":"x"}'}}


def result(id: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": "found"}


def use(id: str) -> Json:
    return {"type": "tool_use", "id": id, "name": "f", "input": {"q": "x"}}


def used(id: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": "found"}


def item(id: str, kind: str = "function_call", **more: Any) -> Json:
    return {"type": kind, "call_id": id, "name": "f", "arguments": "{}"} | more


def output(id: str) -> Json:
    return {"type": "function_call_output", "call_id": id, "output": "found"}


def ids(n: int) -> list[str]:
    return [f"call_{number}" for number in range(n)]


def namespace(n: int, **more: Any) -> Json:
    return {"type": "namespace", "name": "s", "tools": [function(f"t{number}") for number in range(n)], **more}


def function(name: str) -> Json:
    return {"type": "function", "name": name, "description": "finds", "parameters": SCHEMA}


def chat_tools(n: int) -> list[Json]:
    return [{"type": "function", "function": {"name": f"t{number}", "parameters": SCHEMA}} for number in range(n)]


def long_names(n: int) -> list[str]:
    return [f"{'x' * 80}{number}" for number in range(n)]


CHAT_BODIES: dict[str, Callable[[int], Json]] = {
    "tools": lambda n: chat([], tools=chat_tools(n)),
    "tools with long names": lambda n: chat(
        [{"role": "assistant", "tool_calls": [call(f"c{name}", name) for name in long_names(n)]}],
        tools=[{"type": "function", "function": {"name": name}} for name in long_names(n)],
    ),
    "turns": lambda n: chat([{"role": role, "content": "text"} for role in ("user", "assistant") * (n // 2)]),
    "turns of one role": lambda n: chat([{"role": "system", "content": "text"}] * n),
    "parts": lambda n: chat([{"role": "user", "content": [{"type": "text", "text": "text"}] * n}]),
    "calls of one turn": lambda n: chat(
        [{"role": "assistant", "tool_calls": list(map(call, ids(n)))}, *map(result, ids(n))]
    ),
    "calls of one id": lambda n: chat([{"role": "assistant", "tool_calls": [call("c")] * n}, *[result("c")] * n]),
    "calls without results": lambda n: chat([{"role": "assistant", "tool_calls": list(map(call, ids(n)))}]),
    "results without calls": lambda n: chat(list(map(result, ids(n)))),
    "adjacent turns with calls": lambda n: chat(
        [{"role": "assistant", "tool_calls": [call(id)]} for id in ids(n)] + list(map(result, ids(n)))
    ),
    "details of reasoning": lambda n: chat(
        [
            {
                "role": "assistant",
                "content": "text",
                "reasoning_details": [{"type": "reasoning.text", "text": "so", "index": number} for number in range(n)],
            }
        ]
    ),
    "sealed reasoning": lambda n: chat(
        [
            {
                "role": "assistant",
                "content": "text",
                "reasoning_details": [{"type": "reasoning.encrypted", "data": SEALED}] * n,
            }
        ]
    ),
    "names": lambda n: chat([{"role": "user", "name": f"n{number}", "content": "x"} for number in range(n)]),
    "stop sequences": lambda n: chat([], stop=[f"s{number}" for number in range(n)]),
    "members": lambda n: chat([], response_format=schema(n)),
}


def schema(n: int) -> Json:
    inner = {"type": "object", "properties": {f"p{number}": {"type": "object"} for number in range(n)}}
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": inner}}


MESSAGES_BODIES: dict[str, Callable[[int], Json]] = {
    "tools": lambda n: messages([], tools=[{"name": f"t{number}", "input_schema": SCHEMA} for number in range(n)]),
    "strict tools": lambda n: messages([], tools=[STRICT | {"name": f"t{number}"} for number in range(n)]),
    "long numbers": lambda n: messages([], tools=[{"name": "f", "input_schema": {"enum": [1.5e300] * n}}]),
    "tools with long names": lambda n: messages(
        [], tools=[{"name": name, "input_schema": SCHEMA} for name in long_names(n)]
    ),
    "turns": lambda n: messages([{"role": role, "content": "text"} for role in ("assistant", "user") * (n // 2)]),
    "blocks": lambda n: messages([{"role": "user", "content": [{"type": "text", "text": "text"}] * n}]),
    "system blocks": lambda n: messages([], system=[{"type": "text", "text": "text"}] * n),
    "calls of one turn": lambda n: messages(
        [{"role": "assistant", "content": list(map(use, ids(n)))}, {"role": "user", "content": list(map(used, ids(n)))}]
    ),
    "thinking": lambda n: messages(
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "s"}] * n}]
    ),
    "sealed thinking": lambda n: messages(
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": SEALED}] * n}]
    ),
    "documents": lambda n: messages(
        [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "text"}}] * n}]
    ),
}
RESPONSES_BODIES: dict[str, Callable[[int], Json]] = {
    "tools": lambda n: responses([], tools=[function(f"t{number}") for number in range(n)]),
    "tools with long names": lambda n: responses([], tools=list(map(function, long_names(n)))),
    "tools in a namespace": lambda n: responses([], tools=[namespace(n)]),
    "tools in a described namespace": lambda n: responses([], tools=[namespace(n, description="d" * n)]),
    "namespaces": lambda n: responses([], tools=[namespace(1, name=f"s{number}") for number in range(n)]),
    "additional tools": lambda n: responses(
        [{"type": "additional_tools", "tools": [function(f"t{number}")]} for number in range(n)]
    ),
    "tools that are left out": lambda n: responses([], tools=[function("f"), *[{"type": "web_search"}] * n]),
    "items": lambda n: responses([{"role": role, "content": "text"} for role in ("user", "assistant") * (n // 2)]),
    "content": lambda n: responses([{"role": "user", "content": [{"type": "input_text", "text": "text"}] * n}]),
    "calls, then outputs": lambda n: responses([*map(item, ids(n)), *map(output, ids(n))]),
    "calls and outputs in turn": lambda n: responses([one for id in ids(n) for one in (item(id), output(id))]),
    "outputs, then calls": lambda n: responses([*map(output, ids(n)), *map(item, ids(n))]),
    "reasoning": lambda n: responses([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}] * n),
    "summaries": lambda n: responses([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}] * n}]),
    "allowed tools": lambda n: responses(
        [], tools=[function(f"t{number}") for number in range(n)], tool_choice=allowed(n)
    ),
}


def allowed(n: int) -> Json:
    tools = [{"type": "function", "name": f"t{number}"} for number in range(n)]
    return {"type": "allowed_tools", "mode": "auto", "tools": tools}


CASES = [
    pytest.param(path, target, build, id=f"{name} of {path} to {target.provider}")
    for path, bodies, targets in (
        (CHAT, CHAT_BODIES, (VENDOR_A,)),
        (MESSAGES, MESSAGES_BODIES, (VENDOR_B, VENDOR_C)),
        (RESPONSES, RESPONSES_BODIES, (VENDOR_A, VENDOR_C)),
    )
    for target in targets
    for name, build in bodies.items()
]


@pytest.mark.parametrize(("path", "target", "build"), CASES)
def test_translation_grows_with_the_request(path: str, target: Target, build: Callable[[int], Json]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        request = received(build(size), path)
        request.json = counted(request.json)
        return lambda: Dialects(lambda: 0.0, SEAL_KEYS).first_attempt(request, target)

    check_grows_linearly(prepare)


@pytest.mark.parametrize("build", MESSAGES_BODIES.values(), ids=MESSAGES_BODIES)
def test_translation_to_responses_grows_with_the_request(build: Callable[[int], Json]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        body = build(size) | {"thinking": {"type": "adaptive"}}
        request = received(body, MESSAGES)
        request.json = counted(request.json)
        return lambda: Dialects(lambda: 0.0, SEAL_KEYS).first_attempt(request, OPENAI)

    check_grows_linearly(prepare)


@pytest.mark.parametrize(
    ("path", "target", "build"),
    [
        pytest.param(CHAT, VENDOR_B, CHAT_BODIES["sealed reasoning"], id="chat"),
        pytest.param(MESSAGES, VENDOR_A, MESSAGES_BODIES["sealed thinking"], id="messages"),
    ],
)
def test_unsealing_grows_with_the_request(path: str, target: Target, build: Callable[[int], Json]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        request = received(build(size), path)
        request.json = counted(request.json)
        return lambda: Dialects(lambda: 0.0, SEAL_KEYS).first_attempt(request, target)

    check_grows_linearly(prepare)


@pytest.mark.parametrize(
    ("path", "build"),
    [
        *((CHAT, build) for build in CHAT_BODIES.values()),
        *((MESSAGES, build) for build in MESSAGES_BODIES.values()),
        *((RESPONSES, build) for build in RESPONSES_BODIES.values()),
    ],
)
def test_counting_grows_with_the_request(path: str, build: Callable[[int], Json]) -> None:
    def prepare(size: int) -> Callable[[], object]:
        request = received(build(size), path)
        return lambda: RequestTokens(request).tokens

    check_grows_linearly(prepare)
