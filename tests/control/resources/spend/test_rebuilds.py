"""Trees with a HARD limit: after a loss of Redis they wait until each reservation is there again.

See docs/reference/money.md#how-spend-is-counted.
"""

from typing import Any

import pytest

from control.edges.sql.spend.rebuilds import hard_trees
from control.records.spend import COMPLETE, DROPPED
from control.resources.spend import counting, rebuilds
from control.resources.spend.counting import SpendCounting
from control.resources.spend.machines import note_machine
from policy.spend.spend_hash import Reserved, pack_reservation, picos_of, unpack_amount, unpack_reservation
from tests.control.api.test_cost_sums import cost_of, prices_of, set_prices
from tests.control.resources.spend.spend_world import LIMITS, SpendWorld

HARD = [LIMITS[0] | {"enforcement": "HARD"}]
DAY_MS = 86_400_000


@pytest.fixture
async def hard(cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch) -> SpendWorld:
    monkeypatch.setattr(rebuilds, "MACHINES_TOLD_S", 0.0)
    monkeypatch.setattr(counting, "IDLE_TURNS", 1)
    await set_prices(cascading.plane, prices_of(cascading.now_ms // DAY_MS * DAY_MS - 2 * DAY_MS))
    await cascading.read_prices()
    await limit(cascading, HARD)
    return cascading


async def limit(world: SpendWorld, limits: Any) -> None:
    await world.limit(world.paths[1][1].split("/")[-2], limits)


async def state_of(world: SpendWorld) -> str | None:
    async with world.store.read() as conn:
        return (await hard_trees(conn)).get(world.tree.root_id)


def is_whole(world: SpendWorld) -> bool:
    """Return whether HARD limits admit calls."""
    epoch, complete = world.client.hmget(world.tree.key, "e", "h")
    return epoch is not None and complete == epoch.split()[0]


async def report(world: SpendWorld, machine: str = "host") -> Any:
    """Have a machine report that waits for nothing; returns what it is to put again, by hash key."""
    return await note_machine(world.store, machine, ["a" * 16], {})


async def confirm(world: SpendWorld, machine: str = "host") -> None:
    await note_machine(world.store, machine, ["a" * 16], await report(world, machine))


async def make_whole(world: SpendWorld) -> SpendCounting:
    job = world.job()
    await job.count_all()
    await confirm(world)
    await job.count_all()
    assert is_whole(world)
    return job


async def test_tree_without_machines_is_whole_at_once(hard: SpendWorld) -> None:
    job = hard.job()
    await job.count_all()
    await job.count_all()
    assert is_whole(hard)
    await job.count_all()
    assert await state_of(hard) == COMPLETE


async def test_tree_waits_for_every_machine(hard: SpendWorld) -> None:
    await report(hard, "one")
    job = hard.job()
    await job.count_all()
    assert not is_whole(hard)
    await report(hard, "two")
    await confirm(hard, "one")
    await job.count_all()
    assert not is_whole(hard)
    await confirm(hard, "two")
    await job.count_all()
    assert is_whole(hard)
    await job.count_all()
    assert await state_of(hard) == COMPLETE
    assert await report(hard, "one") == {}


async def lose_everything(world: SpendWorld) -> None:
    world.client.flushall()


async def change_the_server(world: SpendWorld) -> None:
    for field, end in (("e", " EUR"), ("h", "")):
        world.client.hset(world.tree.key, field, f"another-epoch{end}")


@pytest.mark.parametrize("loss", [lose_everything, change_the_server])
async def test_after_a_loss_it_waits_again(hard: SpendWorld, loss: Any) -> None:
    job = await make_whole(hard)
    await loss(hard)
    await job.count_all()
    assert not is_whole(hard)
    await confirm(hard)
    await job.count_all()
    assert is_whole(hard)


async def test_what_was_put_before_another_loss_does_not_count(hard: SpendWorld) -> None:
    """The epoch is the same, and every machine has confirmed: but its reservations are gone again."""
    await report(hard)
    job = hard.job()
    await job.count_all()
    await confirm(hard)
    first = await state_of(hard)
    hard.client.flushall()
    await job.count_all()
    assert not is_whole(hard)
    assert await state_of(hard) != first
    await confirm(hard)
    await job.count_all()
    assert is_whole(hard)


async def test_committed_events_that_are_not_counted_get_their_reservation_again(hard: SpendWorld) -> None:
    job = await make_whole(hard)
    hard.client.flushall()
    start_ms = await hard.pass_time(0) + 100_000
    calls = await hard.call(start_ms, start_ms + 50_000, 20)
    own, given_up = calls[0], calls[1]
    await job.count_all()
    key, group = hard.tree.key, hard.tree.root_id
    hard.client.hset(key, f"p{own.idempotency_key}", pack_reservation(Reserved(7, "a" * 16, (group,))))
    hard.client.hset(key, f"p{given_up.idempotency_key}", b"")
    await confirm(hard)
    await job.count_all()
    assert is_whole(hard)
    expected = 0
    for call in calls:
        cost = cost_of(call, hard.prices)
        packed: Any = hard.client.hget(key, f"p{call.idempotency_key}")
        if call is own:
            assert unpack_amount(packed) == 7
        elif call is given_up or cost is None or cost[0] != "EUR":
            assert not packed
        else:
            reservation = unpack_reservation(packed)
            assert reservation is not None
            assert reservation.picos == picos_of(int(cost[1].scaleb(22)))
            assert reservation.groups == tuple(hard.tree.counting_groups(call.group_path))
            expected += reservation.picos
    assert expected
    assert unpack_amount(hard.client.hget(key, f"r{group}")) == expected  # type: ignore[arg-type]  # not async
    await hard.pass_time(200_000)
    await job.count_all()
    hard.check()
    fields: Any = hard.client.hkeys(key)
    assert not [name for name in fields if name[:1] == b"p"]


async def test_prices_that_change_meanwhile_change_nothing_in_the_wait(hard: SpendWorld) -> None:
    await report(hard)
    job = hard.job()
    await job.count_all()
    first = await state_of(hard)
    hard.client.hset(hard.tree.key, "e", hard.client.hget(hard.tree.key, "e") + b"other-prices")  # type: ignore[operator]
    await job.count_all()
    assert await state_of(hard) == first
    await confirm(hard)
    await job.count_all()
    assert is_whole(hard)


async def test_tree_that_has_no_hard_limit_any_more_waits_for_nothing(hard: SpendWorld) -> None:
    await report(hard)
    job = hard.job()
    await job.count_all()
    await limit(hard, LIMITS)
    await job.count_all()
    assert await state_of(hard) is None
    assert await report(hard) == {}
    assert not hard.client.hexists(hard.tree.key, "h")


@pytest.mark.parametrize("between", [LIMITS, []])
async def test_hard_limit_that_comes_back_waits_again(hard: SpendWorld, between: Any) -> None:
    """Meanwhile calls were made that nobody followed."""
    job = await make_whole(hard)
    await limit(hard, between)
    await job.count_all()
    assert not is_whole(hard)
    start_ms = await hard.pass_time(0) + 1
    await hard.call(start_ms, start_ms + 5_000, 20)
    await hard.pass_time(60_000)
    await job.count_all()
    await limit(hard, HARD)
    await job.count_all()
    assert not is_whole(hard)
    await confirm(hard)
    await job.count_all()
    assert is_whole(hard)
    hard.check()


async def test_it_is_written_down_that_a_tree_has_no_hard_limit_any_more(
    hard: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit comes back while Redis is away."""
    job = await make_whole(hard)
    await limit(hard, LIMITS)

    async def away(*_: Any) -> None:
        raise RuntimeError("away")

    with monkeypatch.context() as patch:
        patch.setattr(hard.hashes, "drop_complete", away)
        with pytest.raises(RuntimeError):
            await job.count_all()
    assert await state_of(hard) == DROPPED
    await limit(hard, HARD)
    await job.count_all()
    assert not is_whole(hard)


async def test_database_that_was_set_back_waits_until_machines_have_told_of_themselves(
    hard: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await make_whole(hard)
    monkeypatch.setattr(rebuilds, "MACHINES_TOLD_S", 600.0)
    await hard.hashes.forget([hard.tree])
    await job.count_all()
    assert not is_whole(hard)
    await confirm(hard)
    await job.count_all()
    assert not is_whole(hard)
    monkeypatch.setattr(rebuilds, "MACHINES_TOLD_S", 0.0)
    await job.count_all()
    assert is_whole(hard)


async def test_a_crash_before_the_end_of_a_wait_is_written_down(
    hard: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(hard)
    job = hard.job()
    await job.count_all()
    await confirm(hard)

    async def crash(*_: Any) -> None:
        raise RuntimeError("crashed")

    with monkeypatch.context() as patch:
        patch.setattr(rebuilds, "end_wait", crash)
        with pytest.raises(RuntimeError):
            await job.count_all()
    assert is_whole(hard)
    await hard.job().count_all()
    assert await state_of(hard) == COMPLETE


async def test_machines_that_are_waited_for_are_named(
    hard: SpendWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rebuilds, "LONG_WAIT_S", 0.0)
    await report(hard, "parked")
    job = hard.job()
    for _ in range(3):
        await job.count_all()
    assert caplog.text.count("again: parked.") == 1
    assert "tollgate spend release --machine NAME" in caplog.text
