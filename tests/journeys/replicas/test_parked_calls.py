"""Calls that arrive while a deployment has no replica: parked, woken once, fair between groups, each answered once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.journeys.conftest import Stage
from tests.journeys.product import models
from tests.journeys.replicas.model_servers import ModelServers

NOISY, QUIET = 140, 20
GROUPS = {"noisy": NOISY, "quiet-1": QUIET, "quiet-2": QUIET, "quiet-3": QUIET}
DIRECT = 20
HEALTH = {"path": "/health", "interval_s": 0.5, "timeout_s": 1, "healthy_after": 1, "unhealthy_after": 2}


class WakeHook:
    """The operator's hook: counts how often it was asked to wake the deployment."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/wake/secret", self._asked)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/wake/secret"

    async def _asked(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        return web.Response(status=202)

    async def stop(self) -> None:
        await self._runner.cleanup()


class Crowd:
    """Callers of one slug, and direct callers of its model: each call has an id of its own, and ends once."""

    def __init__(self, stage: Stage, path: str, deployment: str) -> None:
        self.stage, self.path, self.deployment = stage, path, deployment
        self.keys: dict[str, str] = {}
        self.answers: dict[str, int] = {}
        """By request id: the status, or 0 for a call that was cut off."""
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def call(self, id: str, key: str, url: str) -> None:
        self.tasks[id] = asyncio.create_task(self._call(id, key, url))

    def call_slug(self, group: str, id: str) -> None:
        self.call(id, self.keys[group], "/v1/chat/completions")

    async def _call(self, id: str, key: str, url: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": id}
        body = {"model": self.stage.slug, "messages": [{"role": "user", "content": "Hello"}]}
        try:
            async with self.stage.session.post(self.stage.product.proxy + url, json=body, headers=headers) as answer:
                await answer.read()
                self.answers[id] = answer.status
        except aiohttp.ClientError:
            self.answers[id] = 0

    async def until_parked(self, count: int) -> None:
        async def look() -> bool:
            return bool((await self.load())["parked"] == count)

        await self.stage.until(look, f"{count} calls are parked")

    async def load(self) -> Any:
        return (await self.stage.operator.call("GET", self.deployment))["load"]

    async def all_ended(self) -> Counter[int]:
        await asyncio.gather(*self.tasks.values())
        return Counter(self.answers.values())


@pytest.fixture
def servers(tmp_path: Path) -> Any:
    servers = ModelServers(tmp_path)
    yield servers
    servers.stop()


@pytest.fixture
async def hook() -> AsyncIterator[WakeHook]:
    hook = WakeHook()
    await hook.start()
    yield hook
    await hook.stop()


@pytest.fixture
async def crowd(stage: Stage, hook: WakeHook) -> AsyncIterator[Crowd]:
    """A slug whose deployment is scaled to zero, and a key for each group."""
    operator = stage.operator
    model = (await operator.call("POST", "/v1/models", {"name": stage.name}))["id"]
    made = {"name": "d", "wake_url": hook.url, "health": HEALTH, "max_concurrency": 4, "max_queued": 400}
    deployment = (await operator.call("POST", f"/v1/models/{model}/deployments", made))["id"]
    path = f"/v1/models/{model}/deployments/{deployment}"
    await operator.call("PUT", f"/v1/models/{model}/environments/production", {"deployment_id": deployment})
    await operator.call("PUT", f"{path}/replicas", {"replicas": []})
    await operator.endpoint(stage.slug, model)
    crowd = Crowd(stage, f"/models/{model}", path)
    for group in GROUPS:
        crowd.keys[group] = await operator.key(await operator.group(f"{stage.name}-{group}", models(stage.slug)))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=90)
    ) as session:
        stage.session = session
        yield crowd
        for task in crowd.tasks.values():
            task.cancel()
        await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


def _arrive(crowd: Crowd) -> None:
    """All calls of all groups, the noisy group first, and the direct calls."""
    for group, count in GROUPS.items():
        for number in range(count):
            crowd.call_slug(group, f"{group}.{number}")
    for number in range(DIRECT):
        crowd.call(f"direct.{number}", crowd.stage.operator.api_key, f"{crowd.path}/production/predict")


async def test_parked_calls_are_woken_once_start_in_turn_and_are_each_answered_and_billed_once(
    crowd: Crowd, servers: ModelServers, hook: WakeHook
) -> None:
    stage, total = crowd.stage, sum(GROUPS.values()) + DIRECT
    _arrive(crowd)
    await crowd.until_parked(total)
    await stage.until(lambda: _value(hook.asked), "the hook is asked")
    assert (await stage.operator.call("GET", crowd.deployment))["status"] == "WAKING_UP"

    server = servers.start(healthy=False, delay_s=0.02)
    await stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    assert (await stage.operator.call("GET", crowd.deployment))["status"] == "LOADING_MODEL"
    assert not server.received()
    server.become_healthy()
    assert await crowd.all_ended() == {200: total}

    assert len(hook.asked) == 1, "asked for once per need, not per call and not per worker"
    assert hook.asked[0]["reason"] == "request"
    received = [id.partition(".")[0] for id in server.received()]
    assert Counter(servers.received().values()) == {1: total}, "no call was sent twice"
    quiet_ended = max(place for place, group in enumerate(received) if group != "noisy")
    noisy_before = received[:quiet_ended].count("noisy")
    assert noisy_before <= 2 * QUIET, f"{noisy_before} noisy calls came before the last quiet one"
    for group, count in GROUPS.items():
        entity = f"{stage.name}-{group}"
        events = await stage.events_of(entity, count)
        assert Counter(event["requestId"] for event in events) == Counter(
            f"{group}.{number}" for number in range(count)
        )

    async def active() -> bool:
        return bool((await stage.operator.call("GET", crowd.deployment))["status"] == "ACTIVE")

    await stage.until(active, "the deployment is ACTIVE")


async def test_callers_who_leave_while_parked_free_their_places_and_reach_no_replica(
    crowd: Crowd, servers: ModelServers
) -> None:
    stage = crowd.stage
    _arrive(crowd)
    await crowd.until_parked(sum(GROUPS.values()) + DIRECT)
    leaving = [id for id in crowd.tasks if id.startswith(("noisy", "direct"))]
    for id in leaving:
        crowd.tasks.pop(id).cancel()
    await crowd.until_parked(3 * QUIET)

    server = servers.start()
    await stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    assert await crowd.all_ended() == {200: 3 * QUIET}
    assert not set(server.received()) & set(leaving)
    assert len(await stage.events_of(f"{stage.name}-quiet-1", QUIET)) == QUIET
    assert await stage.operator.events(f"{stage.name}-noisy", stage.began) == []


async def test_five_replicas_come_and_go_under_parked_calls_and_every_call_has_its_documented_end(
    crowd: Crowd, servers: ModelServers
) -> None:
    """Some are delisted while they work, some are killed: only calls that a killed one had may fail, and with 502."""
    stage, operator = crowd.stage, crowd.stage.operator
    _arrive(crowd)
    await crowd.until_parked(sum(GROUPS.values()) + DIRECT)
    killed: list[Any] = []
    listed = [servers.start(delay_s=0.1)]

    async def put() -> None:
        urls = [server.url for server in listed]
        await operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": urls})

    async def some_reach(server: Any) -> None:
        await stage.until(lambda: _value(server.received()), "calls reach the new replica")

    await put()
    for step in range(4):
        await some_reach(listed[-1])
        listed.append(servers.start(delay_s=0.1))
        if step in (1, 3):
            killed.append(listed.pop(0))
            killed[-1].kill()
        elif step == 2:
            listed.pop(0)  # it finishes what it has
        await put()
    statuses = await crowd.all_ended()
    ran = servers.received()
    reached_killed = {id for server in killed for id in server.received()}
    failed = {id for id, status in crowd.answers.items() if status != 200}
    assert set(statuses) <= {200, 502}, statuses
    assert failed <= reached_killed, "only what a killed replica had may fail"
    assert set(ran.values()) == {1}, "no call was sent twice"
    assert set(ran) >= {id for id, status in crowd.answers.items() if status == 200}
    for group, count in GROUPS.items():
        events = await stage.events_of(f"{stage.name}-{group}", count)
        assert len({event["requestId"] for event in events}) == len(events) == count


async def _value(value: Any) -> Any:
    return value
