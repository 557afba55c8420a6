"""Platform models in real processes: one prober per machine, parked calls, reports to control, gauges."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from policy.credentials import KeyKind, digest_of
from policy.deployments import ACTIVE, LOADING_MODEL, Deployment, HealthCheck
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.limit import SlugLimits
from policy.snapshot import EndpointRow, KeyRow, ModelRow, group_to_wire
from tests.contracts.process.test_supervisor import ANSWER, World, a_world, make_key
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.upstream import Behaviour, Exchange, answer, answer_json, silent
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")

SLUG = "org/platform"
RARELY = HealthCheck(interval_s=3600)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with private_redis() as redis:
        async with a_world(tmp_path, redis) as world:
            world.proxy.environ["TOLLGATE_EGRESS_ALLOW"] = "127.0.0.0/8"
            control = world.control
            control.put("endpoint", SLUG, EndpointRow(SLUG, "p", "ws", Target("PLATFORM", model_id="m")).to_wire())
            group = Group("g", "ws", None, "customer", Enforcement.CASCADING, (SlugLimits(SLUG),))
            control.put("group", "g", group_to_wire(group))
            yield world


async def deploy(world: World, *replicas: str, status: str = ACTIVE, check: HealthCheck | None = RARELY) -> None:
    row = ModelRow("m", "ws", {"d": Deployment("d", status, replicas, check)}, {"production": "d"})
    world.control.put("model", "m", row.to_wire())
    await world.hint()


def replica(world: World, health: Behaviour) -> None:
    """The replica answers calls, and probes by `health`."""

    async def behave(exchange: Exchange) -> None:
        probed = exchange.received.path == "/health"
        await (health if probed else answer_json(200, ANSWER))(exchange)

    world.upstream.default = behave


def probes(world: World) -> int:
    return sum(received.path == "/health" for received in world.upstream.received)


def loads(world: World) -> list[Mapping[str, Any]]:
    return [load for what, report in world.control.reports if what == "loads" for load in report["loads"]]


async def test_replica_is_probed_once_per_machine_whatever_the_number_of_workers(world: World) -> None:
    replica(world, answer(200))
    await deploy(world, world.upstream.url, check=HealthCheck(interval_s=0.3))
    await world.proxy.start(workers=3)
    await eventually(lambda: probes(world) >= 2)
    started_s = time.monotonic()
    before = probes(world)
    await eventually(lambda: probes(world) >= before + 6)
    assert time.monotonic() - started_s >= 5 * 0.3, "three probers would need a third of it"
    await world.proxy.stop()
    after = probes(world)
    await asyncio.sleep(0.6)
    assert probes(world) == after


async def test_parked_call_starts_with_the_first_good_probe_and_is_reported(world: World) -> None:
    replica(world, answer(503))
    await deploy(world, world.upstream.url, status=LOADING_MODEL)
    await world.proxy.start(workers=2)
    call = asyncio.create_task(world.proxy.call(slug=SLUG))
    await eventually(lambda: loads(world) and loads(world)[-1]["parked"] == 1)
    load = loads(world)[-1]
    assert (load["model_id"], load["deployment_id"], load["in_flight"], load["queued"]) == ("m", "d", 0, 0)
    assert (load["healthy"], load["unhealthy"]) == ([], [world.upstream.url])
    assert load["last_request_at_ms"] > 1_700_000_000_000
    assert await gauge(world, "parked") == 1
    assert not call.done()
    replica(world, answer(200))
    assert (await call)[0] == 200, "although the regular probe would come in an hour"
    await eventually(lambda: (loads(world)[-1]["parked"], loads(world)[-1]["healthy"]) == (0, [world.upstream.url]))
    assert [await gauge(world, name) for name in ("in_flight", "queued", "parked")] == [0, 0, 0]
    assert await world.proxy.metric('tollgate_replica_probes_total{outcome="good"}') == 1
    assert await world.proxy.metric('tollgate_replica_probes_total{outcome="status"}') >= 1
    assert {report["machine"] for what, report in world.control.reports if what == "loads"} == {machine(world)}


async def gauge(world: World, name: str) -> float:
    labels = '{deployment_id="d",model_id="m",workspace="ws"}'
    return await world.proxy.metric(f"tollgate_deployment_{name}_requests{labels}")


def machine(world: World) -> str:
    name: str = world.control.reports[0][1]["machine"]
    assert len(bytes.fromhex(name)) == 8
    return name


async def test_replica_that_falls_ill_gets_no_calls_until_it_is_well(world: World) -> None:
    replica(world, answer(200))
    await deploy(world, world.upstream.url, check=HealthCheck(interval_s=0.05))
    await world.proxy.start()
    assert (await world.proxy.call(slug=SLUG))[0] == 200
    replica(world, answer(500))
    await eventually(lambda: loads(world)[-1]["unhealthy"] == [world.upstream.url])
    assert (await world.proxy.call(slug=SLUG))[0] == 503
    replica(world, answer(200))
    await eventually(lambda: loads(world)[-1]["healthy"] == [world.upstream.url])
    assert (await world.proxy.call(slug=SLUG))[0] == 200
    logged = world.proxy.log.read_text()
    assert "Replica 1 of 1 of deployment d gets no calls: GET /health was answered 500" in logged
    assert "Replica 1 of 1 of deployment d is healthy" in logged


async def test_call_leaves_one_line_in_its_deployments_log(world: World) -> None:
    replica(world, answer(200))
    await deploy(world, world.upstream.url, check=None)
    await world.proxy.start(workers=2)
    assert (await world.proxy.call(slug=SLUG))[0] == 200
    await eventually(lambda: any(what == "logs" for what, _ in world.control.reports))
    (line,) = [line for what, report in world.control.reports if what == "logs" for line in report["lines"]]
    assert (line["deployment_id"], line["level"], line["replica"]) == ("d", "INFO", world.upstream.url)
    assert line["message"].startswith("POST /v1/chat/completions 200 in ")
    assert line["request_id"]


async def test_last_report_at_shutdown_tells_of_the_last_call(world: World) -> None:
    replica(world, answer(200))
    await deploy(world, world.upstream.url, check=None)
    await world.proxy.start()
    world.upstream.gate.close()

    async def behave(exchange: Exchange) -> None:
        await exchange.gate.passed()
        await answer_json(200, ANSWER)(exchange)

    world.upstream.default = behave
    call = asyncio.create_task(world.proxy.call(slug=SLUG))
    await eventually(lambda: loads(world) and loads(world)[-1]["in_flight"] == 1)
    assert world.proxy.process is not None
    world.proxy.process.send_signal(signal.SIGTERM)
    world.upstream.gate.open()
    assert (await call)[0] == 200
    assert await world.proxy.stop() == 0
    assert loads(world)[-1]["in_flight"] == 0
    assert [len(report["lines"]) for what, report in world.control.reports if what == "logs"] == [1]


async def test_killed_workers_calls_free_their_replica_at_once(world: World) -> None:
    """A call of a dead worker must not keep the replica busy until the supervisor ends."""
    bounded = Deployment("d", ACTIVE, (world.upstream.url,), max_concurrency=1, max_queued=0)
    world.control.put("model", "m", ModelRow("m", "ws", {"d": bounded}, {"production": "d"}).to_wire())
    await world.proxy.start()
    world.upstream.default = silent()
    call = asyncio.create_task(world.proxy.call(slug=SLUG))
    await eventually(lambda: world.upstream.received)
    status, body = await world.proxy.call(slug=SLUG)
    assert (status, body["error_code"]) == (529, "CAPACITY_EXHAUSTED"), "no room, and no queue"
    world.upstream.default = answer_json(200, ANSWER)
    [worker] = world.proxy.workers()
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await call
    assert (await world.proxy.call(slug=SLUG))[0] == 200


async def test_parked_calls_of_all_workers_start_in_turn_between_groups_and_within_the_bound(world: World) -> None:
    modest_group = Group("g2", "ws", None, "modest", Enforcement.CASCADING, (SlugLimits(SLUG),))
    world.control.put("group", "g2", group_to_wire(modest_group))
    key = KeyRow(digest_of(make_key(2)), make_key(2).partition(".")[0], KeyKind.FEDERATED, "ws", "g2")
    world.control.put("key", key.digest, key.to_wire())
    running = 0
    most = 0

    async def behave(exchange: Exchange) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.005)
        running -= 1
        await answer_json(200, ANSWER)(exchange)

    world.upstream.default = behave
    await deploy(world, status="SCALED_TO_ZERO", check=None)
    await world.proxy.start(workers=2)
    noisy = [asyncio.create_task(world.proxy.call(slug=SLUG)) for _ in range(80)]
    await eventually(lambda: loads(world) and loads(world)[-1]["parked"] == 80)
    modest = [asyncio.create_task(world.proxy.call(make_key(2), SLUG)) for _ in range(10)]
    await eventually(lambda: loads(world)[-1]["parked"] == 90)
    answered: list[str] = []
    for name, tasks in (("noisy", noisy), ("modest", modest)):
        for task in tasks:
            task.add_done_callback(lambda _, name=name: answered.append(name))  # type: ignore[misc] # bound at once
    bounded = Deployment("d", ACTIVE, (world.upstream.url,), max_concurrency=4, max_queued=5)
    world.control.put("model", "m", ModelRow("m", "ws", {"d": bounded}, {"production": "d"}).to_wire())
    await world.hint()
    assert {status for status, _ in await asyncio.gather(*noisy, *modest)} == {200}
    assert most <= 4
    assert answered[40:].count("modest") == 0, "each second call was theirs, though they came last"


async def test_outage_of_control_delays_no_parked_call_and_is_made_up_for(world: World) -> None:
    replica(world, answer(503))
    await deploy(world, world.upstream.url, status=LOADING_MODEL)
    await world.proxy.start()
    world.control.down = True
    call = asyncio.create_task(world.proxy.call(slug=SLUG))
    await eventually(lambda: "Control takes no reports on deployments" in world.proxy.log.read_text())
    replica(world, answer(200))
    assert (await call)[0] == 200
    reported = len(world.control.reports)
    world.control.down = False
    await eventually(lambda: {what for what, _ in world.control.reports[reported:]} == {"loads", "logs"})
    assert loads(world)[-1]["healthy"] == [world.upstream.url]
