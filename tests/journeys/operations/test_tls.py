"""`tollgate up` with a certificate: stock SDKs over https, and a certificate that changes under running calls."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anthropic
import openai
import pytest

from tests.fakes.pair_files import LOCALHOST, PairFiles, replace, self_signed, shown_name
from tests.journeys.conftest import Stage, stage_of, started
from tests.journeys.product import METRICS_TOKEN, Product, kill
from tests.upstream import ScriptedUpstream

pytestmark = pytest.mark.timeout(240)
CONNECTIONS = 50


@pytest.fixture
def pair(tmp_path: Path) -> PairFiles:
    return PairFiles(tmp_path).issue()


@pytest.fixture
async def secured(pair: PairFiles, upstream: ScriptedUpstream) -> AsyncIterator[Stage]:
    """A product of its own that speaks TLS, and a client that trusts its certificate."""
    product = Product(pair.directory / "data", settings={**pair.settings, "TOLLGATE_VENDOR_B_BASE_URL": upstream.url})
    connector = aiohttp.TCPConnector(ssl=pair.client_context(), limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        with started(product) as workspace:
            yield stage_of(workspace, session, upstream, "secured")


async def shows(stage: Stage, name: str) -> None:
    """Wait until both listeners show the certificate of this name to new connections."""
    ports = [urlsplit(url).port for url in (stage.product.proxy, stage.product.control)]

    async def look() -> bool:
        return [await asyncio.to_thread(shown_name, port or 0) for port in ports] == [name, name]

    await stage.until(look, f"new connections see {name}")


async def test_stock_sdks_and_commands_work_over_https(secured: Stage, pair: PairFiles) -> None:
    product = secured.product
    assert product.proxy.startswith("https://")
    assert product.control.startswith("https://")
    assert product.admin.startswith("http://")
    secret = await secured.operator.call("POST", "/v1/secrets", {"name": "vendor", "value": "sk-of-the-vendor"})
    target = {"provider": "VENDOR_B", "target_model": "m", "secret_id": secret["id"]}  # in both dialects
    await secured.operator.call("POST", "/v1/gateway/endpoints", {"slug": secured.slug, "targets": [target]})
    key = await secured.operator.key(await secured.operator.group(secured.name, [{"slug": secured.slug}]))
    tls = pair.client_context()
    http = openai.DefaultAsyncHttpxClient(verify=tls)
    message: Any = [{"role": "user", "content": "Hello"}]
    async with openai.AsyncOpenAI(base_url=product.proxy + "/v1", api_key=key, http_client=http) as client:
        whole = await client.chat.completions.create(model=secured.slug, messages=message)
        assert whole.choices[0].message.content == "This is upstream."
        stream = await client.chat.completions.create(model=secured.slug, messages=message, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == (
            "This is upstream."
        )
    transport = anthropic.DefaultAsyncHttpxClient(verify=tls)
    async with anthropic.AsyncAnthropic(base_url=product.proxy, api_key=key, http_client=transport) as caller:
        answer = await caller.messages.create(model=secured.slug, messages=message, max_tokens=64)
        assert [block.text for block in answer.content if block.type == "text"] == ["This is upstream."]
        async with caller.messages.stream(model=secured.slug, messages=message, max_tokens=64) as events:
            assert await events.get_final_text() == "This is upstream."
    assert len(await secured.events_of(secured.name, 4)) == 4, "usage has reached control over TLS"
    listing = await asyncio.to_thread(product.run, "endpoints", "list", "--data", str(product.data))
    assert secured.slug in listing.stdout, listing.stderr  # commands here trust the certificate by themselves
    doctor = await asyncio.to_thread(product.run, "doctor", "--data", str(product.data))
    assert f"{product.control} is ready" in doctor.stdout, doctor.stdout
    assert "certificate" in doctor.stdout
    async with secured.session.post(
        f"{product.control}/console/session",
        json={"api_key": secured.operator.api_key},
        headers={"Origin": product.control},
    ) as login:
        assert "Secure" in login.headers["Set-Cookie"], await login.text()


async def test_certificate_changes_under_running_calls_and_none_is_dropped(secured: Stage, pair: PairFiles) -> None:
    key = await secured.key_without_limits()
    headers = {"Authorization": f"Bearer {key}", "content-type": "application/json"}
    statuses: list[int] = []
    stop = asyncio.Event()
    opened = 0

    async def count(*_: Any) -> None:
        nonlocal opened
        opened += 1

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(count)
    connector = aiohttp.TCPConnector(ssl=pair.client_context(), limit=CONNECTIONS)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, trace_configs=[trace], timeout=timeout) as callers:

        async def call(number: int) -> None:
            body = {"model": secured.slug, "stream": number % 2 == 0, "messages": [{"role": "user", "content": "Hi"}]}
            while not stop.is_set():
                async with callers.post(
                    secured.product.proxy + "/v1/chat/completions", json=body, headers=headers
                ) as answer:
                    text = await answer.text()
                    assert "upstream" in text
                    assert not body["stream"] or text.endswith("data: [DONE]\n\n"), "a whole stream"
                    statuses.append(answer.status)

        async def more_calls() -> None:
            """Wait until each connection has carried calls since now."""
            enough = len(statuses) + 2 * CONNECTIONS

            async def look() -> bool:
                return len(statuses) >= enough or any(task.done() for task in tasks)

            await secured.until(look, "calls go on")

        tasks = [asyncio.create_task(call(number)) for number in range(CONNECTIONS)]
        try:
            await more_calls()
            certificate, new_key = self_signed("renewed.example")
            replace(pair.cert_file, certificate)
            await secured.until(
                lambda: _logged(secured, "it is not the key of the certificate"), "the pair does not fit yet"
            )
            await more_calls()
            assert await asyncio.to_thread(shown_name, urlsplit(secured.product.proxy).port or 0) == LOCALHOST
            replace(pair.key_file, new_key)
            await shows(secured, "renewed.example")
            await more_calls()
        finally:
            stop.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one for one in results if one is not None] == []
    assert set(statuses) == {200}
    assert opened == CONNECTIONS, "kept connections went on"
    await _check_metrics(secured, pair)


async def _check_metrics(stage: Stage, pair: PairFiles) -> None:
    ends_at_s = pair.read().ends_at_s
    for url in (stage.product.admin, stage.product.control):
        headers = {"Authorization": f"Bearer {METRICS_TOKEN}"}
        tls: Any = pair.client_context() if url.startswith("https") else True
        if not isinstance(tls, bool):
            tls.check_hostname = False
        async with (
            aiohttp.ClientSession() as session,
            session.get(url + "/metrics", headers=headers, ssl=tls) as answer,
        ):
            text = await answer.text()
        match = re.search(r"^tollgate_tls_certificate_not_after_seconds (\S+)$", text, re.MULTILINE)
        assert match is not None, text
        assert abs(float(match[1]) - ends_at_s) < 1


async def test_worker_that_is_replaced_while_the_files_are_broken_serves_the_certificate_before(
    secured: Stage, pair: PairFiles
) -> None:
    key = await secured.key_without_limits()
    pair.cert_file.write_bytes(b"half of a certif")
    await secured.until(lambda: _logged(secured, "expected certificates in PEM"), "it is said")
    for pid in secured.product.processes("-m proxy.worker "):
        kill(pid)
    await secured.until(secured.all_parts_ready, "other workers serve")
    status, _ = await secured.post(
        {"Authorization": f"Bearer {key}", "content-type": "application/json"},
        json.dumps({"model": secured.slug, "messages": [{"role": "user", "content": "Hi"}]}).encode(),
    )
    assert status == 200
    assert secured.product.stop() == 0
    again = await asyncio.to_thread(secured.product.run, "up", "--data", str(secured.product.data))
    assert again.returncode == 1
    assert "TOLLGATE_TLS_CERT_FILE: expected certificates in PEM" in again.stderr
    assert "Traceback" not in secured.product.log.read_text() + again.stderr


async def _logged(stage: Stage, text: str) -> bool:
    return text in stage.product.log.read_text()
