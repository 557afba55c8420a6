"""A workspace calls its own platform model directly: a real model server, stock clients, no slug and no bill.

See docs/reference/inference.md#direct-calls.
"""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from runtime.child_process import tie_to_parent
from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.model_server import MODEL
from tests.journeys.product import OperatorClient, Product, ready_line
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, answer

SUFFIX = "models.example.test"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A product whose models have hosts of their own."""
    settings = {"TOLLGATE_MODEL_HOST_SUFFIX": SUFFIX}
    product = Product(tmp_path_factory.mktemp("direct") / "data", settings=settings)
    with started(product) as workspace:
        yield workspace


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running model server; its base URL."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "weights.bin").write_bytes(bytes(range(256)))
    port = own_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.journeys.model_server", str(port), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=tie_to_parent(),  # noqa: PLW1509
        cwd=Path(__file__).parents[3],
    )
    try:
        assert ready_line(process) == "listening\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@dataclass
class Direct:
    """A stage, a model on the replica, and a key that may invoke it."""

    stage: Stage
    model: str
    deployment: str
    key: str
    http: httpx.AsyncClient

    @property
    def base(self) -> str:
        return f"{self.stage.product.proxy}/models/{self.model}"

    async def replicas(self, *urls: str) -> str:
        """Register these replicas; return the deployment's status."""
        path = f"/v1/models/{self.model}/deployments/{self.deployment}/replicas"
        return str((await self.stage.operator.call("PUT", path, {"replicas": urls}))["status"])

    async def is_parked(self) -> bool:
        """Return whether a call waits, which shows that the proxy knows no replica."""
        try:
            await self.http.post(f"{self.base}/production/predict", timeout=0.5)
        except httpx.ReadTimeout:
            return True
        return False


@pytest.fixture
async def direct(
    workspace: Workspace,
    session: aiohttp.ClientSession,
    upstream: ScriptedUpstream,
    replica: str,
    numbers: Iterator[int],
) -> AsyncIterator[Direct]:
    stage = stage_of(workspace, session, upstream, f"direct-{next(numbers)}")
    model = await stage.operator.model(stage.name, replica)
    [deployment] = (await stage.operator.call("GET", f"/v1/models/{model}/deployments"))["items"]
    key = (await stage.operator.call("POST", "/v1/api_keys", {"type": "WORKSPACE_INVOKE"}))["api_key"]
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=30, trust_env=False) as http:
        yield Direct(stage, model, deployment["id"], key, http)


async def test_predict_takes_and_returns_any_bytes(direct: Direct) -> None:
    body = random.Random(1).randbytes(5_000_000)
    for where in ("production", "environments/Production", f"deployment/{direct.deployment}"):
        answer = await direct.http.post(
            f"{direct.base}/{where}/predict", content=body, headers={"content-type": "image/png"}
        )
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
        assert answer.content == body
    raised = await direct.http.post(f"{direct.base}/production/predict?raise=1", json={})
    assert raised.status_code == 500
    assert raised.json()["error"] == "Internal Server Error (in model/chainlet)."


async def test_stock_sdk_uses_the_models_own_api(direct: Direct) -> None:
    base_url = f"{direct.base}/production/sync/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=direct.key, max_retries=0, timeout=30) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        members: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        stream = await client.chat.completions.create(model=MODEL, **members)
        text = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(text) == "Hello there"
        with pytest.raises(openai.NotFoundError, match="no model other"):
            await client.chat.completions.create(model="other", **members)


async def test_files_keep_validators_ranges_and_lengths(direct: Direct) -> None:
    url = f"{direct.base}/production/sync/files/weights.bin"
    whole = await direct.http.get(url)
    assert whole.content == bytes(range(256))
    unchanged = await direct.http.get(url, headers={"if-none-match": whole.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    part = await direct.http.get(url, headers={"range": "bytes=16-31"})
    assert (part.status_code, part.content) == (206, bytes(range(16, 32)))
    assert part.headers["content-range"] == "bytes 16-31/256"
    head = await direct.http.head(url)
    assert (head.status_code, head.headers["content-length"]) == (200, "256")


async def test_models_own_host_reaches_it_and_nothing_else(direct: Direct) -> None:
    host = f"model-{direct.model.lower().replace('_', '-')}.{SUFFIX}"
    proxy = direct.stage.product.proxy
    headers = {"host": host}
    answer = await direct.http.patch(f"{proxy}/production/sync/seen/a%2Fb?c=%20", content=b"x", headers=headers)
    received = answer.json()
    assert (received["method"], received["target"]) == ("PATCH", "/seen/a%2Fb?c=%20")
    assert not {"authorization", "x-api-key", "cookie"} & set(received["fields"])
    assert host not in received["fields"]["host"]
    for path in ("/v1/models", f"/models/{direct.model}/production/sync/v1/models"):
        assert (await direct.http.get(proxy + path, headers=headers)).status_code == 404


async def test_only_the_models_own_workspace_finds_it(direct: Direct, session: aiohttp.ClientSession) -> None:
    stage = direct.stage
    created = stage.product.command("workspace", "create", stage.name, "--prefix", stage.name)
    stranger = OperatorClient(session, stage.product, created["api_key"])
    theirs = await stranger.model("m", "http://127.0.0.1:1")
    url = f"{direct.base}/production/predict"
    for key, status in ((stranger.api_key, 404), (direct.key, 200), (await stage.key_without_limits(), 403)):
        assert (await direct.http.post(url, headers={"authorization": f"Bearer {key}"})).status_code == status
    assert (await direct.http.post(url.replace(direct.model, theirs))).status_code == 404


async def test_call_of_a_sleeping_deployment_waits_for_a_replica(direct: Direct, replica: str) -> None:
    assert await direct.replicas() == "SCALED_TO_ZERO"
    await direct.stage.until(direct.is_parked, "calls are parked")
    parked = asyncio.ensure_future(direct.http.post(f"{direct.base}/production/predict", content=b"1"))
    assert await direct.is_parked()
    assert not parked.done()
    await direct.replicas(replica)
    assert (await asyncio.wait_for(parked, 30)).content == b"1"


async def test_wake_asks_the_hook_once_and_a_call_goes_on_when_it_is_answered(direct: Direct, replica: str) -> None:
    stage = direct.stage
    upstream = direct.stage.upstream
    upstream.default = answer(200)
    path = f"/v1/models/{direct.model}/deployments/{direct.deployment}"
    await stage.operator.call("PATCH", path, {"wake_url": f"{upstream.url}/wake/secret"})
    await direct.replicas()

    async def is_asked() -> bool:
        woken = await direct.http.post(f"{direct.base}/production/wake")
        assert (woken.status_code, woken.json()) == (202, {})
        return bool(upstream.received)

    await stage.until(is_asked, "the hook is asked")
    body = upstream.received[0].json
    assert (body["model_id"], body["deployment_id"], body["reason"]) == (direct.model, direct.deployment, "wake")
    await stage.until(direct.is_parked, "calls are parked")
    parked = asyncio.ensure_future(direct.http.post(f"{direct.base}/production/predict", content=b"1"))
    assert await direct.is_parked()
    assert len(upstream.received) == 1, "the need was told already"
    await direct.replicas(replica)
    assert (await asyncio.wait_for(parked, 30)).content == b"1"
    assert (await direct.http.post(f"{direct.base}/development/wake")).status_code == 404


async def test_call_is_in_the_deployments_log_without_content(direct: Direct) -> None:
    url = f"{direct.base}/production/sync/seen/x?secret=1"
    fields = {"x-request-id": "logged-1"}
    assert (await direct.http.put(url, content=b"private", headers=fields)).status_code == 200
    path = f"/v1/models/{direct.model}/deployments/{direct.deployment}/logs"

    async def lines() -> list[Any]:
        entries: list[Any] = (await direct.stage.operator.call("POST", path, {"request_id": "logged-1"}))["logs"]
        return entries

    [line] = await direct.stage.until(lines, "the call's line")
    assert line["message"].startswith(f"PUT /models/{direct.model}/production/sync/seen/x 200 in ")
    assert line["level"] == "INFO"
    assert "secret" not in str(line)
    assert "private" not in str(line)


async def test_direct_calls_are_counted_by_model_and_leave_no_event(direct: Direct) -> None:
    for _ in range(3):
        await direct.http.post(f"{direct.base}/production/predict", json={"a": 1})
    labels = ('external_entity_id=""', f'model_slug="{direct.model}"', 'status_code="200"')

    async def counted() -> bool:
        async with direct.stage.session.get(direct.stage.product.admin + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        samples = [
            line for line in lines if "inference_requests_total{" in line and all(label in line for label in labels)
        ]
        return [float(line.split()[-1]) for line in samples] == [3.0]

    await direct.stage.until(counted, "three requests in the metrics")
    await asyncio.sleep(1.5)  # longer than the holdback
    events = await direct.stage.operator.call("GET", "/v1/gateway/events", start_time=direct.stage.began)
    assert not events["items"]
