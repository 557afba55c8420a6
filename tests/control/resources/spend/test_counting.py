"""The job that counts what groups spend: each event once, through crashes, several processes and lost Redis data.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, update

from control.edges.sql.spend import counted_trees
from control.edges.sql.spend.counted_trees import counted_ms
from control.edges.sql.spend.tables import spend_progress
from control.edges.sql.tables import events
from control.errors import DatabaseUnavailableError, UsageUnavailableError
from control.resources.spend import counting, tree_sums
from policy.prices import DAY_MS, date_text
from policy.spend.spend_hash import Reserved, pack_amount, pack_reservation, unpack_amount
from tests.control.api.test_cost_sums import prices_of, set_prices
from tests.control.api.test_hourly_sums import maker
from tests.control.resources.spend.spend_world import SpendWorld


async def prices(world: SpendWorld) -> None:
    """Prices that changed yesterday and two days ago: with tiers and long context."""
    first_ms = world.now_ms // DAY_MS * DAY_MS - 2 * DAY_MS
    await set_prices(world.plane, prices_of(first_ms))
    await world.read_prices()


async def test_what_is_built_and_counted_is_the_sum_of_the_events_costs(world: SpendWorld) -> None:
    await prices(world)
    await world.call(world.now_ms - 40 * DAY_MS, world.now_ms - 5_000, 150)
    await world.call(world.now_ms - 2 * DAY_MS, world.now_ms - 5_000, 150)
    await maker(world.store).make()
    job = world.job()
    await job.count_all()
    world.check()
    for _ in range(3):
        start_ms = await world.pass_time(0) + 1
        await world.call(start_ms, start_ms + 20_000, 40)
        await world.pass_time(30_000)
        await job.count_all()
        world.check()
    assert job.lag_s < 60


async def test_events_are_counted_in_portions_that_split_no_timestamp(
    cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prices(cascading)
    monkeypatch.setattr(counting, "EVENTS_AT_ONCE", 7)
    job = cascading.job()
    await job.count_all()
    start_ms = await cascading.pass_time(0) + 1
    await cascading.call(start_ms + 10, start_ms + 15, 60)
    await cascading.call(start_ms, start_ms + 200_000, 60)
    await cascading.pass_time(300_000)
    await job.count_all()
    cascading.check()


async def test_several_jobs_at_once_count_each_event_once(cascading: SpendWorld) -> None:
    await prices(cascading)
    await cascading.call(cascading.now_ms - DAY_MS, cascading.now_ms - 5_000, 50)
    jobs = [cascading.job() for _ in range(3)]
    for _ in range(4):
        await asyncio.gather(*(job.count_all() for job in jobs))
        start_ms = await cascading.pass_time(0) + 1
        await cascading.call(start_ms, start_ms + 5_000, 20)
        await cascading.pass_time(10_000)
    await asyncio.gather(*(job.count_all() for job in jobs))
    cascading.check()


async def test_a_crash_before_the_progress_is_recorded_counts_nothing_twice(
    cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prices(cascading)
    await cascading.job().count_all()
    start_ms = await cascading.pass_time(0) + 1
    await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(10_000)

    async def crash(*_: Any) -> None:
        raise RuntimeError("crashed")

    with monkeypatch.context() as patch:
        patch.setattr(counting, "record_counted", crash)
        with pytest.raises(RuntimeError):
            await cascading.job().count_all()
    cascading.check()
    await cascading.job().count_all()
    cascading.check()


async def test_a_turn_whose_progress_was_not_recorded_is_taken_again(
    cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was away just then. The same process goes on."""
    await prices(cascading)
    job = cascading.job()
    await job.count_all()
    await job.count_all()
    start_ms = await cascading.pass_time(0) + 1
    await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(10_000)

    async def away(*_: Any) -> None:
        raise DatabaseUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(counting, "record_counted", away)
        with pytest.raises(DatabaseUnavailableError):
            await job.count_all()
    await job.count_all()
    start_ms = await cascading.pass_time(0) + 1
    await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(10_000)
    await job.count_all()
    cascading.check()


async def lose_everything(world: SpendWorld) -> None:
    world.client.flushall()


async def change_the_server(world: SpendWorld) -> None:
    world.client.hset(world.tree.key, "e", "another-run EUR")


async def fall_behind(world: SpendWorld) -> None:
    """Leave what a replica has that became primary without the last writes."""
    world.client.hset(world.tree.key, "c", world.now_ms - DAY_MS)
    world.client.hdel(world.tree.key, *world.spent())


@pytest.mark.parametrize("loss", [lose_everything, change_the_server, fall_behind])
async def test_what_redis_lost_is_built_again(cascading: SpendWorld, loss: Any) -> None:
    await prices(cascading)
    await cascading.call(cascading.now_ms - DAY_MS, cascading.now_ms - 5_000, 50)
    job = cascading.job()
    await job.count_all()
    await loss(cascading)
    await job.count_all()
    cascading.check()


async def test_after_a_long_pause_all_is_built(cascading: SpendWorld) -> None:
    await prices(cascading)
    await cascading.job().count_all()
    start_ms = await cascading.pass_time(0) + 1
    await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(2 * counting.LONGEST_WALK_MS)
    cascading.client.hset(cascading.tree.key, "s-of-another-month:M1", b"")
    await cascading.job().count_all()
    assert not cascading.client.hexists(cascading.tree.key, "s-of-another-month:M1")
    cascading.check()


async def test_a_process_that_paused_for_long_leaves_no_event_out(cascading: SpendWorld) -> None:
    """Redis did not answer it for an hour: what the tree was known to be counted through is of before."""
    await prices(cascading)
    job = cascading.job()
    await job.count_all()
    await job.count_all()  # the first one has built the tree
    start_ms = await cascading.pass_time(0) + 1
    await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(2 * counting.LONGEST_WALK_MS)
    await job.count_all()
    cascading.check()


async def test_events_that_another_process_recorded_without_a_tree_are_counted(cascading: SpendWorld) -> None:
    """The last limit of the tree went, and came again, while this process did not look."""
    await prices(cascading)
    other, job = cascading.job(), cascading.job()
    await other.count_all()
    await job.count_all()
    group_id = cascading.paths[1][1].split("/")[-2]
    beside = await cascading.plane.group("beside")
    await cascading.limit(beside["id"])
    await cascading.limit(group_id, [])
    start_ms = await cascading.pass_time(0) + 1
    await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(2 * counting.RECORD_MS)
    await other.count_all()
    await cascading.limit(group_id)
    await cascading.pass_time(1_000)
    await job.count_all()
    cascading.check()


@pytest.mark.parametrize("how", ["counted", "built"])
async def test_an_event_that_is_counted_ends_its_reservation(cascading: SpendWorld, how: str) -> None:
    await prices(cascading)
    job = cascading.job()
    await job.count_all()
    start_ms = await cascading.pass_time(0) + 1
    (call,) = await cascading.call(start_ms, start_ms, 1)
    groups = tuple(call.group_path.split("/")[:-1])
    key = cascading.tree.key
    cascading.client.hset(key, f"p{call.idempotency_key}", pack_reservation(Reserved(7, "a" * 16, groups)))
    for group in groups:
        cascading.client.hset(key, f"r{group}", pack_amount(10))
    await cascading.pass_time(1_000)
    if how == "built":
        cascading.client.hdel(key, "e")
    await job.count_all()
    assert not cascading.client.hexists(key, f"p{call.idempotency_key}")
    amounts: Any = [cascading.client.hget(key, f"r{group}") for group in groups]
    assert [unpack_amount(one) for one in amounts] == [3] * len(groups)


async def test_a_bug_in_a_build_keeps_no_other_tree_from_being_counted(
    cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await prices(cascading)
    root = await cascading.plane.group("another")
    await cascading.limit(root["id"])
    build = tree_sums.spent_by_field

    async def failing(store: Any, tree: Any, through_ms: int) -> Any:
        if tree.root_id == root["id"]:
            raise RuntimeError("a bug")
        return await build(store, tree, through_ms)

    monkeypatch.setattr(counting, "spent_by_field", failing)
    job = cascading.job()
    await job.count_all()
    await job.count_all()
    assert cascading.client.hget(cascading.tree.key, "e")
    assert caplog.text.count("could not be read") == 1


async def test_without_redis_it_is_logged_once_and_goes_on(
    cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job = cascading.job()

    async def away(*_: Any) -> None:
        raise UsageUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(cascading.hashes, "epochs", away)
        await job.try_count()
        await job.try_count()
    await job.try_count()
    assert caplog.text.count("is not counted") == 1
    assert "counted again" in caplog.text


async def test_without_spend_limits_nothing_is_written(cascading: SpendWorld) -> None:
    await cascading.limit(cascading.paths[1][1].split("/")[-2], [])
    job = cascading.job()
    await job.count_all()
    async with cascading.store.read() as conn:
        assert await counted_ms(conn) == 0
        assert await counted_trees.trees_with_limits(conn, {}) == []
    assert job.lag_s == 0
    assert cascading.client.dbsize() == 0


async def test_price_that_is_changed_for_time_that_is_counted_counts_it_anew(
    world: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "PRICES_READ_S", 0.0)
    await prices(world)
    await world.call(world.now_ms - DAY_MS, world.now_ms - 5_000, 60)
    job = world.job()
    await job.count_all()
    world.check()
    before = world.spent()
    body = {"currency": "EUR", "input_per_million": "77", "output_per_million": "0.000000000001"}
    (price,) = {(one.slug, date_text(one.valid_from_ms)) for one in world.prices[-1:]}
    (await world.plane.put("/v1/gateway/prices", {"slug": price[0], "valid_from": price[1], **body})).ok()
    await world.read_prices()
    await job.count_all()
    world.check()
    assert world.spent() != before


async def test_groups_of_counted_events_are_noted(cascading: SpendWorld) -> None:
    noted: set[tuple[str, str]] = set()
    job = cascading.job(note=noted.update)
    await job.count_all()
    start_ms = await cascading.pass_time(0) + 1
    calls = await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(10_000)
    await job.count_all()
    assert noted == {(call.workspace_id, call.group_id) for call in calls}


async def test_database_that_lacks_the_last_commits_has_its_trees_built_anew(
    cascading: SpendWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """It failed over. The process that recorded more than the database has knows it, however little was lost."""
    await prices(cascading)
    job = cascading.job()
    await job.count_all()
    start_ms = await cascading.pass_time(0) + 1
    calls = await cascading.call(start_ms, start_ms + 900, 20)
    await cascading.pass_time(2_000)
    async with cascading.store.read() as conn:
        recorded_ms = await counted_ms(conn)
    await job.count_all()
    cascading.check()
    async with cascading.store.write() as tx:
        await tx.conn.execute(delete(events).where(events.c.timestamp_ms >= start_ms))
        await tx.conn.execute(update(spend_progress).values(counted_ms=recorded_ms))
    cascading.calls = [call for call in cascading.calls if call not in calls]
    await job.count_all()
    cascading.check()
    assert caplog.text.count("was set back") == 1
    await job.count_all()
    assert caplog.text.count("was set back") == 1


@pytest.mark.parametrize("is_new_process", [False, True])
async def test_database_that_was_set_back_has_its_trees_built_anew(
    cascading: SpendWorld, is_new_process: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Events of the time after the backup come again with later timestamps."""
    await prices(cascading)
    job = cascading.job()
    await job.count_all()
    start_ms = await cascading.pass_time(0) + 1
    later_calls = await cascading.call(start_ms, start_ms + 5_000, 20)
    await cascading.pass_time(10 * counting.SET_BACK_MS)
    await job.count_all()
    cascading.check()
    async with cascading.store.write() as tx:
        await tx.conn.execute(delete(events).where(events.c.timestamp_ms >= start_ms))
        await tx.conn.execute(update(spend_progress).values(counted_ms=start_ms))
    cascading.calls = [call for call in cascading.calls if call not in later_calls]
    job = cascading.job() if is_new_process else job
    await job.count_all()
    cascading.check()
    assert caplog.text.count("was set back") == 1
    await job.count_all()
    assert caplog.text.count("was set back") == 1
