"""The stock SDKs and a real llama.cpp server, through one slug: what the server says arrives, and is billed.

The server's model is random and sampled at temperature 0, so an answer is noise that a direct call repeats.
`make clients` runs this; the name keeps it out of `make test`.
"""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import anthropic
import pytest

from tests.clients.llama_cpp.asking import ASKED, WAYS, ask_chat
from tests.clients.llama_cpp.server import MODEL, MUST_CALL, THINKS, llama_server, write_model
from tests.clients.llama_cpp.targets import TARGETS, Scenario, Site, scenario_of, site_of

Json = dict[str, Any]
SCHEMA: Json = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["done", "size"],
    "additionalProperties": False,
}
WEATHER: Json = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
SHORT: dict[str, Json] = {
    "chat": {"max_tokens": 60},
    "messages": {"max_tokens": 60},
    "responses": {"max_output_tokens": 60},
}
SHOWN: dict[str, Json] = {
    "chat": {"reasoning_effort": "high"},
    "messages": {"thinking": {"type": "adaptive"}},
    "responses": {"reasoning": {"summary": "auto"}},
}
STRUCTURED: dict[str, Json] = {
    "chat": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
    },
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "s", "strict": True, "schema": SCHEMA}}},
}
MUST: dict[str, Json] = {
    "chat": {
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
        "tool_choice": "required",
    },
    "messages": {"tools": [{"name": "weather", "input_schema": WEATHER}], "tool_choice": {"type": "any"}},
    "responses": {
        "tools": [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}],
        "tool_choice": "required",
    },
}
IGNORES_SCHEMAS = {("messages", "PLATFORM"), ("responses", "PLATFORM"), ("responses", "VENDOR_B")}
"""Calls that pass to llama.cpp in a dialect in which it ignores the schema."""

all_ways = pytest.mark.parametrize("way", WAYS)
all_targets = pytest.mark.parametrize("target", TARGETS)
both_forms = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """A site for each template."""
    place = tmp_path_factory.mktemp("llama")
    model = place / "random.gguf"
    write_model(model)
    with (
        llama_server(model, THINKS) as thinks,
        llama_server(model, MUST_CALL) as calls,
        site_of(thinks, place / "thinks") as first,
        site_of(calls, place / "calls") as second,
    ):
        yield {THINKS: first, MUST_CALL: second}


@pytest.fixture
async def thinks(sites: dict[str, Site], session: aiohttp.ClientSession, numbers: Iterator[int]) -> Scenario:
    return await scenario_of(sites[THINKS], session, f"llama-{next(numbers)}")


@pytest.fixture
async def must_call(sites: dict[str, Site], session: aiohttp.ClientSession, numbers: Iterator[int]) -> Scenario:
    return await scenario_of(sites[MUST_CALL], session, f"llama-{next(numbers)}")


def to(scenario: Scenario, target: str, stream: bool) -> tuple[str, str, str, bool]:
    return scenario.stage.product.proxy, scenario.key, scenario.slug(target), stream


@all_ways
@all_targets
@both_forms
async def test_text_arrives_and_is_billed(thinks: Scenario, way: str, target: str, stream: bool) -> None:
    direct = await ask_chat(thinks.site.url, "any", MODEL, False, max_tokens=60)
    reply = await WAYS[way](*to(thinks, target, stream), **SHORT[way])
    assert reply.text == direct.text != ""
    assert (reply.input_tokens, reply.output_tokens) == (direct.input_tokens, direct.output_tokens)
    assert await thinks.billed() == {"inputTokens": reply.input_tokens, "outputTokens": reply.output_tokens}


@all_ways
@all_targets
@both_forms
async def test_thoughts_arrive_where_they_are_asked_for(thinks: Scenario, way: str, target: str, stream: bool) -> None:
    direct = await ask_chat(thinks.site.url, "any", MODEL, False, max_tokens=60, temperature=1)
    reply = await WAYS[way](*to(thinks, target, stream), **SHORT[way], **SHOWN[way], temperature=1)
    assert reply.thinking == direct.thinking != "", "the seed of the server is fixed"
    assert reply.text == direct.text


@pytest.mark.parametrize("target", ["VENDOR_B", "chat", "responses"])
@both_forms
async def test_messages_callers_without_thinking_get_the_text_first(
    thinks: Scenario, target: str, stream: bool
) -> None:
    reply = await WAYS["messages"](*to(thinks, target, stream), **SHORT["messages"])
    assert reply.thinking == ""
    assert reply.text


@all_ways
@pytest.mark.parametrize("target", ["PLATFORM", "VENDOR_B", "chat"])
@both_forms
async def test_structured_output_follows_the_schema(thinks: Scenario, way: str, target: str, stream: bool) -> None:
    if (way, target) in IGNORES_SCHEMAS:
        pytest.skip("llama.cpp ignores the schema in this dialect")
    reply = await WAYS[way](*to(thinks, target, stream), **STRUCTURED[way])
    answer = json.loads(reply.text)
    assert (type(answer["done"]), answer["size"] in ("small", "large")) == (bool, True)
    assert await thinks.billed() == {"inputTokens": reply.input_tokens, "outputTokens": reply.output_tokens}


@all_ways
@all_targets
@both_forms
async def test_required_tool_is_called_and_its_result_returned(
    must_call: Scenario, way: str, target: str, stream: bool
) -> None:
    first = await WAYS[way](*to(must_call, target, stream), **MUST[way])
    [(name, arguments)] = first.calls
    assert (name, arguments["city"] in ("Paris", "Rome")) == ("weather", True)
    turns = [ASKED, *first.turn, *result_of(way, first.turn)]
    more = {"input" if way == "responses" else "messages": turns}
    second = await WAYS[way](*to(must_call, target, stream), **MUST[way], **more)
    assert [name for name, _ in second.calls] == ["weather"]
    assert second.input_tokens > first.input_tokens, "the result did not arrive"
    assert await must_call.billed(2) == {
        "inputTokens": first.input_tokens + second.input_tokens,
        "outputTokens": first.output_tokens + second.output_tokens,
    }


def result_of(way: str, turn: list[Any]) -> list[Json]:
    """The result of the call that the turn holds."""
    if way == "chat":
        return [{"role": "tool", "tool_call_id": turn[0]["tool_calls"][0]["id"], "content": "21 degrees"}]
    if way == "messages":
        [use] = [block for block in turn[0]["content"] if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "21 degrees"}
        return [{"role": "user", "content": [result]}]
    [call] = [item for item in turn if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"}]


@all_targets
async def test_tokens_are_counted(thinks: Scenario, target: str) -> None:
    async def counted(url: str, key: str, model: str) -> int:
        async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=30) as client:
            return (await client.messages.count_tokens(model=model, messages=[ASKED])).input_tokens

    through = await counted(thinks.stage.product.proxy, thinks.key, thinks.slug(target))
    if target in ("PLATFORM", "VENDOR_A"):
        assert through == await counted(thinks.site.url, "any", MODEL)
    else:
        assert through > 0
