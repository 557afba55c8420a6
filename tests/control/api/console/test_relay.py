"""Calls of the console: what reaches the proxy, how its answer comes back, and what is refused before it is asked."""

import asyncio
import io
import json
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientPayloadError, ClientResponse, ClientSession, DummyCookieJar

from control.errors import TooManyCallsError
from control.resources.console.call_places import MOST, MOST_PER_SESSION, CallPlaces
from runtime.http.console_looks import HEADER, look_mark
from runtime.log_schema import FIELDS
from runtime.shares.places import NoPlaceError
from tests.control.api.console.browser import Browser, logged_in
from tests.control.plane import TOKEN, ControlPlane, running_plane
from tests.ports import own_port
from tests.upstream import Exchange, ScriptedUpstream, answer, answer_json, chunked, gated, head, held, raw, silent
from tests.waiting import PATIENCE_S

CALL = "/console/call"
STREAMED = {"transfer-encoding": "chunked", "content-type": "text/event-stream"}
ASK = {"method": "POST", "path": "/v1/chat/completions", "body": {"model": "acme/chat"}}


@pytest.fixture
async def proxy() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_json(200, {"ok": True})) as upstream:
        yield upstream


@pytest.fixture
async def relaying(proxy: ScriptedUpstream, migrated_file: Path, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with plane_at(proxy.url, migrated_file, tmp_path) as plane:
        yield plane


@asynccontextmanager
async def plane_at(proxy_url: str | None, migrated_file: Path, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    shutil.copy(migrated_file, tmp_path / "control.db")
    async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/control.db", proxy_url=proxy_url) as plane:
        yield plane


def relayed(body: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the proxy's answer."""
    first, _, rest = body.partition(b"\n")
    status_line = json.loads(first)
    return status_line["status"], dict(status_line["headers"]), rest


async def call(browser: Browser, **members: Any) -> tuple[int, dict[str, str], bytes]:
    answered = await browser.ask("POST", CALL, members)
    assert answered.status == 200, answered.body
    assert answered.headers["Content-Type"].startswith("application/octet-stream")
    assert answered.headers["X-Content-Type-Options"] == "nosniff"
    return relayed(answered.body.encode())


@asynccontextmanager
async def streaming(browser: Browser, **members: Any) -> AsyncIterator[ClientResponse]:
    """An answer while it comes; leaving the block leaves the call."""
    url = browser.plane.client.make_url(CALL)
    headers = {"Origin": browser.origin, "Cookie": browser.cookie}
    async with (
        ClientSession(cookie_jar=DummyCookieJar()) as client,
        client.post(url, json=members, headers=headers) as answered,
    ):
        yield answered


async def test_proxy_gets_the_call_with_the_key_of_the_session(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    proxy.plan(answer_json(429, {"error": "slow down"}, {"x-ratelimit-remaining-requests": "0"}))
    body = {"model": "acme/chat", "messages": [{"role": "user", "content": "Grüße\n"}], "temperature": 0.1, "n": None}
    status, headers, text = await call(
        browser, method="POST", path="/v1/messages", body=body, headers={"Anthropic-Version": "2023-06-01"}
    )
    assert (status, json.loads(text)) == (429, {"error": "slow down"})
    assert headers == {
        "content-length": str(len(text)),
        "content-type": "application/json",
        "x-ratelimit-remaining-requests": "0",
    }
    (received,) = proxy.received
    assert (received.method, received.target, received.json) == ("POST", "/v1/messages", body)
    assert sorted(received.headers) == [
        ("accept", "*/*"),
        ("accept-encoding", "identity"),
        ("anthropic-version", "2023-06-01"),
        ("authorization", f"Bearer {relaying.key}"),
        ("connection", "close"),
        ("content-length", str(len(received.body))),
        ("content-type", "application/json"),
        ("host", f"127.0.0.1:{proxy.port}"),
        ("user-agent", "Tollgate-Console/1"),
    ]


async def test_page_may_name_another_key(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    await call(browser, method="DELETE", path="/async_request/areq_1", api_key="tg_of-a-customer.secret")
    await call(browser, method="GET", path="/models/mdl_1/production/async_queue_status", api_key=None)
    first, second = proxy.received
    assert (first.method, first.header("authorization")) == ("DELETE", "Bearer tg_of-a-customer.secret")
    assert (second.method, second.header("authorization")) == ("GET", f"Bearer {relaying.key}")
    assert first.header("content-type") is None


async def test_only_what_pages_show_is_marked_as_a_look(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    looks = [
        *("/v1/models", "/async_request/areq_1", "/models/mdl_1/async_request/areq_1"),
        *("/models/mdl_1/production/async_queue_status", "/models/mdl_1/deployment/dep_1/async_queue_status"),
        "/models/mdl_1/environments/blue/async_queue_status",
    ]
    calls = [
        *(("POST", path) for path in looks),
        *(("DELETE", path) for path in looks),
        *(("GET", f"/models/mdl_1/production/sync{path}") for path in looks),
        *(("GET", path) for path in ("/v1/models/acme", "/models/sync/async_queue_status", "/v1/chat/completions")),
    ]
    for method, path in [*(("GET", path) for path in looks), *calls]:
        await call(browser, method=method, path=path)
    marks = [received.header(HEADER) for received in proxy.received]
    assert marks == [look_mark(TOKEN)] * len(looks) + [None] * len(calls)
    answered = await browser.ask("POST", CALL, {**ASK, "headers": {HEADER: look_mark(TOKEN)}})
    assert answered.status == 400, "no page sets the mark"


async def test_key_that_may_only_invoke_may_call(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    key = (await relaying.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()
    await call(await logged_in(relaying, key["api_key"]), **ASK)
    assert proxy.received[0].header("authorization") == f"Bearer {key['api_key']}"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "/",
            "//evil.example/v1/models",
            "http://evil.example/v1/models",
            "/v1",
            "/v1/",
            "/v1//models",
            "v1/models",
        ),
        *(
            "/v1/../metrics",
            "/v1/./models",
            "/v1/%2e%2e/metrics",
            "/v1/..%2fmetrics",
            "/v1/models?limit=1",
            "/v1/models#x",
        ),
        *("/v1/models\r\nx: y", "/v1/models\n", "/v1/mod els", "/v1/models\\..", "/v1/@evil.example", "/v1/modèles"),
        *("/metrics", "/healthz", "/internal/v1/snapshot", "/V1/models", "/v10/models", ":8082/v1/models", "/v1/x:1"),
        "/v1/" + "a" * 1024,
    ],
)
async def test_other_paths_are_refused(relaying: ControlPlane, proxy: ScriptedUpstream, path: str) -> None:
    browser = await logged_in(relaying)
    refused = (await browser.ask("POST", CALL, {"method": "GET", "path": path})).refused(400, "INVALID_REQUEST")
    assert refused["details"][0]["field"] == "path"
    assert proxy.received == []


@pytest.mark.parametrize(
    "members",
    [
        {"method": "PUT"},
        {"headers": {"host": "evil.example"}},
        {"headers": {"authorization": "Bearer x"}},
        {"headers": {"accept": "a\r\nx-api-key: b"}},
        {"headers": {"accept": " "}},
        {"headers": {"accept": "a" * 1025}},
        {"headers": {"accept": 1}},
        {"api_key": "a\r\nx: y"},
        {"api_key": "schlüssel"},
        {"api_key": ""},
        {"method": "GET", "body": {}},
        {"method": "DELETE", "body": None},
        {"url": "http://evil.example"},
    ],
)
async def test_other_members_are_refused(
    relaying: ControlPlane, proxy: ScriptedUpstream, members: dict[str, Any]
) -> None:
    browser = await logged_in(relaying)
    (await browser.ask("POST", CALL, {"method": "POST", "path": "/v1/models"} | members)).refused(
        400, "INVALID_REQUEST"
    )
    assert proxy.received == []


async def test_body_has_at_most_a_mebibyte(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    large = json.dumps({**ASK, "body": "a" * 1_048_576}).encode()
    url = relaying.client.make_url(CALL)
    headers = {"Origin": browser.origin, "Cookie": browser.cookie}
    async with ClientSession(cookie_jar=DummyCookieJar(), headers={"Content-Type": "application/json"}) as client:
        async with client.post(url, data=io.BytesIO(large), headers=headers) as answered:
            assert answered.status == 413
        async with client.post(url, data=io.BytesIO(large[:100] + large[600:]), headers=headers) as answered:
            assert answered.status == 200
    (received,) = proxy.received
    assert len(received.body) == 1_048_576 + 2 - 500


async def test_only_sessions_of_callers_may_call(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    group = await relaying.group("customer")
    federated = (await relaying.post(f"/v1/gateway/groups/{group['id']}/api_keys", {})).ok()["api_key"]
    metrics = (await relaying.post("/v1/api_keys", {"type": "WORKSPACE_EXPORT_METRICS"})).ok()["api_key"]
    (await Browser(relaying).ask("POST", CALL, ASK)).refused(401, "UNAUTHORIZED")
    key_alone = {"Authorization": f"Bearer {relaying.key}"}
    (await Browser(relaying).ask("POST", CALL, ASK, key_alone)).refused(401, "UNAUTHORIZED")
    own = await logged_in(relaying)
    (await own.ask("POST", CALL, ASK, {"Origin": "https://evil.example"})).refused(403, "FOREIGN_ORIGIN")
    request = {**ASK, "api_key": relaying.key}
    (await (await logged_in(relaying, federated)).ask("POST", CALL, request)).refused(403, "FEDERATED_KEY")
    (await (await logged_in(relaying, metrics)).ask("POST", CALL, request)).refused(403, "MISSING_SCOPE")
    assert proxy.received == []


async def test_answer_comes_as_it_is_sent(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    rest = asyncio.Event()
    first = head(200, STREAMED) + chunked(b"data: 1\n\n", end=False)
    proxy.plan(held(rest, first, chunked(b"data: 2\n\n")))
    async with streaming(browser, **ASK) as answered:
        assert json.loads(await answered.content.readline())["status"] == 200
        assert await answered.content.readexactly(9) == b"data: 1\n\n"
        rest.set()
        assert await answered.content.read() == b"data: 2\n\n"


@pytest.mark.parametrize(
    "output", [b"", head(200, STREAMED) + chunked(b"data: 1\n\n", end=False)], ids=["head", "body"]
)
async def test_browser_that_leaves_ends_the_call(
    relaying: ControlPlane, proxy: ScriptedUpstream, output: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    browser = await logged_in(relaying)
    proxy.plan(silent(output))

    async def leave_when_answered() -> None:
        async with streaming(browser, **ASK) as answered:
            await answered.content.readline()

    asking = asyncio.create_task(leave_when_answered())
    await proxy.until(lambda: proxy.open_connections == 1 and bool(proxy.received))
    if not output:
        asking.cancel()
    await asyncio.wait({asking})
    async with asyncio.timeout(PATIENCE_S):
        await proxy.until(lambda: proxy.open_connections == 0)
    await call(browser, **ASK)
    lines = [getattr(record, FIELDS) for record in caplog.records if hasattr(record, FIELDS)]
    assert [line["status"] for line in lines if line["path"] == CALL] == [499, 200]


async def test_reader_that_stops_holds_up_the_proxy(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    stalled = asyncio.Event()
    size = 0
    piece = chunked(b"a" * 65_536, end=False)

    async def behave(exchange: Exchange) -> None:
        nonlocal size
        await exchange.read_body()
        await exchange.send(head(200, STREAMED))
        try:
            while size < 128 * len(piece) * 8:
                async with asyncio.timeout(0.5):
                    await exchange.send(piece)
                size += len(piece)
        except TimeoutError:
            stalled.set()
        exchange.reset()

    proxy.plan(behave)
    async with streaming(browser, **ASK) as answered:
        await answered.content.readline()
        async with asyncio.timeout(30):
            await stalled.wait()
    assert size < 32 * 1024 * 1024, "what the kernel and the clients buffer is far less than that"


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_answer_that_breaks_off_is_never_complete(
    relaying: ControlPlane, proxy: ScriptedUpstream, then: str
) -> None:
    proxy.plan(raw(head(200, STREAMED) + chunked(b"data: 1\n\n", end=False), then=then))
    async with streaming(await logged_in(relaying), **ASK) as answered:
        with pytest.raises((ClientPayloadError, ClientConnectionError)):
            await answered.read()


async def test_redirect_is_passed_on_and_cookies_are_not_kept(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    proxy.plan(answer(302, b"", {"location": f"{proxy.url}/metrics", "set-cookie": "a=b"}))
    status, headers, _ = await call(browser, **ASK)
    assert (status, headers["location"]) == (302, f"{proxy.url}/metrics")
    await call(browser, **ASK)
    assert [received.target for received in proxy.received] == ["/v1/chat/completions"] * 2
    assert proxy.received[1].header("cookie") is None


async def test_compressed_answer_is_passed_on(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    proxy.plan(answer(200, b"not really gzip", {"content-encoding": "gzip"}))
    status, headers, text = await call(await logged_in(relaying), **ASK)
    assert (status, headers["content-encoding"], text) == (200, "gzip", b"not really gzip")


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_proxy_that_gives_no_answer_is_503_and_the_key_is_not_logged(
    relaying: ControlPlane, proxy: ScriptedUpstream, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    caplog.set_level(logging.DEBUG)
    browser = await logged_in(relaying)
    proxy.plan(raw(then=then), answer_json(500, {"error": "bug"}))
    request = {**ASK, "api_key": "tg_000000000001.secret-of-a-customer"}
    (await browser.ask("POST", CALL, request)).refused(503, "PROXY_UNAVAILABLE")
    assert (await call(browser, **request))[0] == 500
    (await browser.ask("POST", CALL, {**request, "path": "/metrics"})).refused(400)
    assert "secret-of-a-customer" not in caplog.text
    assert relaying.key not in caplog.text


async def test_proxy_that_is_away_is_503(migrated_file: Path, tmp_path: Path) -> None:
    async with plane_at(f"http://127.0.0.1:{own_port()}", migrated_file, tmp_path) as plane:
        (await (await logged_in(plane)).ask("POST", CALL, ASK)).refused(503, "PROXY_UNAVAILABLE")


async def test_without_the_setting_there_are_no_calls(sqlite_plane: ControlPlane) -> None:
    refused = (await (await logged_in(sqlite_plane)).ask("POST", CALL, ASK)).refused(404, "NO_PROXY_URL")
    assert "TOLLGATE_PROXY_URL" in refused["error"]


async def test_session_has_so_many_calls_at_once(relaying: ControlPlane, proxy: ScriptedUpstream) -> None:
    browser = await logged_in(relaying)
    other = await logged_in(relaying)
    proxy.default = gated(answer_json(200, {}))
    proxy.gate.close()
    under_way = [asyncio.create_task(call(browser, **ASK)) for _ in range(MOST_PER_SESSION)]
    await proxy.until(lambda: len(proxy.received) == MOST_PER_SESSION)
    refused = await browser.ask("POST", CALL, ASK)
    assert refused.refused(429, "TOO_MANY_CALLS")["retry_after"] == 1
    of_other = asyncio.create_task(call(other, **ASK))
    await proxy.until(lambda: len(proxy.received) == MOST_PER_SESSION + 1)
    proxy.gate.open()
    assert {status for status, _, _ in await asyncio.gather(of_other, *under_way)} == {200}
    await call(browser, **ASK)


def test_workspace_with_its_share_of_calls_leaves_places_to_others() -> None:
    places = CallPlaces()
    with ExitStack() as stack:
        for number in range(MOST * 3 // 4):
            stack.enter_context(places.taken(f"session-{number}", "acme"))
        with pytest.raises(NoPlaceError), places.taken("session-x", "acme"):
            pass
        stack.enter_context(places.taken("session-x", "another"))
    for _ in range(MOST_PER_SESSION):
        stack.enter_context(places.taken("session-x", "acme"))
    with pytest.raises(TooManyCallsError), places.taken("session-x", "acme"):
        pass
    stack.close()
