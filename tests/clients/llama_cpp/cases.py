"""The stock SDKs and a real llama.cpp server, through one slug: what the server says arrives, and is billed.

The server's model is random and sampled at temperature 0, so an answer is noise that a direct call repeats.
`make clients` runs this; the name keeps it out of `make test`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.clients.llama_cpp.server import MODEL, MUST_CALL, THINKS, llama_server, write_model
from tests.journeys.conftest import Stage, Workspace, stage_of
from tests.journeys.product import Product
from tests.upstream import ScriptedUpstream

PROVIDERS = ("PLATFORM", "VENDOR_A", "VENDOR_B")
"""Chat Completions, Messages, Chat Completions and Responses: llama.cpp's server speaks all three."""
STREAMED = (False, True)
QUESTION = "How many hours has a day?"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["done", "size"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass
class Said:
    """One answer, told in no dialect."""

    text: str
    thinking: str
    calls: list[tuple[str, Any]]
    input_tokens: int
    """All of them, cached ones too."""
    output_tokens: int


@dataclass
class Site:
    """A server whose model uses one template, and a product with a slug for it at each provider."""

    url: str
    workspace: Workspace


@dataclass
class Scenario:
    site: Site
    stage: Stage
    key: str

    def slug(self, provider: str) -> str:
        return f"acme/{provider.lower()}"

    async def billed(self, calls: int = 1) -> dict[str, int]:
        """The tokens of all events, without the cached input: the server caches what a direct call asked before."""
        events = await self.stage.events_of(self.stage.name, calls)
        assert len(events) == calls
        return {name: sum(event["tokens"][name] for event in events) for name in ("inputTokens", "outputTokens")}


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """A site for each template."""
    place = tmp_path_factory.mktemp("llama")
    write_model(place / "random.gguf")
    with llama_server(place / "random.gguf", THINKS) as thinks, llama_server(place / "random.gguf", MUST_CALL) as calls:
        products: list[Product] = []
        try:
            found = {}
            for template, url in ((THINKS, thinks), (MUST_CALL, calls)):
                settings = {"TOLLGATE_VENDOR_A_BASE_URL": url, "TOLLGATE_VENDOR_B_BASE_URL": url}
                products.append(Product(place / template, workers=1, settings=settings))
                products[-1].start()
                found[template] = Site(url, Workspace(products[-1]))
            yield found
        finally:
            for product in products:
                product.kill()


@pytest.fixture
async def thinks(sites: dict[str, Site], session: aiohttp.ClientSession, numbers: Iterator[int]) -> Scenario:
    return await _scenario(sites[THINKS], session, f"llama-{next(numbers)}")


@pytest.fixture
async def must_call(sites: dict[str, Site], session: aiohttp.ClientSession, numbers: Iterator[int]) -> Scenario:
    return await _scenario(sites[MUST_CALL], session, f"llama-{next(numbers)}")


async def _scenario(site: Site, session: aiohttp.ClientSession, name: str) -> Scenario:
    stage = stage_of(site.workspace, session, ScriptedUpstream(), name)
    scenario = Scenario(site, stage, "")
    _, listed = await stage.operator.ask("GET", "/v1/gateway/endpoints")
    if not listed["items"]:
        secret = await stage.operator.call("POST", "/v1/secrets", {"name": "llama", "value": "any"})
        vendor = {"secret_id": secret["id"], "target_model": MODEL}
        targets: dict[str, dict[str, Any]] = dict.fromkeys(PROVIDERS, vendor)
        targets["PLATFORM"] = {"model_id": await stage.operator.model("llama", site.url), "target_model": MODEL}
        for provider, target in targets.items():
            body = {"slug": scenario.slug(provider), "targets": [{"provider": provider, **target}]}
            await stage.operator.call("POST", "/v1/gateway/endpoints", body)
    group = await stage.operator.group(stage.name, [{"slug": scenario.slug(provider)} for provider in PROVIDERS])
    scenario.key = await stage.operator.key(group)
    return scenario


# --- the three ways to ask ------------------------------------------------------------------------------------------


async def ask_chat(url: str, key: str, model: str, stream: bool, **more: Any) -> Said:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30) as client:
        question = [{"role": "user", "content": QUESTION}]
        request: dict[str, Any] = {"model": model, "messages": question, "max_tokens": 400, "temperature": 0} | more
        if not stream:
            answer = await client.chat.completions.create(**request)
            message, usage = answer.choices[0].message.model_dump(), answer.usage
        else:
            chunks = await client.chat.completions.create(
                **request, stream=True, stream_options={"include_usage": True}
            )
            message, usage = await _gathered(chunks)
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"] or ()
    ]
    thinking = message.get("reasoning_content") or ""
    return Said(message["content"] or "", thinking, calls, usage.prompt_tokens, usage.completion_tokens)


async def _gathered(chunks: Any) -> tuple[dict[str, Any], Any]:
    """The message of a stream, and its usage. The SDK's own helper refuses answers that reached their limit."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    usage = None
    async for chunk in chunks:
        usage = chunk.usage or usage
        for delta in [choice.delta.model_dump() for choice in chunk.choices]:
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta["tool_calls"] or ():
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(call | {"function": call["function"] | {"arguments": ""}})
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"] or ""
    return message, usage


async def ask_messages(url: str, key: str, model: str, stream: bool, **more: Any) -> Said:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=30) as client:
        question = [{"role": "user", "content": QUESTION}]
        request: dict[str, Any] = {"model": model, "messages": question, "max_tokens": 400} | more
        if not stream:
            message = await client.messages.create(**request, extra_body={"temperature": 0})
        else:
            async with client.messages.stream(**request, extra_body={"temperature": 0}) as events:
                message = await events.get_final_message()
    usage = message.usage
    given = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Said(
        "".join(block.text for block in message.content if block.type == "text"),
        "".join(block.thinking for block in message.content if block.type == "thinking"),
        [(block.name, block.input) for block in message.content if block.type == "tool_use"],
        given,
        usage.output_tokens,
    )


async def ask_responses(url: str, key: str, model: str, stream: bool, **more: Any) -> Said:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30) as client:
        request: dict[str, Any] = {"model": model, "input": QUESTION, "max_output_tokens": 400, "temperature": 0} | more
        response: Any = await client.responses.create(**request, stream=stream)
        if stream:
            response = [event async for event in response][-1].response
    said = Said("", "", [], response.usage.input_tokens, response.usage.output_tokens)
    for item in response.output:
        if item.type == "message":
            said.text += "".join(part.text for part in item.content)
        elif item.type == "reasoning":
            said.thinking += "".join(part.text for part in [*(item.content or ()), *item.summary])
        elif item.type == "function_call":
            said.calls.append((item.name, json.loads(item.arguments)))
    return said


WAYS = {"chat": ask_chat, "messages": ask_messages, "responses": ask_responses}
SHORT: dict[str, dict[str, Any]] = {
    "chat": {"max_tokens": 60},
    "messages": {"max_tokens": 60},
    "responses": {"max_output_tokens": 60},
}
STRUCTURED: dict[str, dict[str, Any]] = {
    "chat": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
    },
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}
MUST: dict[str, dict[str, Any]] = {
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

all_ways = pytest.mark.parametrize("way", WAYS)
all_providers = pytest.mark.parametrize("provider", PROVIDERS)
both_forms = pytest.mark.parametrize("stream", STREAMED, ids=["plain", "streamed"])


@all_ways
@all_providers
@both_forms
async def test_text_and_thoughts_arrive_and_are_billed(thinks: Scenario, way: str, provider: str, stream: bool) -> None:
    direct = await ask_chat(thinks.site.url, "any", MODEL, False, max_tokens=60)
    said = await WAYS[way](thinks.stage.product.proxy, thinks.key, thinks.slug(provider), stream, **SHORT[way])
    assert said.text == direct.text != ""
    assert said.thinking in (direct.thinking, "")
    assert await thinks.billed() == {"inputTokens": said.input_tokens, "outputTokens": said.output_tokens}
    assert (said.input_tokens, said.output_tokens) == (direct.input_tokens, direct.output_tokens)


@pytest.mark.parametrize("way", ["chat", "messages"])  # llama.cpp knows schemas in Chat Completions only
@pytest.mark.parametrize("provider", ["PLATFORM", "VENDOR_B"])
@both_forms
async def test_structured_output_follows_the_schema(thinks: Scenario, way: str, provider: str, stream: bool) -> None:
    said = await WAYS[way](thinks.stage.product.proxy, thinks.key, thinks.slug(provider), stream, **STRUCTURED[way])
    answer = json.loads(said.text)
    assert (type(answer["done"]), answer["size"] in ("small", "large")) == (bool, True)
    assert await thinks.billed() == {"inputTokens": said.input_tokens, "outputTokens": said.output_tokens}


@all_ways
@all_providers
@both_forms
async def test_required_tool_is_called(must_call: Scenario, way: str, provider: str, stream: bool) -> None:
    said = await WAYS[way](must_call.stage.product.proxy, must_call.key, must_call.slug(provider), stream, **MUST[way])
    [(name, arguments)] = said.calls
    assert (name, arguments["city"] in ("Paris", "Rome")) == ("weather", True)
    assert await must_call.billed() == {"inputTokens": said.input_tokens, "outputTokens": said.output_tokens}
