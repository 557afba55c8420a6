"""Asynchronous requests are run by real processes, and survive their deaths."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from policy.deployments import SCALED_TO_ZERO
from proxy.async_requests.queues import LEASE_S
from proxy.async_requests.states import ErrorCode, Status
from tests.contracts.process.async_world import AsyncWorld, an_async_world, put_workspace_key
from tests.redis_server import REDIS_BINARIES
from tests.upstream import Exchange, answer, answer_json, gated, head
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")

DONE = answer_json(200, {"done": True})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AsyncWorld]:
    async with an_async_world(tmp_path) as world:
        world.replica.default = gated(DONE)
        await world.deploy()
        yield world


async def test_request_is_sent_as_it_was_written_and_succeeds(world: AsyncWorld) -> None:
    await world.proxy.start()
    payload = b'{"b": 1,  "a": "\xc3\xa9"}'
    state = await world.ended(await world.submit(payload))
    assert (state.status, state.errors) == (Status.SUCCEEDED, ())
    (received,) = [one for one in world.replica.received if one.path == "/predict"]
    assert (received.method, received.header("content-type")) == ("POST", "application/json")
    assert world.attempts == [(state.request_id, "1")]


async def test_payload_and_number_of_requests_have_no_effect_on_each_other(world: AsyncWorld) -> None:
    await world.proxy.start(TOLLGATE_ASYNC_WORKERS="2")
    ids = [await world.submit(b"[%d]" % number) for number in range(300)]
    for id in ids:
        assert (await world.ended(id)).status is Status.SUCCEEDED
    assert sorted(world.attempts) == sorted((id, "1") for id in ids)


async def test_503_is_tried_again_and_422_is_not(world: AsyncWorld) -> None:
    await world.proxy.start()
    world.replica.plan(answer_json(503, {"error": "busy"}), answer_json(500, {"error": "x"}))
    again = await world.ended(await world.submit())
    assert again.status is Status.SUCCEEDED
    assert [number for _, number in world.attempts] == ["1", "2", "3"]
    world.replica.plan(answer_json(422, {"error": "prompt is too long"}))
    state = await world.ended(await world.submit())
    assert state.status is Status.FAILED
    assert [(error.code, error.message) for error in state.errors] == [
        (ErrorCode.MODEL_INVALID_INPUT, "the model answered 422: prompt is too long")
    ]


async def test_replica_that_dies_in_mid_attempt_costs_an_attempt(world: AsyncWorld) -> None:
    async def die(exchange: Exchange) -> None:
        await exchange.read_body()
        exchange.reset()

    world.replica.plan(die, die)
    await world.proxy.start()
    last = await world.ended(await world.submit(attempts=2))
    assert (last.status, [error.code for error in last.errors]) == (Status.FAILED, [ErrorCode.MODEL_PREDICT_ERROR])
    assert [number for _, number in world.attempts] == ["1", "2"]
    assert (await world.ended(await world.submit())).status is Status.SUCCEEDED


async def test_killed_worker_gives_its_work_back_long_before_its_lease_ends(world: AsyncWorld) -> None:
    await world.proxy.start(TOLLGATE_ASYNC_WORKERS="2")
    world.replica.gate.close()
    id = await world.submit()
    last = await world.submit(attempts=1)
    await eventually(lambda: len(world.attempts) == 2)
    for pid in world.async_workers():
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: (id, "2") in world.attempts, within_s=LEASE_S / 2)
    world.replica.gate.open()
    assert (await world.ended(id)).status is Status.SUCCEEDED
    state = await world.ended(last)
    assert (state.status, [error.code for error in state.errors]) == (Status.FAILED, [ErrorCode.INTERNAL_SERVER_ERROR])
    assert len(world.attempts) == 3


async def test_worker_that_hangs_loses_its_work_and_closes_its_connection_when_it_goes_on(world: AsyncWorld) -> None:
    await world.proxy.start()
    closed = asyncio.Event()

    async def hang(exchange: Exchange) -> None:
        await exchange.client_closed()
        closed.set()

    world.replica.plan(hang)
    id = await world.submit()
    await eventually(lambda: len(world.attempts) == 1)
    (pid,) = world.async_workers()
    os.kill(pid, signal.SIGSTOP)
    world.end_leases()
    await eventually(world.another_machine_sweeps, every_s=0.2)
    os.kill(pid, signal.SIGCONT)
    await asyncio.wait_for(closed.wait(), PATIENCE_S)
    assert (await world.ended(id)).status is Status.SUCCEEDED


async def test_sigterm_lets_attempts_end(world: AsyncWorld) -> None:
    await world.proxy.start(TOLLGATE_DRAIN_TIMEOUT_S="20")
    world.replica.gate.close()
    id = await world.submit()
    await eventually(lambda: len(world.attempts) == 1)
    stop = asyncio.create_task(world.proxy.stop())
    await asyncio.sleep(0.5)
    waits = await world.submit()
    await asyncio.sleep(0.5)
    world.replica.gate.open()
    assert await stop == 0
    assert (await world.state(id)).status is Status.SUCCEEDED
    assert (await world.state(waits)).status is Status.QUEUED
    assert len(world.attempts) == 1


async def test_attempts_that_outlast_the_drain_are_handed_back_at_once(world: AsyncWorld) -> None:
    await world.proxy.start(TOLLGATE_DRAIN_TIMEOUT_S="1")
    world.replica.gate.close()
    ids = [await world.submit(), await world.submit(attempts=1)]
    await eventually(lambda: len(world.attempts) == 2)
    assert await world.proxy.stop() == 0
    assert [(await world.state(id)).status for id in ids] == [Status.IN_PROGRESS, Status.FAILED]
    world.replica.gate.open()
    await world.proxy.start()
    async with asyncio.timeout(LEASE_S / 2):
        assert (await world.ended(ids[0])).status is Status.SUCCEEDED
    assert world.attempts[2:] == [(ids[0], "2")]


@pytest.mark.soak
@pytest.mark.timeout(200)
async def test_killed_supervisor_loses_nothing(world: AsyncWorld) -> None:
    await world.proxy.start()
    world.replica.gate.close()
    ids = [await world.submit() for _ in range(5)]
    await eventually(lambda: len(world.attempts) == 5)
    await world.proxy.stop(signal.SIGKILL)
    world.replica.gate.open()
    await world.proxy.start()
    for id in ids:
        assert (await world.ended(id, LEASE_S + 30)).status is Status.SUCCEEDED
    assert sorted(world.attempts[5:]) == sorted((id, "2") for id in ids)


@pytest.mark.soak
async def test_attempt_outlasts_a_short_restart_of_redis(world: AsyncWorld) -> None:
    await world.proxy.start()
    world.replica.gate.close()
    id = await world.submit(attempts=1)
    await eventually(lambda: len(world.attempts) == 1)
    await asyncio.sleep(1.2)  # the start is on disk
    world.redis.kill()
    await asyncio.sleep(1)
    world.redis.start()
    await asyncio.sleep(6)  # the lease was renewed since
    world.replica.gate.open()
    assert (await world.ended(id)).status is Status.SUCCEEDED
    assert len(world.attempts) == 1


@pytest.mark.parametrize("how", ["stands still", "is killed"])
async def test_no_attempt_runs_twice_while_redis_is_away_for_twenty_seconds(world: AsyncWorld, how: str) -> None:
    await world.proxy.start(TOLLGATE_ASYNC_WORKERS="2")
    world.replica.gate.close()
    ids = [await world.submit() for _ in range(4)]
    await eventually(lambda: len(world.attempts) == 4)
    if how == "is killed":
        await asyncio.sleep(1.2)  # the starts are on disk
        world.redis.kill()
    else:
        world.redis.pause()
    await asyncio.sleep(10)
    world.replica.gate.open()  # their answers wait
    await asyncio.sleep(10)
    if how == "is killed":
        world.redis.start()
    else:
        world.redis.resume()
    for id in ids:
        assert (await world.ended(id)).status is Status.SUCCEEDED
    assert sorted(world.attempts) == sorted((id, "1") for id in ids)


async def test_worker_without_redis_is_degraded_and_waits_quietly(world: AsyncWorld) -> None:
    """Sync calls count their limits in the same Redis here, so only the async check is looked at."""
    await world.proxy.start()
    (pid,) = world.async_workers()
    world.redis.kill()

    async def degraded() -> bool:
        _, report = await world.proxy.admin("/readyz")
        return "async: Redis does not serve asynchronous requests, so they wait" in report

    await eventually(degraded)
    before = cpu_ticks(pid)
    await asyncio.sleep(4)
    assert cpu_ticks(pid) - before <= 20, "5 % of a core"
    world.redis.start()
    assert (await world.ended(await world.submit())).status is Status.SUCCEEDED
    assert world.async_workers() == [pid]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_requests_of_a_deleted_deployment_fail(world: AsyncWorld) -> None:
    world.world.control.put("model", "m", None)
    await world.proxy.start()
    state = await world.ended(await world.submit())
    assert (state.status, [error.code for error in state.errors]) == (Status.FAILED, [ErrorCode.MODEL_DOES_NOT_EXIST])


async def test_deployment_that_this_machine_has_not_heard_of_is_looked_up(world: AsyncWorld) -> None:
    world.world.control.put("model", "m", None)
    await world.proxy.start(TOLLGATE_REFRESH_INTERVAL_S="3600")
    await asyncio.sleep(1)
    deployed = world.replica.url
    from policy.deployments import ACTIVE, Deployment
    from policy.snapshot import ModelRow

    row = ModelRow("m", "ws", {"d": Deployment("d", ACTIVE, (deployed,))}, {"production": "d"})
    world.world.control.put("model", "m", row.to_wire())
    assert (await world.ended(await world.submit())).status is Status.SUCCEEDED


async def test_synchronous_calls_go_first(world: AsyncWorld) -> None:
    await world.deploy(most=1)
    key = put_workspace_key(world.world)
    await world.proxy.start()
    world.replica.gate.close()
    first = await world.submit()
    await eventually(lambda: len(world.attempts) == 1)
    others = [await world.submit() for _ in range(5)]
    await asyncio.sleep(0.3)
    url = f"http://127.0.0.1:{world.proxy.port}/models/m/production/predict"
    headers = {"Authorization": f"Bearer {key}"}

    async def call(number: int) -> int:
        async with world.proxy.client.post(url, data=b"{}", headers=headers) as response:
            return response.status

    calls = [asyncio.create_task(call(number)) for number in range(20)]
    await asyncio.sleep(0.5)
    world.replica.gate.open()
    assert await asyncio.gather(*calls) == [200] * 20
    for id in (first, *others):
        assert (await world.ended(id)).status is Status.SUCCEEDED
    kinds = ["async" if number else "sync" for _, number in world.attempts]
    assert kinds == ["async", *["sync"] * 20, *["async"] * 5]


async def test_parked_requests_start_when_a_replica_comes_and_control_hears_of_them(world: AsyncWorld) -> None:
    from policy.deployments import Deployment
    from policy.snapshot import ModelRow

    row = ModelRow("m", "ws", {"d": Deployment("d", SCALED_TO_ZERO, ())}, {"production": "d"})
    world.world.control.put("model", "m", row.to_wire())
    await world.proxy.start()
    id = await world.submit()

    def parked() -> bool:
        loads = [load for what, report in world.world.control.reports if what == "loads" for load in report["loads"]]
        return any(load["parked"] == 1 for load in loads)

    await eventually(parked)
    assert (await world.state(id)).status is Status.QUEUED
    await world.deploy()
    assert (await world.ended(id)).status is Status.SUCCEEDED


async def test_each_attempt_has_one_line_in_the_log_of_its_deployment(world: AsyncWorld) -> None:
    await world.proxy.start()
    world.replica.plan(answer(503))
    id = await world.submit()
    await world.ended(id)

    def lines() -> list[dict[str, str]]:
        reports = world.world.control.reports
        return [line for what, report in reports if what == "logs" for line in report["lines"]]

    await eventually(lambda: len(lines()) == 2)
    assert [line["request_id"] for line in lines()] == [id, id]
    assert [line["message"].split(" in ")[0] for line in lines()] == [
        "POST /models/m/production/async_predict 503",
        "POST /models/m/production/async_predict 200",
    ]
    await asyncio.sleep(1.5)
    assert len(lines()) == 2, "asks without an attempt leave none"


async def test_large_answer_passes_through_little_memory(world: AsyncWorld) -> None:
    await world.proxy.start()
    await world.ended(await world.submit())
    (pid,) = world.async_workers()
    before = peak_kib(pid)
    size = 80_000_000
    piece = b"x" * 1_000_000

    async def stream(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(head(200, {"content-length": str(size + 2), "content-type": "application/json"}))
        await exchange.send(b'"')
        for _ in range(size // len(piece)):
            await exchange.send(piece)
        await exchange.send(b'"')

    world.replica.plan(stream)
    id = await world.submit(webhook="https://hooks.example.com/in")

    async def stored() -> bool:
        return (await world.sizes(id)) == size + 2

    await eventually(stored, lambda: world.proxy.log.read_text()[-2000:])
    remembered_kib = 32 << 10  # writes that are repeated if Redis crashes
    assert peak_kib(pid) - before < remembered_kib + (16 << 10)


def peak_kib(pid: int) -> int:
    """The most memory that the process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
