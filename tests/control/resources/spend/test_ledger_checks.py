"""Hash and ledger of a tree's balances: where they differ, the tree is built.

See docs/reference/money.md#how-spend-is-counted.
"""

from typing import Any

import pytest
from sqlalchemy import delete

from control.edges.sql.tables import groups
from control.resources.spend import ledger_checks
from control.resources.spend.ledger_checks import LedgerChecks
from policy.spend.balances import balance_name
from policy.spend.spend_hash import pack_spent, spent_field
from tests.control.resources.spend.spend_world import SpendWorld


@pytest.fixture
async def drawn(cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch) -> SpendWorld:
    """A tree with balances that are drawn from, of calls that are counted and of later ones."""
    monkeypatch.setattr(ledger_checks, "CHECK_S", 0.0)
    root, child = cascading.paths[1][1].split("/")[:-1]
    for group_id in (root, child):
        await cascading.deposit(group_id)
    cascading.drawn_until_ms = cascading.now_ms
    for at_ms in (cascading.now_ms, cascading.now_ms + 600_000):
        calls = await cascading.call(at_ms, at_ms, 10)
        await cascading.draw(root, calls)
        await cascading.withdraw(root, at_ms, 10**21)
    await cascading.job().count_all()
    cascading.tree = cascading.tree._replace(is_hard=True)
    return cascading


def field_of(group_id: str) -> str:
    return spent_field(balance_name(group_id), None, 0)


async def test_equal_sums_change_nothing(drawn: SpendWorld) -> None:
    assert not await LedgerChecks(drawn.store, drawn.hashes).mend(drawn.tree)
    assert drawn.client.hexists(drawn.tree.key, "e")


@pytest.mark.parametrize("place", [0, 1])
async def test_difference_in_the_last_digit_has_the_tree_built(
    drawn: SpendWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Meanwhile the reservations stay, and none counts as missing."""
    monkeypatch.setattr(ledger_checks, "BALANCES_AT_ONCE", 1)
    group_id = drawn.paths[1][1].split("/")[place]
    drawn.client.hset(drawn.tree.key, field_of(group_id), pack_spent(drawn.drawn[group_id] + 1))
    epoch = drawn.client.hget(drawn.tree.key, "e").split()[0]  # type: ignore[union-attr]  # not async
    drawn.client.hset(drawn.tree.key, "h", epoch)
    checks = LedgerChecks(drawn.store, drawn.hashes)
    assert await checks.mend(drawn.tree)
    assert f"drawn from the balance of group {group_id}, and the ledger says" in caplog.text
    assert caplog.text.count("the ledger says") == 1
    assert not await checks.mend(drawn.tree), "it is being built"
    await drawn.job().count_all()
    drawn.check()
    assert drawn.client.hget(drawn.tree.key, "h") == epoch
    assert not await checks.mend(drawn.tree)


async def test_job_looks_at_what_it_sweeps_and_builds_it_in_the_next_turn(drawn: SpendWorld) -> None:
    job = drawn.job()
    await job.count_all()
    drawn.client.hset(drawn.tree.key, field_of(drawn.tree.root_id), pack_spent(5))
    await job.begin_sweep()
    await job.sweep_some(10)
    await job.count_all()
    drawn.check()


async def test_whole_ledger_is_added_up_from_time_to_time(drawn: SpendWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_checks, "CHECK_S", 600.0)
    checks = LedgerChecks(drawn.store, drawn.hashes)
    assert not await checks.mend(drawn.tree)
    drawn.client.hset(drawn.tree.key, field_of(drawn.tree.root_id), pack_spent(5))
    assert not await checks.mend(drawn.tree)


async def test_group_that_is_deleted_meanwhile_is_no_difference(
    drawn: SpendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = drawn.paths[1][1].split("/")[1]
    drawn.client.hset(drawn.tree.key, field_of(child), pack_spent(5))
    read = drawn.hashes.drawn_of

    async def and_then(tree: Any, group_ids: Any) -> Any:
        reading = await read(tree, group_ids)
        async with drawn.store.write() as tx:
            await tx.conn.execute(delete(groups).where(groups.c.parent_id == child))
            await tx.conn.execute(delete(groups).where(groups.c.id == child))
        return reading

    monkeypatch.setattr(drawn.hashes, "drawn_of", and_then)
    assert not await LedgerChecks(drawn.store, drawn.hashes).mend(drawn.tree)
