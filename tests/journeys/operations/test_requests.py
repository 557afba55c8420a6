"""The list of requests, as support uses it: what became of the call with this id, and what is behind a refusal."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from policy.credentials import prefix_of
from tests.journeys.conftest import Stage
from tests.journeys.limits.own_product import own_product
from tests.journeys.product import OperatorClient, models
from tests.upstream import ScriptedUpstream, answer_json, raw
from tests.upstream.chat_completions import chat_chunk, event

PATH = "/v1/gateway/requests"
MOST = 20
SETTINGS = {"TOLLGATE_REQUEST_MAX_PER_S": str(MOST)}
SECRET = "the-words-of-the-customer"
BEGINNING = event(chat_chunk("m", [{"index": 0, "delta": {"content": SECRET}}]))
CUT_STREAM = raw(
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n" % (len(BEGINNING), BEGINNING),
    then="reset",
)


async def test_every_call_is_found_by_its_id(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    async with own_product(tmp_path, SETTINGS, upstream) as stage:
        await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
        group_id = await stage.operator.group(stage.name, models(stage.slug, ("REQUEST", "DAY", 5)))
        key = await stage.operator.key(group_id)
        price = {"slug": stage.slug, "valid_from": "2026-01-01", "currency": "EUR"}
        rates = {"input_per_million": "3", "output_per_million": "15"}
        await stage.operator.call("PUT", "/v1/gateway/prices", price | rates)
        await check_success(stage, key)
        await check_stream(stage, key)
        await check_departure(stage, key)
        await check_failure(stage, key)
        await check_cut(stage, key)
        await check_refusal(stage, key, group_id)
        await check_credentials(stage)
        await check_tenants(stage, key)
        listed = await stage.operator.call("GET", PATH, limit=1000)
        assert SECRET not in str(listed)
        assert key not in str(listed)
        assert not listed["sampled"]
        assert len((await stage.operator.call("GET", PATH, status="5xx"))["items"]) == 2
        # A call may leave only the access log behind. The list is sent at the end, too.
        await ask(stage, key, "the-last-one")
        assert await asyncio.to_thread(stage.product.stop) == 0
        await asyncio.to_thread(stage.product.start)
        assert (await found(stage, "the-last-one"))["status"] == 429


async def ask(stage: Stage, key: str, request_id: str, **changes: Any) -> Any:
    """Make a call with this id; return the answer, or the error."""
    try:
        return await stage.ask(key, extra_headers={"x-request-id": request_id}, **changes)
    except openai.APIError as error:
        return error


async def stream(stage: Stage, key: str, request_id: str, most: int = 100) -> int:
    """Read at most this many chunks of a stream, then leave; return how many came."""
    chunks = 0
    async with stage.client(key) as client:
        messages: Any = [{"role": "user", "content": "Hello"}]
        headers = {"x-request-id": request_id}
        answer = await client.chat.completions.create(
            model=stage.slug, messages=messages, stream=True, extra_headers=headers
        )
        async for _ in answer:
            chunks += 1
            if chunks == most:
                break
        await answer.close()
    return chunks


async def found(stage: Stage, request_id: str, **members: Any) -> Any:
    """The call with this id, once the list has it, and once these members are not null."""

    async def look() -> Any:
        items = (await stage.operator.call("GET", PATH, request_id=request_id))["items"]
        return next((item for item in items if all(item[name] is not None for name in members)), None)

    return await stage.until(look, f"request {request_id}")


async def check_success(stage: Stage, key: str) -> None:
    await ask(stage, key, "ok", messages=[{"role": "user", "content": SECRET}])
    item = await found(stage, "ok", cost=True)
    (billed,) = await stage.events_of(stage.name, 1)
    assert item.pop("timestamp") >= stage.began[:-1]
    assert 0 < item.pop("time_to_first_byte_ms") <= item.pop("duration_ms")
    assert item == {
        "request_id": "ok",
        "external_entity_id": stage.name,
        "api_key_prefix": prefix_of(key),
        "slug": stage.slug,
        "path": "/v1/chat/completions",
        "status": 200,
        "error_code": None,
        "limit": None,
        "tokens": billed["tokens"],
        "cost": {"amount": "0.00021", "currency": "EUR"},
        "event_key": billed["idempotencyKey"],
        "weight": 1,
    }


async def check_stream(stage: Stage, key: str) -> None:
    assert await stream(stage, key, "stream")
    item = await found(stage, "stream", tokens=True)
    assert (item["status"], item["tokens"]["outputTokens"]) == (200, 10)


async def check_departure(stage: Stage, key: str) -> None:
    stage.upstream.plan(raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BEGINNING, then="keep"))
    assert await stream(stage, key, "left", most=1) == 1
    item = await found(stage, "left", event_key=True)
    assert (item["status"], item["error_code"]) == (499, "CLIENT_CLOSED_REQUEST")


async def check_failure(stage: Stage, key: str) -> None:
    stage.upstream.plan(answer_json(500, {"error": {"message": SECRET}}))
    assert (await ask(stage, key, "failed")).status_code == 500
    item = await found(stage, "failed", event_key=True)
    assert (item["status"], item["error_code"], item["limit"]) == (500, None, None)


async def check_cut(stage: Stage, key: str) -> None:
    stage.upstream.plan(CUT_STREAM)
    with pytest.raises((openai.APIError, httpx.TransportError)):
        await stream(stage, key, "cut")
    item = await found(stage, "cut", event_key=True)
    assert (item["status"], item["error_code"]) == (502, "UPSTREAM_ERROR")


async def check_refusal(stage: Stage, key: str, group_id: str) -> None:
    assert isinstance(await ask(stage, key, "refused"), openai.RateLimitError)
    item = await found(stage, "refused")
    assert (item["status"], item["error_code"], item["event_key"]) == (429, "RATE_LIMITED", None)
    limit = {"group_id": group_id, "api_key_prefix": None, "type": "REQUEST", "unit": "DAY", "threshold": 5}
    assert item["limit"] == limit
    (selected,) = (await stage.operator.call("GET", PATH, status="429", slug=stage.slug))["items"]
    assert selected == item
    assert f'"limit_group":"{group_id}"' in stage.product.log.read_text()  # its tail may end after that


async def check_credentials(stage: Stage) -> None:
    """A key that is known is listed although it may not call; one that is unknown is nobody's."""
    assert isinstance(await ask(stage, stage.operator.api_key, "known"), openai.PermissionDeniedError)
    assert isinstance(await ask(stage, "tg_aaaaaaaaaaaa.nobody", "unknown"), openai.PermissionDeniedError)
    item = await found(stage, "known")
    assert (item["status"], item["api_key_prefix"]) == (403, prefix_of(stage.operator.api_key))
    assert (await stage.operator.call("GET", PATH, request_id="unknown"))["items"] == []


async def check_tenants(stage: Stage, key: str) -> None:
    other = await asyncio.to_thread(stage.product.command, "workspace", "create", "other", "--prefix", "other")
    stranger = OperatorClient(stage.session, stage.product, other["api_key"])
    assert (await stranger.call("GET", PATH))["items"] == []
    assert (await stranger.call("GET", PATH, request_id="ok"))["items"] == []
    assert (await stranger.call("GET", PATH, api_key_prefix=prefix_of(key)))["items"] == []
    status, _ = await OperatorClient(stage.session, stage.product, key).ask("GET", PATH)
    assert status == 403, "a caller's key is no key of the management API"


async def test_above_the_bound_weights_sum_up_to_all_calls(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    """Calls of both workers, successes and refusals, in the seconds that they take."""
    calls = 600
    limit = 570
    async with own_product(tmp_path, SETTINGS, upstream) as stage:
        await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
        group_id = await stage.operator.group(stage.name, models(stage.slug, ("REQUEST", "DAY", limit)))
        headers = {"authorization": f"Bearer {await stage.operator.key(group_id)}"}
        body = b'{"model":"%b","messages":[{"role":"user","content":"Hello"}]}' % stage.slug.encode()
        places = asyncio.Semaphore(32)

        async def call() -> int:
            async with places:
                return (await stage.post(headers, body))[0]

        statuses = await asyncio.gather(*(call() for _ in range(calls)))
        assert (statuses.count(200), statuses.count(429)) == (limit, calls - limit)

        async def all_listed() -> Any:
            listed = await stage.operator.call("GET", PATH, limit=1000)
            return listed if sum(item["weight"] for item in listed["items"]) == calls else None

        listed = await stage.until(all_listed, "weights of all calls")
        items = listed["items"]
        assert sum(item["weight"] for item in items if item["status"] == 429) == calls - limit
        assert listed["sampled"]
        assert len(items) < calls
        seconds = [item["timestamp"][:19] for item in items]
        assert max(map(seconds.count, seconds)) <= MOST
