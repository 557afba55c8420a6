"""Both stock SDKs against each vendor through the whole product: the SDKs do not notice a translation.

One asks for a whole answer, the other for a stream. What else clients ask for is translated in `tests/proxy/dialects/`,
and `make clients` asks for all of it. No answer, metric or log line contains a vendor's credential or host.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import Product
from tests.ports import own_port
from tests.upstream import Received, ScriptedUpstream, in_thread
from tests.upstream.vendors import (
    ACCESS_TOKEN,
    CREDENTIAL,
    MODEL,
    TEXT,
    answer_as_vendors,
    service_account,
    vendor_settings,
)

PROVIDERS = ("VENDOR_A", "VENDOR_B", "VENDOR_C")
BILLED = {"inputTokens": 20, "outputTokens": 10, "cachedInputTokens": 5}


@dataclass
class VendorScenario:
    """A product with three vendors, all served by `vendors`, a slug for each, and a key that may call all of them."""

    stage: Stage
    vendors: ScriptedUpstream
    billed_calls: list[tuple[str, str]]
    """The entity and start time of each answered call."""
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def vendor_call(self) -> list[Received]:
        """The calls that the vendors received, without those for VENDOR_C's access token."""
        return [received for received in self.vendors.received if received.path != "/token"]

    def slug(self, provider: str) -> str:
        return f"acme/{provider.lower()}"


@pytest.fixture(scope="module")
def vendors() -> Iterator[ScriptedUpstream]:
    with in_thread(ScriptedUpstream(default=answer_as_vendors, port=own_port())) as vendors:
        yield vendors


@pytest.fixture(scope="module")
def billed_calls() -> list[tuple[str, str]]:
    return []


@pytest.fixture(scope="module")
def vendors_workspace(vendors: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    product = Product(tmp_path_factory.mktemp("vendors") / "data", workers=1, settings=vendor_settings(vendors.url))
    with started(product) as workspace:
        yield workspace


@pytest.fixture
async def scenario(
    vendors_workspace: Workspace,
    vendors: ScriptedUpstream,
    billed_calls: list[tuple[str, str]],
    session: aiohttp.ClientSession,
    upstream: ScriptedUpstream,
    numbers: Iterator[int],
) -> VendorScenario:
    stage = stage_of(vendors_workspace, session, upstream, f"vendors-{next(numbers)}")
    vendors.received.clear()
    scenario = VendorScenario(stage, vendors, billed_calls)
    _, listed = await stage.operator.ask("GET", "/v1/gateway/endpoints")
    if not listed["items"]:
        for provider in PROVIDERS:
            await _create_endpoint(scenario, provider)
    group = await stage.operator.group(stage.name, [{"slug": scenario.slug(provider)} for provider in PROVIDERS])
    scenario.keys["all"] = await stage.operator.key(group)
    return scenario


async def _create_endpoint(scenario: VendorScenario, provider: str) -> None:
    value = service_account(scenario.vendors.url) if provider == "VENDOR_C" else CREDENTIAL
    secret = await scenario.stage.operator.call("POST", "/v1/secrets", {"name": provider, "value": value})
    target: dict[str, Any] = {"provider": provider, "secret_id": secret["id"], "target_model": MODEL}
    if provider == "VENDOR_C":
        target["vendor_c_config"] = {"project_id": "p", "location": "l"}
    body = {"slug": scenario.slug(provider), "targets": [target]}
    await scenario.stage.operator.call("POST", "/v1/gateway/endpoints", body)


def openai_client(scenario: VendorScenario) -> openai.AsyncOpenAI:
    return scenario.stage.client(scenario.keys["all"])


def anthropic_client(scenario: VendorScenario) -> anthropic.AsyncAnthropic:
    product = scenario.stage.product
    return anthropic.AsyncAnthropic(base_url=product.proxy, api_key=scenario.keys["all"], max_retries=0, timeout=30)


def chat(scenario: VendorScenario, provider: str, text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": scenario.slug(provider), "messages": [{"role": "user", "content": text}], **more}


def check_vendor_call(scenario: VendorScenario, provider: str) -> None:
    """The vendor got one call in its dialect, with its own credential and model, and without the caller's key."""
    [vendor_call] = scenario.vendor_call
    assert vendor_call.json["model"] == MODEL
    assert scenario.keys["all"].encode() not in vendor_call.head + vendor_call.body
    if provider == "VENDOR_A":
        assert (vendor_call.path, vendor_call.header("x-api-key")) == ("/v1/messages", CREDENTIAL)
        assert vendor_call.header("authorization") is None
        assert vendor_call.header("anthropic-version")
    else:
        token = ACCESS_TOKEN if provider == "VENDOR_C" else CREDENTIAL
        assert vendor_call.path.endswith("/chat/completions")
        assert vendor_call.header("authorization") == f"Bearer {token}"
        assert vendor_call.header("x-api-key") is None


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_openai_sdk_reads_the_answer_of_every_vendor(scenario: VendorScenario, provider: str) -> None:
    async with openai_client(scenario) as client:
        answer = await client.chat.completions.create(**chat(scenario, provider))
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == scenario.slug(provider)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 10)
    assert answer.usage.prompt_tokens_details.cached_tokens == 5
    check_vendor_call(scenario, provider)
    scenario.billed_calls.append((scenario.stage.name, scenario.stage.began))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_anthropic_sdk_reads_the_stream_of_every_vendor(scenario: VendorScenario, provider: str) -> None:
    async with (
        anthropic_client(scenario) as client,
        client.messages.stream(**chat(scenario, provider, max_tokens=100)) as stream,
    ):
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(pieces) == TEXT
    assert len(pieces) > 1
    assert (message.model, message.stop_reason) == (scenario.slug(provider), "end_turn")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (15, 5, 10)
    check_vendor_call(scenario, provider)
    scenario.billed_calls.append((scenario.stage.name, scenario.stage.began))


@pytest.mark.parametrize(
    ("provider", "status", "returned"), [("VENDOR_A", 529, 529), ("VENDOR_B", 401, 502), ("VENDOR_C", 429, 429)]
)
async def test_both_sdks_get_a_vendors_error_with_its_status(
    scenario: VendorScenario, provider: str, status: int, returned: int
) -> None:
    async with openai_client(scenario) as client:
        with pytest.raises(openai.APIStatusError) as one:
            await client.chat.completions.create(**chat(scenario, provider, f"fail {status}"))
    async with anthropic_client(scenario) as client:
        with pytest.raises(anthropic.APIStatusError) as other:
            await client.messages.create(**chat(scenario, provider, f"fail {status}", max_tokens=9))
    for refusal in (one.value, other.value):
        assert refusal.status_code == returned
        _check_no_secrets(scenario, refusal.response.text, str(refusal.response.headers))


async def test_trace_and_request_id_reach_the_vendor(scenario: VendorScenario) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
    async with openai_client(scenario) as client:
        answer = await client.chat.completions.with_raw_response.create(
            **chat(scenario, "VENDOR_A"), extra_headers=trace | {"x-request-id": "mine-1"}
        )
    assert answer.headers["x-request-id"] == "mine-1"
    [vendor_call] = scenario.vendor_call
    assert trace.items() <= dict(vendor_call.headers).items()
    assert vendor_call.header("x-request-id") == "mine-1"
    [event] = await scenario.stage.events_of(scenario.stage.name, 1)
    assert event["requestId"] == "mine-1"


async def test_each_answer_is_billed_by_the_vendors_usage(scenario: VendorScenario) -> None:
    for name, began in scenario.billed_calls:
        scenario.stage.began = began
        [event] = await scenario.stage.events_of(name, 1)
        assert event["tokens"] == BILLED
    assert len(scenario.billed_calls) == 2 * len(PROVIDERS)


async def test_logs_and_metrics_contain_no_credential_and_no_vendor_host(scenario: VendorScenario) -> None:
    """Keep this the module's last test: by now every vendor has answered and failed."""
    product = scenario.stage.product
    async with scenario.stage.session.get(product.admin + "/metrics") as answer:
        metrics = await answer.text()
    assert product.stop() == 0, product.log_tail()
    log = product.log.read_text()
    assert '"cause":"target_credential"' in log, "the access log is not here"
    assert "platform_model_api_inference_requests_total" in metrics
    _check_no_secrets(scenario, log, metrics)


def _check_no_secrets(scenario: VendorScenario, *texts: str) -> None:
    for text in texts:
        for hidden in (CREDENTIAL, ACCESS_TOKEN, f"127.0.0.1:{scenario.vendors.port}", "PRIVATE KEY"):
            assert hidden not in text
