"""The spend of keys, where one of their tree has spend limits of its own: it is what the calls of its rotation cost."""

import asyncio
from typing import Any

import pytest

from control.errors import SpendNotCountedError
from control.records.policy import KeyRecord
from control.resources import keys
from control.resources.federated_keys.key_spend import read_key_spend
from control.resources.keys import KeyOwner
from control.resources.spend.overruns import OverrunReason
from policy.limits.windows import DAY_MS
from policy.prices import sum_of
from policy.spend.key_names import key_name
from policy.spend.spend_hash import RESERVED_PREFIX, Reserved, pack_amount, pack_reservation
from tests.control.api.test_cost_sums import cost_of, prices_of, set_prices
from tests.control.api.test_hourly_sums import maker
from tests.control.plane import Json
from tests.control.resources.spend.spend_world import SpendWorld

GROUPS = "/v1/gateway/groups"
MONTH: list[dict[str, str]] = [{"unit": "MONTH", "amount": "50.00", "currency": "EUR"}]


async def prices(world: SpendWorld) -> None:
    await set_prices(world.plane, prices_of(world.now_ms // DAY_MS * DAY_MS - 2 * DAY_MS))
    await world.read_prices()


def group_of(world: SpendWorld) -> str:
    return world.paths[1][1].split("/")[-2]


async def mint(world: SpendWorld, limits: list[dict[str, str]]) -> str:
    """A key of a child of the root; returns its prefix."""
    path = f"{GROUPS}/{group_of(world)}/api_keys"
    return str((await world.plane.post(path, {"spend_limits": limits})).ok()["prefix"])


async def rotate(world: SpendWorld, prefix: str) -> str:
    path = f"{GROUPS}/{group_of(world)}/api_keys/{prefix}/rotate"
    return str((await world.plane.post(path, {"overlap_seconds": 3600})).ok()["prefix"])


async def with_keys(world: SpendWorld, limits: list[dict[str, str]] = MONTH) -> str:
    """A key that is rotated twice, whose middle one is revoked; a key without limits, and a caller with a JWT."""
    first = await mint(world, limits)
    middle = await rotate(world, first)
    last = await rotate(world, middle)
    (await world.plane.delete(f"{GROUPS}/{group_of(world)}/api_keys/{middle}")).ok()
    other = await mint(world, [])
    world.buckets = {first: first, middle: first, last: first, other: other, "jwt_0123456789ab": ""}
    world.tree = world.tree._replace(counts_keys=True)
    return first


async def test_what_is_built_and_counted_is_what_the_calls_of_each_rotation_cost(world: SpendWorld) -> None:
    await prices(world)
    await with_keys(world)
    await world.call(world.now_ms - 40 * DAY_MS, world.now_ms - 5_000, 100)
    await world.call(world.now_ms - 2 * DAY_MS, world.now_ms - 5_000, 100)
    await maker(world.store).make()
    job = world.job()
    await job.count_all()
    world.check()
    assert not any("jwt_" in field for field in world.spent())
    for _ in range(2):
        start_ms = await world.pass_time(0) + 1
        await world.call(start_ms, start_ms + 20_000, 40)
        await world.pass_time(30_000)
        await job.count_all()
        world.check()


async def test_first_key_limit_of_a_counted_tree_starts_from_the_events_of_the_window(cascading: SpendWorld) -> None:
    world = cascading
    await prices(world)
    job = world.job()
    await with_keys(world, [])
    world.tree = world.tree._replace(counts_keys=False)
    await world.call(world.now_ms - DAY_MS, world.now_ms - 5_000, 60)
    await job.count_all()
    world.check()
    first = next(iter(world.buckets))
    (await world.plane.patch(f"{GROUPS}/{group_of(world)}/api_keys/{first}", {"spend_limits": MONTH})).ok()
    world.tree = world.tree._replace(counts_keys=True)
    await job.count_all()
    world.check()
    (await world.plane.patch(f"{GROUPS}/{group_of(world)}/api_keys/{first}", {"spend_limits": []})).ok()
    world.tree = world.tree._replace(counts_keys=False)
    await job.count_all()
    world.check()


async def test_several_jobs_at_once_count_each_event_once_for_its_key(cascading: SpendWorld) -> None:
    await prices(cascading)
    await with_keys(cascading)
    jobs = [cascading.job() for _ in range(3)]
    for _ in range(3):
        await asyncio.gather(*(job.count_all() for job in jobs))
        start_ms = await cascading.pass_time(0) + 1
        await cascading.call(start_ms, start_ms + 5_000, 20)
        await cascading.pass_time(10_000)
    await asyncio.gather(*(job.count_all() for job in jobs))
    cascading.check()


async def test_what_redis_lost_is_built_again_and_rate_counters_stay_apart(cascading: SpendWorld) -> None:
    world = cascading
    await prices(world)
    first = await with_keys(world)
    await world.call(world.now_ms - DAY_MS, world.now_ms - 5_000, 40)
    job = world.job()
    await job.count_all()
    for name in (key_name(first), f"{key_name(first)}:2", f"{key_name(first)}:places", "@worker", "@worker!"):
        world.client.hset(world.tree.key, name, b"\x01" * 29)
    before = counters_of(world)
    world.client.hdel(world.tree.key, "e")
    await job.count_all()
    await job.begin_sweep()
    await job.sweep_some(10)
    world.check()
    assert counters_of(world) == before


def counters_of(world: SpendWorld) -> dict[bytes, bytes]:
    """The fields of rate limits."""
    fields: Any = world.client.hgetall(world.tree.key)
    return {name: value for name, value in fields.items() if name.startswith((b"key_", b"@"))}


async def test_reservation_of_a_key_ends_with_its_event(cascading: SpendWorld) -> None:
    world = cascading
    await prices(world)
    first = await with_keys(world)
    job = world.job()
    await job.count_all()
    start_ms = await world.pass_time(0) + 1
    [call] = await world.call(start_ms, start_ms + 5, 1)
    groups = (key_name(first), *world.tree.counting_groups(call.group_path))
    reserved = pack_reservation(Reserved(7, "0" * 16, groups))
    world.client.hset(world.tree.key, f"p{call.idempotency_key}", reserved)
    world.client.hset(world.tree.key, RESERVED_PREFIX + key_name(first), pack_amount(7))
    await world.pass_time(1_000)
    await job.count_all()
    assert not world.client.hexists(world.tree.key, f"p{call.idempotency_key}")
    assert world.client.hget(world.tree.key, RESERVED_PREFIX + key_name(first)) == pack_amount(0)
    world.check()


async def test_spend_of_a_key_is_that_of_its_whole_rotation(cascading: SpendWorld) -> None:
    world = cascading
    await prices(world)
    first = await with_keys(world)
    calls = await world.call(world.now_ms - 60_000, world.now_ms - 5_000, 30)
    with pytest.raises(SpendNotCountedError):
        await read_key_spend(world.hashes, await key_of(world, first))
    await world.job().count_all()
    costs = [cost_of(call, world.prices) for call in calls if world.buckets[call.api_key_prefix] == first]
    expected = sum_of(cost for cost in costs if cost is not None and cost[0] == "EUR")["EUR"]
    for prefix in [
        prefix for prefix, bucket in world.buckets.items() if bucket == first and prefix != middle_of(world)
    ]:
        [entry] = await read_key_spend(world.hashes, await key_of(world, prefix))
        assert (entry.use.spent, entry.remaining) == (expected, 50 - expected)


async def test_spend_is_not_shown_before_what_keys_spend_is_counted(cascading: SpendWorld) -> None:
    """The tree was counted for a limit of a group."""
    await cascading.job().count_all()
    first = await mint(cascading, MONTH)
    with pytest.raises(SpendNotCountedError):
        await read_key_spend(cascading.hashes, await key_of(cascading, first))


async def test_api_shows_the_spend_of_a_key(cascading: SpendWorld) -> None:
    first = await mint(cascading, MONTH)
    unlimited = await mint(cascading, [])
    path = f"{GROUPS}/{group_of(cascading)}/api_keys"
    [entry] = (await cascading.plane.get(f"{path}/{first}/spend")).ok()["items"]
    del entry["reset_at"]
    figures = {"enforcement": "SOFT", "spent": "0.00", "reserved": "0.00", "remaining": "50.00"}
    assert entry == MONTH[0] | figures
    assert (await cascading.plane.get(f"{path}/{unlimited}/spend")).ok() == {"items": []}
    (await cascading.plane.get(f"{path}/tg_nobody/spend")).refused(404)
    elsewhere = cascading.paths[2][1].split("/")[-2]
    (await cascading.plane.get(f"{GROUPS}/{elsewhere}/api_keys/{first}/spend")).refused(404)


async def key_of(world: SpendWorld, prefix: str) -> KeyRecord:
    return await keys.read_key(world.store, KeyOwner(world.plane.workspace_id, group_of(world)), prefix)


def middle_of(world: SpendWorld) -> str:
    """The key that is revoked."""
    return [*world.buckets][1]


async def test_hard_limit_of_a_key_that_is_lowered_below_what_is_spent_is_told(
    cascading: SpendWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = cascading
    await prices(world)
    first = await with_keys(world, [{**MONTH[0], "enforcement": "HARD"}])
    await world.call(world.now_ms - 60_000, world.now_ms - 5_000, 30)
    job = world.job()
    await job.count_all()
    await job.begin_sweep()
    await job.sweep_some(10)
    limit: Json = {**MONTH[0], "amount": "0.000001", "enforcement": "HARD"}
    (await world.plane.patch(f"{GROUPS}/{group_of(world)}/api_keys/{first}", {"spend_limits": [limit]})).ok()
    await job.begin_sweep()
    await job.sweep_some(10)
    assert world.overruns == [OverrunReason.AMOUNT]
    assert f"Key {first}, with those that it was rotated to, has spent" in caplog.text
