"""A usage limit that is added or changed starts from the calls of its window that are committed, on both databases.

See docs/reference/limits.md#days.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from control.errors import LimitStartUnavailableError, UsageUnavailableError
from control.records.usage import Bucket, BucketStart, Meter, Used
from control.resources.group_usage import UsageSource
from control.resources.groups import GroupChange, change_group, read_group
from policy.limits.counter_hash import number_of
from policy.limits.counter_layout import bucket_key
from policy.limits.kinds import KINDS, USAGE_TYPES, USAGE_UNITS, Kind, LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.limits.windows import day_of, window_at
from policy.prices import DAY_MS
from tests.control.api.test_hourly_sums import maker
from tests.control.billing import HOLDBACK_S, clock_ms, event_key
from tests.control.plane import SLUG, ControlPlane, Json, running_plane
from tests.control.reports import take, tokens
from tests.redis_server import private_redis
from tests.waiting import stay_within_one_day

HOUR_MS = 3_600_000
USAGE_KINDS = tuple(kind for kind in KINDS if not kind[1].is_rolling)
NO_LIMITS = (SlugLimits(SLUG),)
EVERY_LIMIT = (SlugLimits(SLUG, (), tuple(Limit(*kind, 1000) for kind in USAGE_KINDS)),)
CALL = tokens(100, 7, 30)
AMOUNTS = {
    LimitType.REQUEST: 1,
    LimitType.TOKEN: 107,
    LimitType.UNCACHED_INPUT_TOKEN: 70,
    LimitType.OUTPUT_TOKEN: 7,
}
"""The amount of each limit that `CALL` uses."""


class Counts:
    """A source that remembers to which figure each bucket was raised. Its clock stands."""

    def __init__(self, now_ms: int) -> None:
        self.clock_ms = now_ms
        self.raised: dict[tuple[Bucket, Kind], int] = {}
        self.batches = 0
        self.is_away = False
        self.before_start: Callable[[], Awaitable[None]] | None = None

    async def used(self, meters: Sequence[Meter]) -> list[Used]:
        raise NotImplementedError

    async def now_ms(self) -> int:
        if self.is_away:
            raise UsageUnavailableError
        return self.clock_ms

    async def start(self, starts: Sequence[BucketStart]) -> None:
        self.batches += bool(starts)
        for bucket, counts in starts:
            for kind, window, amount in counts:
                assert window == number_of(kind, day_of(self.clock_ms))
                self.raised[bucket, kind] = max(amount, self.raised.get((bucket, kind), 0))
        if self.before_start is not None:
            step = self.before_start
            self.before_start = None
            await step()

    async def forget(self, buckets: Sequence[Bucket]) -> None:
        raise NotImplementedError

    def of(self, group: str, owner: str | None = None, slug: str = SLUG) -> dict[Kind, int]:
        """The figures of a group's bucket. `owner`: the root of a CASCADING tree."""
        bucket = Bucket(bucket_key(owner or group, slug), group)
        return {kind: amount for (its, kind), amount in self.raised.items() if its == bucket}


def calls(day: int, month: int | None = None) -> dict[Kind, int]:
    """The figures of so many calls of the day, and of the month."""
    numbers = {Unit.DAY: day, Unit.MONTH: day if month is None else month}
    return {(type, unit): number * AMOUNTS[type] for unit, number in numbers.items() for type in USAGE_TYPES}


async def change(plane: ControlPlane, source: UsageSource | None, group: Json, models: tuple[SlugLimits, ...]) -> None:
    await change_group(plane.store, source, plane.workspace_id, group["id"], GroupChange(models))


async def called(plane: ControlPlane, *calls: tuple[int, Json], slug: str = SLUG) -> None:
    """Commit a call of each group at each time. Only one such list per test."""
    more = [{"group_id": group["id"], "idempotency_key": event_key(n)} for n, (_, group) in enumerate(calls)]
    rows = [(at_ms, slug, group["metadata"]["external_entity_id"], "tg_a", CALL) for at_ms, group in calls]
    await take(plane, *rows, more=more)


@pytest.mark.parametrize("summed", ["no hour", "hours of some days", "all hours"])
async def test_limit_starts_from_the_calls_of_its_window(plane: ControlPlane, first_day_ms: int, summed: str) -> None:
    customer = await plane.group("customer")
    other = await plane.group("other")
    times = [first_day_ms + n * 5 * HOUR_MS + n for n in range(24)]
    await called(plane, *((at_ms, customer) for at_ms in times), *((at_ms, other) for at_ms in times[:7]))
    if summed != "no hour":
        final_days = 2 if summed == "hours of some days" else 0
        await maker(plane.store, final_days * 86_400 + HOLDBACK_S).make()
    source = Counts(times[-1] + 1)
    await change(plane, source, customer, EVERY_LIMIT)
    windows = {unit: window_at(unit, source.clock_ms) for unit in USAGE_UNITS}
    inside = {unit: sum(start <= at_ms < end for at_ms in times) for unit, (start, end) in windows.items()}
    assert 0 < inside[Unit.DAY] < inside[Unit.MONTH] or windows[Unit.MONTH][0] > first_day_ms
    assert source.of(customer["id"]) == calls(inside[Unit.DAY], inside[Unit.MONTH])
    assert source.of(other["id"]) == {}


@pytest.fixture
def now_ms(first_day_ms: int) -> int:
    """Noon of a day that control counts as final."""
    return first_day_ms + DAY_MS // 2


async def test_inherited_limit_starts_for_each_group_of_an_independent_tree(plane: ControlPlane, now_ms: int) -> None:
    root = await plane.group("root")
    children = [await plane.group(f"c{n}", root["id"]) for n in range(3)]
    leaf = await plane.group("leaf", children[0]["id"])
    away = await plane.group("apart")
    calls_made = {root["id"]: 1, children[1]["id"]: 2, leaf["id"]: 4, away["id"]: 5}
    groups = [one for one in (root, *children, leaf, away) for _ in range(calls_made.get(one["id"], 0))]
    await called(plane, *((now_ms - n, one) for n, one in enumerate(groups)))
    source = Counts(now_ms + 1)
    await change(plane, source, root, EVERY_LIMIT)
    assert source.of(root["id"]) == calls(1)
    assert [source.of(one["id"]) for one in children] == [{}, calls(2), {}]
    assert source.of(leaf["id"]) == calls(4)
    assert source.of(away["id"]) == {}


async def test_limit_of_a_cascading_group_starts_from_the_calls_of_all_below_it(
    plane: ControlPlane, now_ms: int
) -> None:
    root = await plane.group("root", mode="CASCADING")
    middle = await plane.group("middle", root["id"])
    leaf = await plane.group("leaf", middle["id"])
    await called(plane, (now_ms, root), (now_ms, middle), (now_ms, leaf), (now_ms, leaf))
    source = Counts(now_ms + 1)
    await change(plane, source, middle, EVERY_LIMIT)
    assert source.of(middle["id"], root["id"]) == calls(3)
    await change(plane, source, root, EVERY_LIMIT)
    assert source.of(root["id"], root["id"]) == calls(4)
    assert source.of(leaf["id"], root["id"]) == {}


@pytest.mark.parametrize("is_summed", [False, True])
@pytest.mark.parametrize("mode", ["INDEPENDENT", "CASCADING"])
async def test_calls_of_deleted_groups_count_for_a_cascading_group_above(
    plane: ControlPlane, now_ms: int, mode: str, is_summed: bool
) -> None:
    root = await plane.group("root", mode=mode)
    branch = await plane.group("branch", root["id"])
    leaf = await plane.group("leaf", branch["id"])
    stay = await plane.group("stay", root["id"])
    await called(plane, (now_ms, leaf), (now_ms, branch), (now_ms, stay))
    await plane.delete(f"/v1/gateway/groups/{branch['id']}")
    if is_summed:
        await maker(plane.store).make()
    source = Counts(now_ms + 1)
    await change(plane, source, root, EVERY_LIMIT)
    if mode == "CASCADING":
        assert source.of(root["id"], root["id"]) == calls(3)
        return
    assert source.of(stay["id"]) == calls(1)
    assert [source.of(one["id"]) for one in (root, branch, leaf)] == [{}, {}, {}]


@pytest.mark.parametrize("mode", ["INDEPENDENT", "CASCADING"])
async def test_large_tree_is_added_up_some_groups_at_a_time(sqlite_plane: ControlPlane, mode: str) -> None:
    plane = sqlite_plane
    now_ms = (await clock_ms(plane.store)) - DAY_MS
    root = await plane.group("root", mode=mode)
    children = [await plane.group(f"c{n}", root["id"]) for n in range(4)]
    await called(plane, *((now_ms, one) for one in (root, *children, *children)))
    slugs = [SLUG, *(f"acme/m{n}" for n in range(299))]
    source = Counts(now_ms + 1)
    await change(plane, source, root, tuple(SlugLimits(slug, (), EVERY_LIMIT[0].usage_limits) for slug in slugs))
    if mode == "CASCADING":
        assert source.of(root["id"], root["id"]) == calls(9)
        return
    assert source.batches == 5
    assert [source.of(one["id"]) for one in children] == [calls(2)] * 4


async def test_new_group_with_an_old_external_id_starts_at_0(plane: ControlPlane, now_ms: int) -> None:
    old = await plane.group("customer")
    await called(plane, (now_ms, old), (now_ms - 6 * HOUR_MS, old))
    await plane.delete(f"/v1/gateway/groups/{old['id']}")
    await maker(plane.store).make()
    new = await plane.group("customer")
    source = Counts(now_ms + 1)
    await change(plane, source, new, EVERY_LIMIT)
    assert source.raised == {}


async def test_only_limits_that_are_added_or_changed_start(plane: ControlPlane, now_ms: int) -> None:
    customer = await plane.group("customer")
    await called(plane, (now_ms, customer))
    requests = Limit(LimitType.REQUEST, Unit.DAY, 5)
    tokens_a_day = Limit(LimitType.TOKEN, Unit.DAY, 500)
    steps: list[tuple[tuple[Limit, ...], set[Kind]]] = [
        ((requests,), {(LimitType.REQUEST, Unit.DAY)}),
        ((requests,), set()),
        ((requests, tokens_a_day), {(LimitType.TOKEN, Unit.DAY)}),
        ((Limit(LimitType.REQUEST, Unit.DAY, 4), tokens_a_day), {(LimitType.REQUEST, Unit.DAY)}),
        ((tokens_a_day,), set()),
        ((requests, tokens_a_day), {(LimitType.REQUEST, Unit.DAY)}),
    ]
    for limits, starts in steps:
        source = Counts(now_ms + 1)
        await change(plane, source, customer, (SlugLimits(SLUG, (), limits),))
        assert source.of(customer["id"]).keys() == starts


async def test_limit_that_another_change_removes_meanwhile_starts_again(plane: ControlPlane, now_ms: int) -> None:
    customer = await plane.group("customer")
    await called(plane, (now_ms, customer))
    first = Limit(LimitType.REQUEST, Unit.DAY, 5)
    added = Limit(LimitType.TOKEN, Unit.DAY, 500)
    source = Counts(now_ms + 1)
    await change(plane, source, customer, (SlugLimits(SLUG, (), (first,)),))
    source.raised.clear()

    async def remove_all() -> None:
        await change(plane, None, customer, NO_LIMITS)

    source.before_start = remove_all
    await change(plane, source, customer, (SlugLimits(SLUG, (), (first, added)),))
    assert source.of(customer["id"]).keys() == {(LimitType.REQUEST, Unit.DAY), (LimitType.TOKEN, Unit.DAY)}


async def test_nothing_is_stored_when_the_counters_are_away(plane: ControlPlane, now_ms: int) -> None:
    customer = await plane.group("customer")
    source = Counts(now_ms)
    source.is_away = True
    with pytest.raises(LimitStartUnavailableError):
        await change(plane, source, customer, EVERY_LIMIT)
    assert (await read_group(plane.store, plane.workspace_id, customer["id"])).record.group.models == NO_LIMITS


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with private_redis() as server:
        yield server.url


@pytest.fixture
async def metered(database_url: str, redis_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(database_url, redis_url=redis_url) as plane:
        yield plane


def usage_limits(*limits: tuple[str, str, int]) -> Json:
    entries = [{"type": type, "unit": unit, "threshold": threshold} for type, unit, threshold in limits]
    return {"models": [{"slug": SLUG, "usage_limits": entries}]}


async def used(plane: ControlPlane, group: Json) -> dict[tuple[str, str], int]:
    items = (await plane.get(f"/v1/gateway/groups/{group['id']}/limits")).ok()["items"]
    return {(item["type"], item["unit"]): item["current_usage"] for item in items}


async def test_limits_show_what_they_start_from(metered: ControlPlane) -> None:
    stay_within_one_day()
    customer = await metered.group("customer")
    now_ms = await clock_ms(metered.store)
    await called(metered, *((now_ms, customer) for _ in range(3)))
    path = f"/v1/gateway/groups/{customer['id']}"
    added = usage_limits(("REQUEST", "DAY", 9), ("TOKEN", "MONTH", 0), ("OUTPUT_TOKEN", "MONTH", 5))
    counted = {("REQUEST", "DAY"): 3, ("TOKEN", "MONTH"): 321, ("OUTPUT_TOKEN", "MONTH"): 21}
    (await metered.patch(path, added)).ok()
    assert await used(metered, customer) == counted
    (await metered.patch(path, usage_limits(("REQUEST", "DAY", 9)))).ok()
    (await metered.patch(path, added)).ok()
    assert await used(metered, customer) == counted, "removed and added again: each call once"


async def test_change_of_a_usage_limit_is_503_without_redis_and_others_are_made(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with running_plane(sqlite_url, redis_url=f"unix://{tmp_path}/nobody.sock") as plane:
        customer = await plane.group("customer", models=usage_limits(("REQUEST", "DAY", 9))["models"])
        path = f"/v1/gateway/groups/{customer['id']}"
        body = (await plane.patch(path, usage_limits(("REQUEST", "DAY", 8)))).refused(503, "COUNTERS_UNAVAILABLE")
        assert "when Redis is back" in body["error"]
        assert (await plane.get(path)).ok()["models"] == customer["models"]
        too_high: Any = usage_limits(("REQUEST", "DAY", -1))
        (await plane.patch(path, too_high)).refused(400)
        same_limits = usage_limits(("REQUEST", "DAY", 9))
        same_limits["models"][0]["rate_limits"] = [{"type": "REQUEST", "unit": "MINUTE", "threshold": 5}]
        (await plane.patch(path, {**same_limits, "metadata": {"name": "Customer"}})).ok()
        (await plane.patch(path, {"models": []})).ok()


async def test_without_a_redis_a_limit_starts_at_0(sqlite_plane: ControlPlane) -> None:
    customer = await sqlite_plane.group("customer")
    await called(sqlite_plane, (await clock_ms(sqlite_plane.store), customer))
    (await sqlite_plane.patch(f"/v1/gateway/groups/{customer['id']}", usage_limits(("REQUEST", "DAY", 9)))).ok()
    assert await used(sqlite_plane, customer) == {("REQUEST", "DAY"): 0}
