"""The running product's answers against the inference document that its control serves, strictly, in all dialects.

The scripted vendors keep to their published SDK types (`tests/upstream/dialects/test_vendor_shapes.py`). Odd servers
are in `tests/contracts/http/test_oddities.py`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.inference_document import Answer, InferenceDocument
from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import Product
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, in_thread
from tests.upstream.dialects.scenarios import FAILURES, SCENARIOS
from tests.upstream.dialects.vendor import ScriptedVendor
from tests.upstream.oddities.reading import PATHS
from tests.upstream.vendors import CREDENTIAL, MODEL, vendor_settings

Json = dict[str, Any]
PROVIDERS = ("VENDOR_A", "VENDOR_B")
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
MORE: dict[str, Json] = {
    CHAT_COMPLETIONS: {
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}],
        "stream_options": {"include_usage": True},
    },
    MESSAGES: {"tools": [{"name": "get_weather", "input_schema": SCHEMA}], "max_tokens": 4000},
    RESPONSES: {"tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]},
}
THINKS: dict[str, Json] = {
    CHAT_COMPLETIONS: {"reasoning_effort": "high"},
    MESSAGES: {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    RESPONSES: {"reasoning": {"effort": "high", "summary": "auto"}},
}


@dataclass
class DocumentedProduct:
    """A product with a slug for each vendor, and the document that its control serves."""

    stage: Stage
    checks: InferenceDocument
    key: str
    statuses: list[int] = field(default_factory=list)

    async def ask(self, method: str, target: str, body: Any = None, key: str | None = None, **headers: str) -> bytes:
        """Make a call, and check its answer."""
        fields = {"authorization": f"Bearer {self.key if key is None else key}"} if key != "" else {}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else None
        async with self.stage.session.request(
            method, self.stage.product.proxy + target, data=data, json=None if data else body, headers=fields
        ) as answer:
            content = await answer.read()
            self.checks.check(Answer(method, target, answer.status, answer.headers.items(), content))
        self.statuses.append(answer.status)
        return content

    async def errors(self, *calls: tuple[int, str, str, Any]) -> None:
        """Make calls that are refused with these statuses."""
        self.statuses.clear()
        for _, method, target, body in calls:
            await self.ask(method, target, body)
        assert self.statuses == [status for status, *_ in calls]


def request(caller: str, slug: str, text: str, stream: bool) -> Json:
    turns = [{"role": "user", "content": text}]
    body: Json = {"model": slug, "stream": stream, "input" if caller == RESPONSES else "messages": turns}
    more = MORE[caller] if stream or caller != CHAT_COMPLETIONS else {"tools": MORE[caller]["tools"]}
    return body | more | (THINKS[caller] if "thinking" in text else {})


@pytest.fixture(scope="module")
def vendors() -> Iterator[ScriptedUpstream]:
    with in_thread(ScriptedUpstream(default=ScriptedVendor(), port=own_port())) as vendors:
        yield vendors


@pytest.fixture(scope="module")
def vendors_workspace(vendors: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    data = tmp_path_factory.mktemp("documented") / "data"
    settings = {**vendor_settings(vendors.url), "TOLLGATE_MAX_BODY_BYTES": "500000"}
    product = Product(data, workers=1, settings=settings, async_workers=1)
    with started(product) as workspace:
        yield workspace


@pytest.fixture
async def documented(
    vendors_workspace: Workspace, session: aiohttp.ClientSession, upstream: ScriptedUpstream, numbers: Iterator[int]
) -> DocumentedProduct:
    stage = stage_of(vendors_workspace, session, upstream, f"documented-{next(numbers)}")
    secret = await stage.operator.call("POST", "/v1/secrets", {"name": stage.name, "value": CREDENTIAL})
    for provider in PROVIDERS:
        target = {"provider": provider, "secret_id": secret["id"], "target_model": MODEL}
        body = {"slug": f"{stage.slug}-{provider.lower()}", "targets": [target]}
        await stage.operator.call("POST", "/v1/gateway/endpoints", body)
    slugs = [{"slug": f"{stage.slug}-{provider.lower()}"} for provider in PROVIDERS]
    group = await stage.operator.group(stage.name, slugs)
    async with session.get(f"{stage.product.control}/v1/openapi-inference.json") as answer:
        checks = InferenceDocument(await answer.json())
    assert checks.document["servers"][0]["url"] == stage.product.proxy
    return DocumentedProduct(stage, checks, await stage.operator.key(group))


@pytest.mark.parametrize("caller", PATHS)
async def test_answers_and_events_of_every_vendor_are_those_of_the_document(
    documented: DocumentedProduct, caller: str
) -> None:
    for provider in PROVIDERS:
        slug = f"{documented.stage.slug}-{provider.lower()}"
        for scenario in (*SCENARIOS, *FAILURES):
            for stream in (False, True):
                await documented.ask("POST", PATHS[caller], request(caller, slug, f"[[scenario:{scenario}]]", stream))
    answered = documented.statuses.count(200)
    assert answered >= 2 * 2 * 10, documented.statuses  # most scenarios need nothing that a dialect lacks
    assert {429, 529} <= set(documented.statuses)


async def test_lists_of_models_and_counts_are_those_of_the_document(documented: DocumentedProduct) -> None:
    slug = f"{documented.stage.slug}-vendor_a"
    for headers in ({}, {"anthropic_version": "2023-06-01"}):
        for path in ("/v1/models", f"/v1/models/{slug}", f"/v1/models/{slug.replace('/', '%2F')}"):
            await documented.ask("GET", path, **headers)
            await documented.ask("HEAD", path, **headers)
    counted = {"model": slug, "messages": [{"role": "user", "content": "Hello"}]}
    await documented.ask("POST", "/v1/messages/count_tokens", counted)
    await documented.ask("POST", "/v1/messages/count_tokens", counted | {"model": f"{documented.stage.slug}-vendor_b"})
    assert set(documented.statuses) == {200}


async def test_refusals_of_calls_by_slug_are_those_of_the_document(documented: DocumentedProduct) -> None:
    stage = documented.stage
    chat = "/v1/chat/completions"
    hello = {"model": f"{stage.slug}-vendor_b", "messages": [{"role": "user", "content": "Hello"}]}
    await documented.errors(
        (400, "POST", chat, b"{"),
        (400, "POST", "/v1/messages", hello | {"model": 1}),
        (400, "POST", "/v1/responses", {"model": f"{stage.slug}-vendor_a", "input": "x", "background": True}),
        (404, "POST", chat, hello | {"model": "acme/nothing"}),
        (404, "POST", "/v1/nothing", {}),
        (405, "GET", chat, None),
    )
    documented.statuses.clear()
    await documented.ask("POST", chat, hello, key="")
    await documented.ask("POST", "/v1/messages", hello, key="tg_unknown")
    await documented.ask("POST", chat, hello, content_encoding="gzip")
    await documented.ask("POST", chat, b" " * 500_001)
    await documented.ask("GET", "/v1/models?limit=0", anthropic_version="2023-06-01")
    assert documented.statuses == [401, 403, 415, 413, 400]


async def test_refusals_by_limits_and_upstreams_are_those_of_the_document(documented: DocumentedProduct) -> None:
    stage = documented.stage
    hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
    limit = {"type": "REQUEST", "unit": "MINUTE", "threshold": 0}
    limited = {"slug": f"{stage.slug}-vendor_b", "rate_limits": [limit]}
    key = await stage.operator.key(await stage.operator.group(f"{stage.name}-limited", [limited]))
    for path in PATHS.values():
        await documented.ask("POST", path, hello | {"model": limited["slug"], "input": "x"}, key=key)
    assert documented.statuses == [429] * len(PATHS)
    model = await stage.operator.model(stage.name, f"http://127.0.0.1:{own_port()}")
    await stage.operator.endpoint(f"{stage.slug}-away", model)
    group = await stage.operator.group(f"{stage.name}-away", [{"slug": f"{stage.slug}-away"}])
    await documented.ask(
        "POST", "/v1/chat/completions", hello | {"model": f"{stage.slug}-away"}, key=await stage.operator.key(group)
    )
    assert documented.statuses[-1] == 503


async def test_direct_and_asynchronous_calls_are_those_of_the_document(documented: DocumentedProduct) -> None:
    stage = documented.stage
    model = await stage.operator.model(stage.name, stage.upstream.url)
    at = f"/models/{model}/production"
    hello = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    created = await stage.operator.call("POST", "/v1/api_keys", {"type": "WORKSPACE_INVOKE"})
    documented.key = created["api_key"]  # younger than the model: a proxy that knows the key knows the model
    await documented.ask("POST", f"{at}/sync/v1/chat/completions", hello)
    await documented.ask("POST", f"{at}/predict", hello | {"stream": True})
    await documented.ask("GET", f"{at}/async_queue_status")
    submitted = await documented.ask("POST", f"{at}/async_predict", {"model_input": 1})
    assert documented.statuses == [200, 200, 200, 201], submitted
    request_id = json.loads(submitted)["request_id"]
    for path in (f"/async_request/{request_id}", f"/models/{model}/async_request/{request_id}"):
        await documented.ask("GET", path)
        await documented.ask("DELETE", path)
    assert documented.statuses[4:] == [200] * 4
    await documented.errors(
        (400, "POST", f"{at}/async_predict", {"input": 1}),
        (413, "POST", f"{at}/async_predict", {"model_input": "x" * 262_144}),
        (404, "POST", "/models/mdl_unknown/production/predict", {}),
        (404, "POST", "/models/mdl_unknown/production/wake", {}),
        (404, "GET", "/async_request/areq_unknown", None),
        (405, "GET", f"{at}/predict", None),
        (400, "GET", f"{at}/websocket", None),
    )
