"""Processes and replicas die and stand still under calls to a platform model: nothing is sent, billed or held twice."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import kill, models
from tests.journeys.replicas.conftest import HEALTH
from tests.journeys.replicas.crowd import TOTAL, Crowd, WakeHook
from tests.journeys.replicas.model_servers import ModelServerProcess, ModelServers

SECONDS = 12.0
LONG = float(os.environ.get("TOLLGATE_CHAOS_SECONDS", "300"))
GROUPS = ("even", "odd")
CALLERS = 12
MAX_CONCURRENCY = 3
DOCUMENTED = {0, 200, 500, 502, 503, 504, 529}
"""Statuses that a call may get while all this happens; 0: its connection was cut."""
PROCESSES = ("proxy.worker", "proxy.worker", "-m proxy --", "-m control --", "redis-server")


@dataclass
class Fleet:
    """One deployment with replicas that die and are replaced, and callers who record how each call ended."""

    stage: Stage
    servers: ModelServers
    model: str
    deployment: str
    rng: random.Random
    keys: dict[str, str] = field(default_factory=dict)
    live: list[ModelServerProcess] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    """Statuses by request id."""
    is_stopping: bool = False

    async def list_replicas(self) -> None:
        """Put the list of replicas until control takes it: it may be dead for a moment."""
        urls = {"replicas": [server.url for server in self.live]}

        async def put() -> bool:
            with contextlib.suppress(aiohttp.ClientError, AssertionError):
                await self.stage.operator.call("PUT", f"{self.deployment}/replicas", urls)
                return True
            return False

        await self.stage.until(put, "the replicas are listed")

    async def call_until_stopped(self, caller: int) -> None:
        call_count = 0
        while not self.is_stopping:
            call_count += 1
            group = self.rng.choice((*GROUPS, "direct"))
            status = await self.call(group, f"{group}.{caller}.{call_count}")
            await asyncio.sleep(0.1 if not status else self.rng.uniform(0, 0.05))

    async def call(self, group: str, id: str) -> int:
        path = f"/models/{self.model}/production/predict" if group == "direct" else "/v1/chat/completions"
        key = self.keys.get(group, self.stage.operator.api_key)
        body = {"model": self.stage.slug, "messages": [{"role": "user", "content": "Hello"}]}
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": id}
        self.ended[id] = 0
        with contextlib.suppress(aiohttp.ClientError):
            async with self.stage.session.post(self.stage.product.proxy + path, json=body, headers=headers) as answer:
                text = await answer.read()
                self.ended[id] = answer.status
                assert answer.status != 500 or b"Failed to route request" in text
        return self.ended[id]

    async def disturb(self) -> str:
        """Kill or pause something; returns what."""
        kind = self.rng.choice(("process", "process", "replica", "pause"))
        if kind == "process":
            command_part = self.rng.choice(PROCESSES)
            for pid in self.stage.product.processes(command_part)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    kill(pid)
            return command_part
        if kind == "replica":
            self.live.pop(0).kill()
            self.live.append(self.servers.start(delay_s=0.03))
            await self.list_replicas()
        else:
            paused = self.rng.choice(self.live)
            paused.pause()
            await asyncio.sleep(self.rng.uniform(0.5, 2))
            paused.go_on()
        return kind

    async def gauges(self) -> float:
        """Sum the machine's metrics of calls in flight, queued and parked, over all deployments and workers."""
        async with self.stage.session.get(self.stage.product.admin + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        names = ("tollgate_deployment_in_flight", "tollgate_deployment_queued", "tollgate_deployment_parked")
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((*names, "tollgate_parked_")))


@pytest.fixture
async def fleet(killable_stage: Stage, servers: ModelServers) -> Fleet:
    stage = killable_stage
    operator = killable_stage.operator
    model = str((await operator.call("POST", "/v1/models", {"name": stage.name}))["id"])
    settings = {"name": "d", "health": HEALTH, "max_concurrency": MAX_CONCURRENCY, "max_queued": 50}
    id = (await operator.call("POST", f"/v1/models/{model}/deployments", settings))["id"]
    await operator.call("PUT", f"/v1/models/{model}/environments/production", {"deployment_id": id})
    await operator.endpoint(stage.slug, model)
    fleet = Fleet(stage, servers, model, f"/v1/models/{model}/deployments/{id}", random.Random())
    fleet.live = [servers.start(delay_s=0.03) for _ in range(3)]
    await fleet.list_replicas()
    plenty = ("REQUEST", "DAY", 1_000_000)
    for group in GROUPS:
        fleet.keys[group] = await operator.key(
            await operator.group(f"{stage.name}-{group}", models(stage.slug, plenty))
        )
    return fleet


async def _value(value: Any) -> Any:
    return value


@pytest.mark.timeout(400)
async def test_every_call_is_accounted_for_when_processes_and_replicas_die(fleet: Fleet) -> None:
    await _chaos(fleet, SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(LONG + 300)
async def test_every_call_is_accounted_for_in_a_long_run(fleet: Fleet) -> None:
    await _chaos(fleet, LONG)


async def _chaos(fleet: Fleet, seconds: float) -> None:
    stage = fleet.stage
    callers = [asyncio.create_task(fleet.call_until_stopped(number)) for number in range(CALLERS)]
    ends_at = asyncio.get_running_loop().time() + seconds
    counts = Counter[str]()
    while asyncio.get_running_loop().time() < ends_at:
        await asyncio.sleep(fleet.rng.uniform(0.3, 1.5))
        counts[await fleet.disturb()] += 1
    fleet.is_stopping = True
    await asyncio.gather(*callers)
    await stage.until(stage.all_parts_ready, "all processes run again")
    await fleet.list_replicas()

    statuses = Counter(fleet.ended.values())
    story = f"{counts} {statuses}"
    assert set(statuses) <= DOCUMENTED, story
    assert statuses[200] > CALLERS, story
    ran = fleet.servers.received()
    assert set(ran.values()) <= {1}, f"a call reached two replicas: {ran.most_common(3)} {story}"
    assert set(ran) >= {id for id, status in fleet.ended.items() if status == 200}

    async def nothing_left() -> bool:
        load = (await stage.operator.call("GET", fleet.deployment))["load"]
        return not any((load["in_flight"], load["queued"], load["parked"], await fleet.gauges()))

    await stage.until(nothing_left, "no call counts as running or waiting any more")

    async def all_serve() -> bool:
        before = [len(server.received()) for server in fleet.live]
        round_name = f"{len(fleet.ended)}"
        answered = await asyncio.gather(*(fleet.call("direct", f"last.{round_name}.{number}") for number in range(24)))
        gained = [len(server.received()) - old for server, old in zip(fleet.live, before, strict=True)]
        return set(answered) == {200} and all(gained)

    await stage.until(all_serve, f"every replica gets calls again {story}")

    for group in GROUPS:
        answered = {id for id, status in fleet.ended.items() if id.startswith(group) and status == 200}
        events = await stage.events_of(f"{stage.name}-{group}", len(answered))
        await asyncio.sleep(1.5)  # longer than the holdback: what came twice would be listed by now
        events = await stage.operator.events(f"{stage.name}-{group}", stage.began, 1000)
        billed = Counter(event["requestId"] for event in events)
        assert set(billed.values()) <= {1}, f"billed twice: {billed.most_common(3)} {story}"
        assert answered <= set(billed) <= set(fleet.ended), story
        assert not [id for id in billed if fleet.ended[id] in (500, 529)], "billed, but never dispatched"


async def test_parked_calls_outlive_control_and_redis_and_are_woken_afterwards(
    crowd: Crowd, killable_stage: Stage, servers: ModelServers, hook: WakeHook
) -> None:
    stage = killable_stage
    await stage.until(lambda: _all_known(crowd), "the proxy knows the slug, the keys and the model")
    for pid in stage.product.processes("-m control --"):
        os.kill(pid, signal.SIGKILL)
    crowd.arrive()
    await stage.control_is_back()
    await crowd.until_parked(TOTAL)
    await stage.until(lambda: _value(hook.requests), "the hook is asked after control came back")
    for pid in (*stage.product.processes("redis-server"), *stage.product.processes("-m control --")):
        os.kill(pid, signal.SIGKILL)
    await stage.control_is_back()
    await stage.until(stage.all_parts_ready, "Redis is back")
    await stage.operator.call("PATCH", crowd.deployment, {"name": "other"})
    await crowd.until_parked(TOTAL)
    server = servers.start(delay_s=0.01)
    await stage.operator.call("PUT", f"{crowd.deployment}/replicas", {"replicas": [server.url]})
    assert await crowd.all_ended() == {200: TOTAL}
    assert Counter(servers.received().values()) == {1: TOTAL}


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_replica_never_has_more_calls_at_once_than_its_bound(
    stage: Stage, servers: ModelServers, most: int
) -> None:
    """The bound holds over all workers, with calls that arrive at random and callers who leave while they wait."""
    operator = stage.operator
    rng = random.Random(most)
    model = str((await operator.call("POST", "/v1/models", {"name": stage.name}))["id"])
    settings = {"name": "d", "max_concurrency": most, "max_queued": 1000}
    path = f"/v1/models/{model}/deployments"
    id = (await operator.call("POST", path, settings))["id"]
    live = [servers.start(delay_s=0.01) for _ in range(2)]
    await operator.call("PUT", f"{path}/{id}/replicas", {"replicas": [server.url for server in live]})
    predict = f"/models/{model}/deployment/{id}/predict"

    async def call(number: int) -> int:
        await asyncio.sleep(rng.uniform(0, 1))
        headers = {"Authorization": f"Bearer {operator.api_key}", "X-Request-Id": f"{stage.name}.{number}"}
        try:
            async with asyncio.timeout(0.02 if number % 4 == 0 else 60):
                return (await stage.post(headers, b"{}", predict))[0]
        except TimeoutError:
            return 0

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        stage.session = session
        await stage.until(lambda: _served(call), "the deployment serves")
        statuses = Counter(await asyncio.gather(*(call(number) for number in range(1, 301))))
    assert set(statuses) <= {0, 200}
    assert statuses[200] >= 225
    assert max(server.most_at_once() for server in live) == most
    assert set(servers.received().values()) == {1}


async def _all_known(crowd: Crowd) -> bool:
    stage = crowd.stage
    statuses = list[int]()
    requests = [(key, f"/v1/models/{stage.slug}") for key in crowd.keys.values()] * 4  # every worker
    for key, path in [*requests, (stage.operator.api_key, f"{crowd.path}/production/predict")]:
        url = stage.product.proxy + path
        headers = {"Authorization": f"Bearer {key}"}
        async with stage.session.get(url, headers=headers) as answer:
            statuses.append(answer.status)
    return statuses == [200] * len(requests) + [405]


async def _served(call: Any) -> bool:
    return bool(await call(-1) == 200)
