"""The sweep of a tree's hash: what ends there, what stays, and that the sums of reservations are right again.

See docs/reference/money.md#how-spend-is-counted.
"""

from typing import Any

import pytest
from sqlalchemy import update
from ulid import ULID

from control.edges.sql.spend.machines import put_machine
from control.edges.sql.spend.tables import spend_machines
from control.edges.sql.store import WriteTx, now_ms
from control.resources.spend import counting
from control.resources.spend.machines import release_machine
from control.resources.spend.sweep import DEAD_AFTER_MS, MARKER_LASTS_MS, sweep_tree
from policy.limits.kinds import Unit
from policy.spend.spend_hash import Reserved, pack_amount, pack_reservation, pack_spent, spent_field, unpack_amount
from tests.control.api.test_cost_sums import prices_of, set_prices
from tests.control.resources.spend.spend_world import SpendWorld

LIVE = "a" * 16
DEAD = "b" * 16
MONTH_MS = 31 * 86_400_000


def key_of_age(age_ms: int) -> str:
    return str(ULID.from_timestamp((now_ms() - age_ms) / 1e3))


def reserve(world: SpendWorld, event_key: str, incarnation: str, picos: int = 5) -> str:
    group = world.tree.root_id
    value = pack_reservation(Reserved(picos, incarnation, (group,)))
    world.client.hset(world.tree.key, f"p{event_key}", value)
    return event_key


def reservations(world: SpendWorld) -> set[str]:
    fields: Any = world.client.hkeys(world.tree.key)
    return {name.decode()[1:] for name in fields if name[:1] == b"p"}


def reserved(world: SpendWorld) -> int:
    value: Any = world.client.hget(world.tree.key, f"r{world.tree.root_id}")
    return unpack_amount(value) if value else 0


async def tell(world: SpendWorld, machine: str, *incarnations: str) -> None:
    async def work(tx: WriteTx) -> None:
        await put_machine(tx, machine, frozenset(incarnations))

    await world.store.transact(work)


async def sweep(world: SpendWorld, *, are_machines_known: bool = True) -> int:
    return await sweep_tree(world.store, world.hashes, world.tree, are_machines_known=are_machines_known)


@pytest.fixture
async def built(cascading: SpendWorld) -> SpendWorld:
    await set_prices(cascading.plane, prices_of(cascading.now_ms // 86_400_000 * 86_400_000 - 2 * 86_400_000))
    await cascading.read_prices()
    await cascading.job().count_all()
    return cascading


async def test_reservations_of_dead_incarnations_go_and_those_of_silent_machines_stay(built: SpendWorld) -> None:
    await tell(built, "silent", LIVE)
    live = reserve(built, key_of_age(10 * DEAD_AFTER_MS), LIVE)
    reserve(built, key_of_age(DEAD_AFTER_MS + 5_000), DEAD)
    young = reserve(built, key_of_age(DEAD_AFTER_MS // 2), DEAD)
    assert await sweep(built, are_machines_known=False) == 0
    assert await sweep(built) == 1
    assert reservations(built) == {live, young}
    assert reserved(built) == 10


async def test_empty_reservations_go_after_an_hour(built: SpendWorld) -> None:
    old, young = (key_of_age(age) for age in (MARKER_LASTS_MS + 5_000, MARKER_LASTS_MS - 60_000))
    for key in (old, young):
        built.client.hset(built.tree.key, f"p{key}", b"")
    assert await sweep(built, are_machines_known=False) == 1
    assert reservations(built) == {young}


async def test_events_that_a_build_has_counted_end_their_reservations(built: SpendWorld) -> None:
    start_ms = await built.pass_time(0) + 1
    (counted,) = await built.call(start_ms, start_ms, 1)
    await built.pass_time(1_000)
    await built.job().count_all()
    (later,) = await built.call(start_ms + 500_000, start_ms + 500_000, 1)
    for call in (counted, later):
        reserve(built, call.idempotency_key, DEAD)
    assert await sweep(built) == 1
    assert reservations(built) == {later.idempotency_key}, "its event ends it when it is counted"
    assert reserved(built) == 5


async def test_what_groups_have_reserved_is_the_sum_of_the_reservations_again(built: SpendWorld) -> None:
    await tell(built, "one", LIVE)
    for _ in range(3):
        reserve(built, key_of_age(0), LIVE, 10**12 + 7)
    built.client.hset(built.tree.key, f"r{built.tree.root_id}", pack_amount(99))
    built.client.hset(built.tree.key, "rgone", pack_amount(10**13))
    await sweep(built)
    assert reserved(built) == 3 * 10**12 + 21
    assert unpack_amount(built.client.hget(built.tree.key, "rgone")) == 0  # type: ignore[arg-type]  # not async


async def test_two_processes_make_no_repair_twice(built: SpendWorld) -> None:
    built.client.hset(built.tree.key, f"r{built.tree.root_id}", pack_amount(99))
    first = await built.hashes.reserves(built.tree)
    second = await built.hashes.reserves(built.tree)
    drifts = {built.tree.root_id: -90}
    assert await built.hashes.repair(built.tree, first.stamp, drifts)
    assert not await built.hashes.repair(built.tree, second.stamp, drifts)
    assert reserved(built) == 9


async def test_figures_of_past_windows_are_deleted(built: SpendWorld) -> None:
    names = [
        spent_field(built.tree.root_id, unit, built.now_ms - ago * MONTH_MS)
        for unit in (Unit.DAY, Unit.MONTH)
        for ago in (0, 2)
    ]
    for name in names:
        built.client.hset(built.tree.key, name, pack_spent(1))
    await sweep(built)
    names_left: Any = built.client.hkeys(built.tree.key)
    assert [name.encode() in names_left for name in names] == [True, False, True, False]


async def test_the_job_sweeps_all_trees_and_keeps_what_silent_machines_reserved(
    built: SpendWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    silent = "c" * 16
    await tell(built, "gone", silent)
    await tell(built, "here", LIVE)
    old_ms = now_ms() - 86_400_000
    async with built.store.write() as tx:
        await tx.conn.execute(
            update(spend_machines).where(spend_machines.c.machine == "gone").values(reported_at_ms=old_ms)
        )
    reserve(built, key_of_age(2 * DEAD_AFTER_MS), DEAD)
    stay = {reserve(built, key_of_age(2 * DEAD_AFTER_MS), one) for one in (LIVE, silent)}
    monkeypatch.setattr(counting, "MACHINES_KNOWN_S", 0.0)
    job = built.job()
    await job.begin_sweep()
    await job.sweep_some(10)
    assert reservations(built) == stay
    assert "told nothing for 10 minutes: gone." in caplog.text
    await release_machine(built.store, "gone")
    await job.begin_sweep()
    await job.sweep_some(10)
    assert len(reservations(built)) == 1
