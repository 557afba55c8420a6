"""Draws from balances, as the job counts them: equal to the ledger after each count, build and sweep.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, text, update
from ulid import ULID

from control.edges.sql.spend.counted_trees import events_of_trees, times_of_events, trees_with_limits
from control.edges.sql.store import now_ms
from control.edges.sql.tables import HAS_BALANCE, groups
from control.records.spend import SpentEvent
from control.resources.spend import counting, rebuilds, tree_sums
from control.resources.spend.event_spend import costs_of, spent_events
from control.resources.spend.sweep import DEAD_AFTER_MS, sweep_tree
from policy.prices import DAY_MS, date_text
from policy.spend.balances import balance_name
from policy.spend.spend_hash import COMMITTED, Reserved, pack_reservation, pack_spent, spent_field
from tests.control.api.test_cost_sums import prices_of, set_prices
from tests.control.resources.spend.spend_world import SpendWorld

FAR_MS = 1 << 62


def ids_of(world: SpendWorld, place: int) -> list[str]:
    """The ids of the group and those above it, from the root: 0 the root, 1 and 2 its children, 3 below 1."""
    return world.paths[place][1].split("/")[:-1]


@pytest.fixture
async def prepaid(world: SpendWorld) -> SpendWorld:
    """The root and its first child have a balance."""
    await set_prices(world.plane, prices_of(world.now_ms // DAY_MS * DAY_MS - 2 * DAY_MS))
    await world.read_prices()
    for place in (0, 1):
        await world.deposit(ids_of(world, place)[-1])
    return world


async def draw_all(world: SpendWorld, calls: list[Any]) -> None:
    """Have each of these calls draw from the nearest balance."""
    child = ids_of(world, 1)[-1]
    below = [call for call in calls if child in call.group_path.split("/")]
    await world.draw(child, below)
    await world.draw(ids_of(world, 0)[-1], [call for call in calls if call not in below])


async def built(world: SpendWorld, through_ms: int) -> dict[str, int]:
    """The fields of balances in what is built."""
    fields = await tree_sums.spent_by_field(world.store, world.tree, through_ms)
    return {field: units for field, units in fields.items() if field.endswith("*:B")}


def expected(world: SpendWorld) -> dict[str, int]:
    return {f"s{balance_name(id)}:B": units for id, units in world.drawn.items() if units}


async def test_tree_that_has_a_balance_is_counted(world: SpendWorld) -> None:
    prepaid = await world.plane.group("prepaid", mode="INDEPENDENT")
    below = await world.plane.group("below-it", prepaid["id"])
    await world.plane.group("neither")
    await world.deposit(below["id"])
    async with world.store.read() as conn:
        before = {tree.root_id: tree for tree in await trees_with_limits(conn, {world.tree.workspace_id: "of-now"})}
    await world.deposit(ids_of(world, 2)[-1])
    async with world.store.read() as conn:
        trees = {tree.root_id: tree for tree in await trees_with_limits(conn, {})}
    assert before.keys() == trees.keys() == {prepaid["id"], world.tree.root_id}
    only = before[prepaid["id"]]
    assert only == world.tree._replace(
        root_id=prepaid["id"], enforcement=only.enforcement, prices="of-now", is_hard=True
    )
    assert only.enforcement == "INDEPENDENT"
    assert not before[world.tree.root_id].is_hard
    assert trees[world.tree.root_id] == world.tree._replace(is_hard=True)


async def test_trees_are_read_by_the_indexes_of_limits_and_balances(world: SpendWorld) -> None:
    is_sqlite = world.store.engine.dialect.name == "sqlite"
    explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
    async with world.store.read() as conn:
        if not is_sqlite:  # the planner reads small tables whole
            await conn.execute(text("SET LOCAL enable_seqscan = off"))
        query = "SELECT root_id FROM groups WHERE balance IS NOT NULL"
        assert "ix_groups_balance" in str((await conn.execute(text(f"{explain} {query}"))).all())
        times = "timestamp_ms > 5 AND timestamp_ms < 9"
        query = f"SELECT 1 FROM balance_credits WHERE substr(amount, 1, 1) = '-' AND {times}"
        plan = str((await conn.execute(text(f"{explain} {query}"))).all())
        assert "ix_balance_credits_withdrawals" in plan
        assert not is_sqlite or "(timestamp_ms>? AND timestamp_ms<?)" in plan
    assert str(HAS_BALANCE) == "groups.balance IS NOT NULL"


async def spent(world: SpendWorld, after_ms: int, through_ms: int = FAR_MS, limit: int = 100) -> list[SpentEvent]:
    async with world.store.read() as conn:
        batch = await events_of_trees(conn, [world.tree], after_ms, through_ms, limit)
        costs = await costs_of(conn, batch.events)
    return [*(await spent_events([world.tree], batch, costs)).get(world.tree.root_id, ())]


async def test_events_and_withdrawals_draw_in_the_order_of_time(prepaid: SpendWorld) -> None:
    root, child = (ids_of(prepaid, place)[-1] for place in (0, 1))
    start_ms = prepaid.now_ms + 1_000
    calls = await prepaid.call(start_ms, start_ms + 5_000, 20)
    await draw_all(prepaid, calls)
    at_ms = start_ms + 2_500
    key = await prepaid.withdraw(child, at_ms, 12 * 10**21)
    early = await prepaid.withdraw(root, start_ms - 1, 10**10)
    late = await prepaid.withdraw(root, start_ms + 5_001, 10**22)
    other = await prepaid.plane.group("another")
    await prepaid.withdraw(other["id"], at_ms, 10**22)
    amounts = await spent(prepaid, start_ms - 1)
    assert [one.at_ms for one in amounts] == sorted(one.at_ms for one in amounts)
    by_key = {one.key: one for one in amounts}
    assert by_key.keys() == {key, late} | {call.idempotency_key for call in calls}
    assert early not in by_key
    assert by_key[key] == SpentEvent(at_ms, key, (), 0, balance_name(child), 12 * 10**21)
    drawn = {id: sum(one.draw for one in amounts if one.balance == balance_name(id)) for id in (root, child)}
    assert drawn == {root: prepaid.drawn[root] - 10**10, child: prepaid.drawn[child]}
    assert {one.groups for one in amounts if one.units} == {
        tuple(prepaid.tree.counting_groups(call.group_path)) for call in calls if by_key[call.idempotency_key].units
    }


async def test_calls_of_unpriced_slugs_and_other_currencies_draw_all_the_same(prepaid: SpendWorld) -> None:
    """They were priced when they were committed."""
    start_ms = prepaid.now_ms + 1_000
    calls = await prepaid.call(start_ms, start_ms + 5_000, 20)
    for call in calls:
        await prepaid.draw_units(ids_of(prepaid, 0)[-1], call, 7)
    amounts = await spent(prepaid, start_ms - 1)
    assert {(one.balance, one.draw) for one in amounts} == {(balance_name(prepaid.tree.root_id), 7)}
    assert [one for one in amounts if not one.groups]


async def test_balance_that_is_not_above_the_calling_group_is_none_of_its_tree(prepaid: SpendWorld) -> None:
    start_ms = prepaid.now_ms + 1_000
    (call,) = await prepaid.call(start_ms, start_ms, 1)
    other = await prepaid.plane.group("another")
    await prepaid.draw_units(other["id"], call, 7)
    (amount,) = await spent(prepaid, start_ms - 1)
    assert (amount.balance, amount.draw) == ("", 0)


async def test_portion_of_events_has_the_withdrawals_of_its_time(prepaid: SpendWorld) -> None:
    start_ms = prepaid.now_ms + 1_000
    await prepaid.call(start_ms, start_ms, 2)
    await prepaid.call(start_ms + 10, start_ms + 10, 3)
    keys = [await prepaid.withdraw(prepaid.tree.root_id, start_ms + more, 10**10) for more in (0, 5, 9, 10, 11)]
    async with prepaid.store.read() as conn:
        first = await events_of_trees(conn, [prepaid.tree], start_ms - 1, FAR_MS, 3)
        second = await events_of_trees(conn, [prepaid.tree], first.through_ms, start_ms + 10, 1)
        third = await events_of_trees(conn, [prepaid.tree], second.through_ms, FAR_MS, 3)
    assert [(one.through_ms, len(one.events)) for one in (first, second, third)] == [
        (start_ms + 9, 2),
        (start_ms + 10, 3),
        (FAR_MS, 0),
    ]
    assert [[one.key for one in part.withdrawals] for part in (first, second, third)] == [keys[:3], keys[3:4], keys[4:]]


async def test_build_has_what_the_ledger_has_without_what_comes_later(prepaid: SpendWorld) -> None:
    root, child = (ids_of(prepaid, place)[-1] for place in (0, 1))
    prepaid.drawn_until_ms = prepaid.now_ms
    for first_ms, last_ms in ((prepaid.now_ms - 40 * DAY_MS, prepaid.now_ms), (prepaid.now_ms + 1, prepaid.now_ms + 9)):
        calls = await prepaid.call(first_ms, last_ms, 30)
        await draw_all(prepaid, calls)
    for more in (-5_000, 0, 1):
        await prepaid.withdraw(child, prepaid.now_ms + more, 3 * 10**21 + more * 10**10)
    assert prepaid.drawn.keys() == {root, child}
    assert await built(prepaid, prepaid.now_ms) == expected(prepaid)


async def test_build_adds_amounts_of_any_size_exactly(prepaid: SpendWorld) -> None:
    """Limbs of an hour are sums, and pass what 64 bits hold when they are added up."""
    calls = await prepaid.call(prepaid.now_ms - 30, prepaid.now_ms, 30)
    for place, call in enumerate(calls):
        await prepaid.draw_units(prepaid.tree.root_id, call, 10**34 - 1 - place)
    async with prepaid.store.write() as tx:
        largest = "UPDATE balance_draws SET picos = picos + 6000000000000000000, last = last + 6000000000000000000"
        await tx.conn.execute(text(largest))
        count = (await tx.conn.execute(text("SELECT count(*) FROM balance_draws"))).scalar_one()
    assert count > 1
    more = count * (6 * 10**18 * 10**10 + 6 * 10**18 // 100)
    field = spent_field(balance_name(prepaid.tree.root_id), None, 0)
    assert await built(prepaid, prepaid.now_ms) == {field: prepaid.drawn[prepaid.tree.root_id] + more}
    assert await built(prepaid, prepaid.now_ms - 31) == {field: more}


async def test_committed_withdrawals_have_a_time_as_events_have(prepaid: SpendWorld) -> None:
    (call,) = await prepaid.call(prepaid.now_ms, prepaid.now_ms, 1)
    key = await prepaid.withdraw(prepaid.tree.root_id, prepaid.now_ms + 5, 10**10)
    async with prepaid.store.read() as conn:
        times = await times_of_events(conn, [key, call.idempotency_key, "neither"])
    assert times == {key: prepaid.now_ms + 5, call.idempotency_key: prepaid.now_ms}


async def test_sweep_keeps_what_is_drawn_as_long_as_the_group_exists(prepaid: SpendWorld) -> None:
    """It does so of a balance, too, that is younger than what the sweep knows of its tree."""
    job = prepaid.job()
    await job.count_all()
    child = ids_of(prepaid, 2)[-1]
    fields = [spent_field(balance_name(id), None, 0) for id in (prepaid.tree.root_id, child, "grp_gone")]
    for field in fields:
        prepaid.client.hset(prepaid.tree.key, field, pack_spent(5))
    prepaid.client.hset(prepaid.tree.key, f"s{child}:D1", pack_spent(5))
    await sweep_tree(prepaid.store, prepaid.hashes, prepaid.tree, are_machines_known=False)
    assert [*prepaid.spent()] == fields[:2]
    async with prepaid.store.write() as tx:
        await tx.conn.execute(delete(groups).where(groups.c.id == child))
    await sweep_tree(prepaid.store, prepaid.hashes, prepaid.tree, are_machines_known=False)
    assert [*prepaid.spent()] == fields[:1]


async def later(world: SpendWorld, count: int = 30) -> list[Any]:
    """Commit calls that draw and a withdrawal, and let them be final; returns the calls."""
    start_ms = await world.pass_time(0) + 1
    calls = await world.call(start_ms, start_ms + 5_000, count)
    await draw_all(world, calls)
    await world.withdraw(world.tree.root_id, start_ms + 2_000, 10**21)
    await world.pass_time(10_000)
    return calls


async def test_what_is_built_and_counted_is_what_the_events_drew(
    prepaid: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws are never priced again, and everything else is."""
    monkeypatch.setattr(counting, "PRICES_READ_S", 0.0)
    await draw_all(prepaid, await prepaid.call(prepaid.now_ms - 40 * DAY_MS, prepaid.now_ms - 5_000, 60))
    jobs = [prepaid.job(), prepaid.job()]
    await jobs[0].count_all()
    prepaid.check()
    for _ in range(2):
        await later(prepaid)
        await asyncio.gather(*(job.count_all() for job in jobs))
        prepaid.check()
    body = {"currency": "EUR", "input_per_million": "77", "output_per_million": "0.000000000001"}
    price = prepaid.prices[-1]
    changed = {"slug": price.slug, "valid_from": date_text(price.valid_from_ms), **body}
    (await prepaid.plane.put("/v1/gateway/prices", changed)).ok()
    await prepaid.read_prices()
    await later(prepaid)
    await jobs[0].count_all()
    prepaid.check()


async def test_what_is_drawn_is_built_again_after_a_loss_of_redis(prepaid: SpendWorld) -> None:
    job = prepaid.job()
    await job.count_all()
    await later(prepaid)
    await job.count_all()
    prepaid.client.flushall()
    await later(prepaid)
    await job.count_all()
    await later(prepaid)
    await job.count_all()
    prepaid.check()


async def test_draws_of_a_turn_that_was_not_recorded_are_counted_once(
    prepaid: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = prepaid.job()
    await job.count_all()
    await later(prepaid)

    async def crash(*_: Any) -> None:
        raise RuntimeError("crashed")

    with monkeypatch.context() as patch:
        patch.setattr(counting, "record_counted", crash)
        with pytest.raises(RuntimeError):
            await job.count_all()
    prepaid.check()
    await prepaid.job().count_all()
    await job.count_all()
    prepaid.check()


async def test_first_draws_of_a_balance_that_is_younger_than_the_list_of_trees_are_counted(
    world: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn has read its trees. Before it reads how far events are final, a balance comes, and calls draw from it."""
    job = world.job()
    await job.count_all()
    await job.count_all()
    drop = rebuilds.TreeRebuilds.drop

    async def and_then(self: Any, trees: Any) -> None:
        await drop(self, trees)
        if not world.drawn:
            await world.deposit(world.tree.root_id)
            await later(world, 10)

    monkeypatch.setattr(rebuilds.TreeRebuilds, "drop", and_then)
    await job.count_all()
    assert world.drawn
    assert {name: units for name, units in world.spent().items() if name.endswith(":B")} == expected(world)
    world.client.hdel(world.tree.key, "e")
    await job.count_all()
    assert {name: units for name, units in world.spent().items() if name.endswith(":B")} == expected(world)


async def test_events_that_came_before_their_balance_did_are_in_what_is_built(prepaid: SpendWorld) -> None:
    """The database was set back to before the first credit."""
    calls = await prepaid.call(prepaid.now_ms - 5_000, prepaid.now_ms - 1, 20)
    await draw_all(prepaid, calls)
    async with prepaid.store.write() as tx:
        await tx.conn.execute(update(groups).values(balance=None))
    job = prepaid.job()
    await job.count_all()
    prepaid.check()
    await sweep_tree(prepaid.store, prepaid.hashes, prepaid.tree, are_machines_known=False)
    prepaid.check()


async def test_after_a_loss_what_is_committed_and_not_counted_is_reserved(
    prepaid: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A balance alone has its tree wait, as a HARD limit does."""
    monkeypatch.setattr(rebuilds, "MACHINES_TOLD_S", 0.0)
    monkeypatch.setattr(counting, "IDLE_TURNS", 1)
    job = prepaid.job()
    await job.count_all()
    prepaid.client.flushall()
    start_ms = await prepaid.pass_time(0) + 100_000
    withdrawal = await prepaid.withdraw(prepaid.tree.root_id, start_ms, 7 * 10**21)
    calls = await prepaid.call(start_ms, start_ms + 1_000, 20)
    for call in calls:
        await prepaid.draw_units(prepaid.tree.root_id, call, 9 * 10**22 + 1)
    await job.count_all()
    assert not (await prepaid.hashes.reserves(prepaid.tree)).reservations
    await job.count_all()
    epoch, complete = prepaid.client.hmget(prepaid.tree.key, "e", "h")
    assert epoch is not None
    assert epoch.split()[0] == complete
    reserves = await prepaid.hashes.reserves(prepaid.tree)
    name = balance_name(prepaid.tree.root_id)
    assert reserves.reservations.keys() == {withdrawal} | {call.idempotency_key for call in calls}
    assert reserves.reservations[withdrawal] == Reserved(7 * 10**11, COMMITTED, (name,))
    assert {one.groups[-1] for one in reserves.reservations.values() if one is not None} == {name}
    assert reserves.reserved[name] == 7 * 10**11 + 20 * (9 * 10**12 + 1)
    assert await sweep_tree(prepaid.store, prepaid.hashes, prepaid.tree, are_machines_known=True) == 0
    await prepaid.pass_time(200_000)
    await job.count_all()
    reserves = await prepaid.hashes.reserves(prepaid.tree)
    assert not reserves.reservations
    assert not any(reserves.reserved.values())
    prepaid.check()


@pytest.mark.parametrize("is_counted_behind_it", [False, True])
async def test_reservation_of_a_withdrawal_that_was_not_committed_goes(
    prepaid: SpendWorld, is_counted_behind_it: bool
) -> None:
    """A commit that hangs holds up how far events are counted. Until then it may come."""
    job = prepaid.job()
    await job.count_all()
    made_ms = now_ms() - 2 * DEAD_AFTER_MS
    key = str(ULID.from_timestamp(made_ms / 1e3))
    name = balance_name(prepaid.tree.root_id)
    prepaid.client.hset(prepaid.tree.key, f"p{key}", pack_reservation(Reserved(5, COMMITTED, (name,))))
    if not is_counted_behind_it:
        prepaid.client.hset(prepaid.tree.key, "c", made_ms + DEAD_AFTER_MS)
    count = await sweep_tree(prepaid.store, prepaid.hashes, prepaid.tree, are_machines_known=True)
    assert count == is_counted_behind_it
