"""SIGTERM while calls are parked and queued: each gets an answer before the drain ends, and none is billed."""

import asyncio
from typing import Any

from tests.journeys.conftest import Stage
from tests.journeys.product import models
from tests.journeys.replicas.model_servers import ModelServers

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
Answer = tuple[int, Any, str | None]


async def _post(stage: Stage, key: str, path: str, **body: Any) -> Answer:
    headers = {"Authorization": f"Bearer {key}"}
    async with stage.session.post(stage.product.proxy + path, json=HELLO | body, headers=headers) as answer:
        return answer.status, await answer.json(), answer.headers.get("Retry-After")


async def _deployment(stage: Stage, model: str, replicas: list[str]) -> str:
    path = f"/v1/models/{model}/deployments"
    id = (await stage.operator.call("POST", path, {"name": "d", "max_concurrency": 1}))["id"]
    await stage.operator.call("PUT", f"{path}/{id}/replicas", {"replicas": replicas})
    return str(id)


async def test_sigterm_answers_calls_that_wait_for_a_replica(killable_stage: Stage, servers: ModelServers) -> None:
    stage = killable_stage
    operator = killable_stage.operator
    assert stage.product.stop() == 0
    stage.product.environment["TOLLGATE_DRAIN_TIMEOUT_S"] = "2"
    stage.product.start()
    server = servers.start(delay_s=60)
    model = str((await operator.call("POST", "/v1/models", {"name": stage.name}))["id"])
    busy = await _deployment(stage, model, [server.url])
    asleep = await _deployment(stage, model, [])
    await operator.call("PUT", f"/v1/models/{model}/environments/production", {"deployment_id": asleep})
    await operator.endpoint(stage.slug, model)
    key = await operator.key(await operator.group(stage.name, models(stage.slug)))
    direct = f"/models/{model}/deployment/{busy}/predict"

    running = asyncio.create_task(_post(stage, operator.api_key, direct))
    await stage.until(lambda: _value(server.received()), "a call runs")
    queued = asyncio.create_task(_post(stage, operator.api_key, direct))
    parked = [
        asyncio.create_task(_post(stage, key, "/v1/chat/completions", model=stage.slug, stream=stream))
        for stream in (False, True)
    ]

    async def all_wait() -> bool:
        paths = (f"/v1/models/{model}/deployments/{id}" for id in (busy, asleep))
        loads = [(await operator.call("GET", path))["load"] for path in paths]
        return [(load["queued"], load["parked"]) for load in loads] == [(1, 0), (0, 2)]

    await stage.until(all_wait, "one call is queued and two are parked")
    stage.product.up.terminate()
    assert await asyncio.to_thread(stage.product.ended, 30) == 0
    for status, body, _ in await asyncio.gather(*parked):
        assert (status, body["error"]) == (500, "Failed to route request")
    status, body, retry_after = await queued
    assert (status, body["error_code"], retry_after) == (529, "CAPACITY_EXHAUSTED", "1")
    (cut,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(cut, Exception), "what a replica works on is cut off at the end of the drain"
    stage.product.start()
    assert await operator.events(stage.name, stage.began) == []


async def _value(value: Any) -> Any:
    return value
