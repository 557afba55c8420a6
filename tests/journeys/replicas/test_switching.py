"""A deployment moved under an environment's name, replicas taken off the list, and deactivation: under steady calls."""

import asyncio
from collections import Counter

import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import models
from tests.journeys.replicas.model_servers import ModelServerProcess, ModelServers

CALLERS = 8


class SteadyCalls:
    """Callers that make one call after the other until `stop`."""

    def __init__(self, stage: Stage, key: str) -> None:
        self._stage = stage
        self._key = key
        self.statuses: Counter[int] = Counter()
        self._is_stopping = False
        self._call_count = 0
        self._tasks = [asyncio.create_task(self._call_until_stopped()) for _ in range(CALLERS)]

    async def _call_until_stopped(self) -> None:
        while not self._is_stopping:
            self._call_count += 1
            headers = {"Authorization": f"Bearer {self._key}", "X-Request-Id": f"steady.{self._call_count}"}
            body = {"model": self._stage.slug, "messages": [{"role": "user", "content": "Hello"}]}
            url = self._stage.product.proxy + "/v1/chat/completions"
            async with self._stage.session.post(url, json=body, headers=headers) as answer:
                await answer.read()
                self.statuses[answer.status] += 1

    async def stop(self) -> Counter[int]:
        self._is_stopping = True
        await asyncio.gather(*self._tasks)
        return self.statuses


@pytest.fixture
async def model(stage: Stage) -> str:
    return str((await stage.operator.call("POST", "/v1/models", {"name": stage.name}))["id"])


async def _deployment(stage: Stage, model: str, server: ModelServerProcess) -> str:
    path = f"/v1/models/{model}/deployments"
    id = (await stage.operator.call("POST", path, {"name": "d"}))["id"]
    await stage.operator.call("PUT", f"{path}/{id}/replicas", {"replicas": [server.url]})
    return str(id)


async def _reaches(stage: Stage, server: ModelServerProcess) -> None:
    before = len(server.received())

    async def look() -> bool:
        return len(server.received()) > before

    await stage.until(look, "new calls reach the server")


async def _no_longer_reaches(stage: Stage, server: ModelServerProcess) -> None:
    async def look() -> bool:
        before = len(server.received())
        await asyncio.sleep(0.3)
        return len(server.received()) == before

    await stage.until(look, "no new call reaches the server")


async def test_environment_moves_between_deployments_and_replicas_are_delisted_without_a_failed_call(
    stage: Stage, servers: ModelServers, model: str
) -> None:
    operator = stage.operator
    one, two, spare = (servers.start(delay_s=0.05) for _ in range(3))
    ids = [await _deployment(stage, model, server) for server in (one, two)]
    production = f"/v1/models/{model}/environments/production"
    await operator.call("PUT", production, {"deployment_id": ids[0]})
    await operator.endpoint(stage.slug, model)
    key = await operator.key(await operator.group(stage.name, models(stage.slug)))
    steady = SteadyCalls(stage, key)
    await _reaches(stage, one)
    for id, server, other in ((ids[1], two, one), (ids[0], one, two)):
        await operator.call("PUT", production, {"deployment_id": id})
        await _reaches(stage, server)
        await _no_longer_reaches(stage, other)
    replicas = f"/v1/models/{model}/deployments/{ids[0]}/replicas"
    await operator.call("PUT", replicas, {"replicas": [spare.url]})
    await _reaches(stage, spare)
    await _no_longer_reaches(stage, one)
    statuses = await steady.stop()
    assert set(statuses) == {200}, statuses
    assert set(servers.received().values()) == {1}, "no call was sent twice"
    events = await stage.events_of(stage.name, statuses[200])
    assert len({event["requestId"] for event in events}) == len(events) == statuses[200]


async def test_deactivated_deployment_stops_routing_and_comes_back_with_its_replicas(
    stage: Stage, servers: ModelServers, model: str
) -> None:
    operator = stage.operator
    server = servers.start()
    id = await _deployment(stage, model, server)
    await operator.call("PUT", f"/v1/models/{model}/environments/production", {"deployment_id": id})
    key = operator.api_key
    predict = f"/models/{model}/production/predict"

    async def status() -> int:
        return (await stage.post({"Authorization": f"Bearer {key}"}, b"{}", predict))[0]

    async def answers(expected_status: int) -> None:
        async def look() -> bool:
            return await status() == expected_status

        await stage.until(look, f"direct calls answer {expected_status}")

    await answers(200)
    path = f"/v1/models/{model}/deployments"
    assert await operator.call("POST", f"{path}/production/deactivate") == {"success": True}
    await answers(503)
    assert await operator.call("POST", f"{path}/{id}/activate") == {"success": True}
    await answers(200)
    assert (await operator.call("GET", f"{path}/production"))["replicas"] == [server.url]
