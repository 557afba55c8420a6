"""Both stock SDKs against each vendor through the whole product: a translation is not noticed.

And what must never be told: the vendors' credentials and hosts, in no answer, no metric and no line of any log.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.journeys.conftest import Stage, Workspace, stage_of
from tests.journeys.product import Product
from tests.upstream import Received, ScriptedUpstream, in_thread
from tests.upstream.vendors import (
    ACCESS_TOKEN,
    CREDENTIAL,
    MODEL,
    TEXT,
    TOOL_INPUT,
    answer_as_vendors,
    service_account,
    vendor_settings,
)

PROVIDERS = ("VENDOR_A", "VENDOR_B", "VENDOR_C")
BILLED = {"inputTokens": 20, "outputTokens": 10, "cachedInputTokens": 5}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}


@dataclass
class Street:
    """A product whose vendors are `vendors`, a slug for each, and a key that may call all of them."""

    stage: Stage
    vendors: ScriptedUpstream
    paid: list[tuple[str, str]]
    """Who called, and when."""
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> list[Received]:
        """The calls that the vendors received, without those for VENDOR_C's access token."""
        return [received for received in self.vendors.received if received.path != "/token"]

    def slug(self, provider: str) -> str:
        return f"acme/{provider.lower()}"


@pytest.fixture(scope="module")
def vendors() -> Iterator[ScriptedUpstream]:
    with in_thread(ScriptedUpstream(default=answer_as_vendors)) as vendors:
        yield vendors


@pytest.fixture(scope="module")
def paid() -> list[tuple[str, str]]:
    return []


@pytest.fixture(scope="module")
def vendors_workspace(vendors: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    product = Product(tmp_path_factory.mktemp("vendors") / "data", workers=1, settings=vendor_settings(vendors.url))
    try:
        product.start()
        yield Workspace(product)
    finally:
        product.kill()


@pytest.fixture
async def street(
    vendors_workspace: Workspace,
    vendors: ScriptedUpstream,
    paid: list[tuple[str, str]],
    session: aiohttp.ClientSession,
    upstream: ScriptedUpstream,
    numbers: Iterator[int],
) -> Street:
    stage = stage_of(vendors_workspace, session, upstream, f"street-{next(numbers)}")
    vendors.received.clear()
    street = Street(stage, vendors, paid)
    _, listed = await stage.desk.ask("GET", "/v1/gateway/endpoints")
    if not listed["items"]:
        for provider in PROVIDERS:
            await _open_shop(street, provider)
    group = await stage.desk.group(stage.name, [{"slug": street.slug(provider)} for provider in PROVIDERS])
    street.keys["all"] = await stage.desk.key(group)
    return street


async def _open_shop(street: Street, provider: str) -> None:
    value = service_account(street.vendors.url) if provider == "VENDOR_C" else CREDENTIAL
    secret = await street.stage.desk.call("POST", "/v1/secrets", {"name": provider, "value": value})
    target: dict[str, Any] = {"provider": provider, "secret_id": secret["id"], "target_model": MODEL}
    if provider == "VENDOR_C":
        target["vendor_c_config"] = {"project_id": "p", "location": "l"}
    body = {"slug": street.slug(provider), "targets": [target]}
    await street.stage.desk.call("POST", "/v1/gateway/endpoints", body)


def with_openai(street: Street) -> openai.AsyncOpenAI:
    return street.stage.client(street.keys["all"])


def with_anthropic(street: Street) -> anthropic.AsyncAnthropic:
    product = street.stage.product
    return anthropic.AsyncAnthropic(base_url=product.proxy, api_key=street.keys["all"], max_retries=0, timeout=30)


def chat(street: Street, provider: str, text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": street.slug(provider), "messages": [{"role": "user", "content": text}], **more}


def check_asked(street: Street, provider: str) -> None:
    """The vendor got one call in its dialect, with its own credential and model, and without the caller's key."""
    [asked] = street.asked
    assert asked.json["model"] == MODEL
    assert street.keys["all"].encode() not in asked.head + asked.body
    if provider == "VENDOR_A":
        assert (asked.path, asked.header("x-api-key")) == ("/v1/messages", CREDENTIAL)
        assert asked.header("authorization") is None
        assert asked.header("anthropic-version")
    else:
        token = ACCESS_TOKEN if provider == "VENDOR_C" else CREDENTIAL
        assert asked.path.endswith("/chat/completions")
        assert asked.header("authorization") == f"Bearer {token}"
        assert asked.header("x-api-key") is None


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_openai_sdk_reads_the_answer_of_every_vendor(street: Street, provider: str) -> None:
    async with with_openai(street) as client:
        answer = await client.chat.completions.create(**chat(street, provider))
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == street.slug(provider)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 10)
    assert answer.usage.prompt_tokens_details.cached_tokens == 5
    check_asked(street, provider)
    street.paid.append((street.stage.name, street.stage.began))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_openai_sdk_reads_the_stream_of_every_vendor(street: Street, provider: str) -> None:
    ask = chat(street, provider, stream=True, stream_options={"include_usage": True})
    async with with_openai(street) as client:
        chunks = [chunk async for chunk in await client.chat.completions.create(**ask)]
    assert {chunk.model for chunk in chunks} == {street.slug(provider)}
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == TEXT
    assert chunks[-1].usage.total_tokens == 30
    check_asked(street, provider)
    street.paid.append((street.stage.name, street.stage.began))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_openai_sdk_reads_the_tool_call_of_every_vendor(street: Street, provider: str, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    async with with_openai(street) as client:
        answer = await client.chat.completions.create(**chat(street, provider, tools=tools, stream=stream))
        if stream:
            deltas = [choice.delta async for chunk in answer for choice in chunk.choices]
            functions = [call.function for delta in deltas for call in delta.tool_calls or ()]
            named, arguments = functions[0].name, "".join(function.arguments or "" for function in functions)
        else:
            [call] = answer.choices[0].message.tool_calls
            named, arguments = call.function.name, call.function.arguments
    assert (named, json.loads(arguments)) == ("weather", TOOL_INPUT)
    street.paid.append((street.stage.name, street.stage.began))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_anthropic_sdk_reads_the_answer_of_every_vendor(street: Street, provider: str) -> None:
    async with with_anthropic(street) as client:
        answer = await client.messages.create(**chat(street, provider, max_tokens=100))
    assert answer.content[0].text == TEXT
    assert (answer.model, answer.stop_reason) == (street.slug(provider), "end_turn")
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (15, 5, 10)
    check_asked(street, provider)
    street.paid.append((street.stage.name, street.stage.began))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_anthropic_sdk_reads_the_stream_of_every_vendor(street: Street, provider: str) -> None:
    async with (
        with_anthropic(street) as client,
        client.messages.stream(**chat(street, provider, max_tokens=100)) as stream,
    ):
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(pieces) == TEXT
    assert len(pieces) > 1
    assert (message.model, message.stop_reason) == (street.slug(provider), "end_turn")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (15, 5, 10)
    check_asked(street, provider)
    street.paid.append((street.stage.name, street.stage.began))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_anthropic_sdk_reads_the_streamed_tool_call_of_every_vendor(street: Street, provider: str) -> None:
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    async with (
        with_anthropic(street) as client,
        client.messages.stream(**chat(street, provider, max_tokens=100, tools=tools)) as stream,
    ):
        message = await stream.get_final_message()
    [used] = message.content
    assert used.type == "tool_use"
    assert (used.name, used.input) == ("weather", TOOL_INPUT)
    assert message.stop_reason == "tool_use"
    street.paid.append((street.stage.name, street.stage.began))


@pytest.mark.parametrize(("status", "told"), [(401, 502), (429, 429), (500, 500), (529, 529)])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_both_sdks_get_a_vendors_error_with_its_status(
    street: Street, provider: str, status: int, told: int
) -> None:
    async with with_openai(street) as client:
        with pytest.raises(openai.APIStatusError) as one:
            await client.chat.completions.create(**chat(street, provider, f"fail {status}"))
    async with with_anthropic(street) as client:
        with pytest.raises(anthropic.APIStatusError) as other:
            await client.messages.create(**chat(street, provider, f"fail {status}", max_tokens=9))
    for refusal in (one.value, other.value):
        assert refusal.status_code == told
        _check_discreet(street, refusal.response.text, str(refusal.response.headers))


async def test_trace_and_request_id_reach_the_vendor(street: Street) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
    async with with_openai(street) as client:
        answer = await client.chat.completions.with_raw_response.create(
            **chat(street, "VENDOR_A"), extra_headers=trace | {"x-request-id": "mine-1"}
        )
    assert answer.headers["x-request-id"] == "mine-1"
    [asked] = street.asked
    assert trace.items() <= dict(asked.headers).items()
    assert asked.header("x-request-id") == "mine-1"
    [event] = await street.stage.events_of(street.stage.name, 1)
    assert event["requestId"] == "mine-1"


async def test_each_answer_is_billed_by_the_vendors_usage(street: Street) -> None:
    for name, began in street.paid:
        street.stage.began = began
        [event] = await street.stage.events_of(name, 1)
        assert event["tokens"] == BILLED
    assert len(street.paid) >= 20


async def test_logs_and_metrics_contain_no_credential_and_no_vendor_host(street: Street) -> None:
    """The last of this module: by now every vendor has answered, refused and failed."""
    product = street.stage.product
    async with street.stage.session.get(product.admin + "/metrics") as answer:
        metrics = await answer.text()
    assert product.stop() == 0, product.last_words()
    log = product.log.read_text()
    assert '"cause":"target_credential"' in log, "the access log is not here"
    assert "platform_model_api_inference_requests_total" in metrics
    _check_discreet(street, log, metrics)


def _check_discreet(street: Street, *texts: str) -> None:
    for text in texts:
        for hidden in (CREDENTIAL, ACCESS_TOKEN, f"127.0.0.1:{street.vendors.port}", "PRIVATE KEY"):
            assert hidden not in text
