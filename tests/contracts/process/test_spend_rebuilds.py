"""Reservations that Redis has lost, with real processes: a proxy confirms a tree once its reservations are in Redis
again and its events are committed, whoever dies meanwhile."""

import asyncio
import os
import signal
import time
from decimal import Decimal
from typing import Any

import pytest

from policy.credentials import KeyKind, digest_of
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.prices import Price, token_prices
from policy.snapshot import KeyRow, PriceRow, group_to_wire
from policy.spend.limits import SpendEnforcement, SpendLimit, spend_limit_to_wire
from policy.spend.spend_hash import (
    COMPLETE_FIELD,
    COUNTED_FIELD,
    EPOCH_FIELD,
    RESERVATION_PREFIX,
    epoch_text,
    spend_key,
)
from tests.contracts.process.test_supervisor import Proxy, World, make_key, world
from tests.redis_server import REDIS_BINARIES, RedisServer
from tests.waiting import eventually

__all__ = ["world"]

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")

KEY = spend_key("g")
MODELS = (SlugLimits("org/m", (Limit(LimitType.REQUEST, Unit.MINUTE, 1000),)),)


def limit(world: World, enforcement: SpendEnforcement) -> None:
    """Give the group a limit that no test comes near to, and its slug a price."""
    control = world.control
    group = group_to_wire(Group("g", "ws", None, "customer", Enforcement.CASCADING, MODELS))
    spend = [spend_limit_to_wire(SpendLimit(Unit.MONTH, Decimal(1000), "EUR", enforcement))]
    control.put("group", "g", group | {"spend_limits": spend})
    price = Price("org/m", 0, "EUR", token_prices(Decimal(1), Decimal(1)), per_call=Decimal("0.25"))
    control.put("price", "org/m", PriceRow("org/m", "ws", (price,)).to_wire())


def epoch_of(redis: RedisServer) -> str:
    epoch: str = redis.run("INFO", "replication")["master_replid"]
    return epoch


def count(redis: RedisServer) -> None:
    """Have the tree counted, as control does."""
    clock_ms = time.time_ns() // 1_000_000
    redis.run("HSET", KEY, EPOCH_FIELD, epoch_text(epoch_of(redis), "EUR"), COUNTED_FIELD, clock_ms)


def reservations(redis: RedisServer) -> set[bytes]:
    """The reservations of the tree, without their event keys' names."""
    return {name for name in redis.run("HKEYS", KEY) if name.startswith(RESERVATION_PREFIX.encode())}


async def call_in_flight(world: World) -> asyncio.Task[Any]:
    """A call that waits for its answer, and has reserved."""
    reserved = reservations(world.redis)
    world.upstream.gate.close()
    call = asyncio.create_task(world.proxy.call())
    await eventually(lambda: reservations(world.redis) > reserved)
    return call


async def kill_worker(proxy: Proxy) -> None:
    (worker,) = proxy.workers()
    os.kill(worker, signal.SIGKILL)
    await eventually(lambda: worker not in proxy.workers())


async def is_confirmed(world: World, state: str) -> bool:
    return any(rebuilt.get(KEY) == state for rebuilt in world.control.rebuilt.values())


async def test_reservations_that_redis_lost_are_put_again_and_confirmed(world: World) -> None:
    limit(world, SpendEnforcement.SOFT)
    count(world.redis)
    await world.proxy.start(workers=2)
    call = await call_in_flight(world)
    before = reservations(world.redis)
    world.redis.run("FLUSHALL")
    count(world.redis)
    state = f"{epoch_of(world.redis)} n1"
    world.control.waits = {KEY: state}
    await eventually(lambda: is_confirmed(world, state))
    assert reservations(world.redis) == before
    world.redis.kill()
    world.redis.start()
    count(world.redis)
    second_state = f"{epoch_of(world.redis)} n2"
    world.control.waits = {KEY: second_state}
    await eventually(lambda: is_confirmed(world, second_state))
    assert reservations(world.redis) == before
    world.upstream.gate.open()
    assert (await call)[0] == 200
    await eventually(lambda: world.events)
    assert {RESERVATION_PREFIX + event["idempotency_key"] for event in world.events} == {one.decode() for one in before}


async def test_confirmation_waits_for_events_of_calls_that_have_ended(world: World) -> None:
    limit(world, SpendEnforcement.SOFT)
    count(world.redis)
    await world.proxy.start(workers=1)
    world.control.are_events_down = True
    for _ in range(3):
        assert (await world.proxy.call())[0] == 200
    world.redis.run("FLUSHALL")
    count(world.redis)
    state = f"{epoch_of(world.redis)} n1"
    world.control.waits = {KEY: state}
    reports = len(world.control.rebuilt)
    await eventually(lambda: len(world.control.rebuilt) >= reports)
    await asyncio.sleep(1)  # as long as a confirmation takes otherwise
    assert not await is_confirmed(world, state)
    world.control.are_events_down = False
    await eventually(lambda: is_confirmed(world, state))
    assert len(world.events) == 3


@pytest.mark.parametrize("what", ["worker", "supervisor"])
async def test_a_dead_workers_call_is_committed_before_the_confirmation(world: World, what: str) -> None:
    """It has lost its reservation with Redis, and nobody can put that again."""
    limit(world, SpendEnforcement.SOFT)
    count(world.redis)
    proxy = world.proxy
    await proxy.start(workers=1)
    call = await call_in_flight(world)
    call.add_done_callback(lambda call: call.exception())  # its connection is reset
    (worker,) = proxy.workers()
    world.control.are_events_down = True
    world.redis.run("FLUSHALL")
    count(world.redis)
    if what == "worker":
        await kill_worker(proxy)
    else:
        await proxy.stop(signal.SIGKILL)
        await proxy.start(workers=1)
    state = f"{epoch_of(world.redis)} n1"
    world.control.waits = {KEY: state}
    await proxy.until_ready()
    await asyncio.sleep(1)  # as long as a confirmation takes otherwise
    assert not await is_confirmed(world, state)
    world.control.are_events_down = False
    await eventually(lambda: is_confirmed(world, state))
    assert len(world.events) == 1
    assert worker not in proxy.workers()


async def test_a_worker_that_hangs_is_waited_for_until_it_dies(world: World) -> None:
    limit(world, SpendEnforcement.SOFT)
    count(world.redis)
    proxy = world.proxy
    await proxy.start(workers=2)
    hanging = proxy.workers()[0]
    os.kill(hanging, signal.SIGSTOP)
    state = f"{epoch_of(world.redis)} n1"
    world.control.waits = {KEY: state}
    await asyncio.sleep(2)  # as long as a report and a confirmation take otherwise
    assert not await is_confirmed(world, state)
    os.kill(hanging, signal.SIGKILL)
    await eventually(lambda: is_confirmed(world, state))


async def test_a_drained_machine_is_forgotten_and_one_with_events_left_is_not(world: World) -> None:
    proxy = world.proxy
    await proxy.start(workers=2)
    await eventually(lambda: world.control.machines)
    world.control.are_events_down = True
    assert (await proxy.call())[0] == 200
    assert await proxy.stop() == 0
    assert world.control.machines
    world.control.are_events_down = False
    await proxy.start(workers=1)
    await eventually(lambda: len(world.events) == 1)
    assert await proxy.stop() == 0
    assert world.control.machines == {}


async def test_before_control_has_taken_a_report_that_names_the_worker_only_hard_limits_refuse(world: World) -> None:
    limit(world, SpendEnforcement.HARD)
    count(world.redis)
    world.redis.run("HSET", KEY, COMPLETE_FIELD, epoch_of(world.redis))
    control = world.control
    free_key = make_key(2)
    control.put("group", "free", group_to_wire(Group("free", "ws", None, "other", Enforcement.CASCADING, MODELS)))
    row = KeyRow(digest_of(free_key), free_key.partition(".")[0], KeyKind.FEDERATED, "ws", "free")
    control.put("key", row.digest, row.to_wire())
    control.are_machines_down = True
    proxy = world.proxy
    await proxy.start(workers=1)
    assert (await proxy.call(free_key))[0] == 200
    status, body = await proxy.call()
    assert (status, body["error_code"]) == (503, "LIMITS_UNAVAILABLE"), body
    assert (await proxy.admin("/readyz"))[0] == 200
    control.are_machines_down = False

    async def is_admitted() -> bool:
        return (await proxy.call())[0] == 200

    await eventually(is_admitted)
    control.are_machines_down = True
    await kill_worker(proxy)
    assert (await proxy.call(free_key))[0] == 200
    assert (await proxy.call())[0] == 503, "control may end what a worker reserves that it does not know"
    control.are_machines_down = False
    await eventually(is_admitted)
