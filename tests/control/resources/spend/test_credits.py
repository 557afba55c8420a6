"""Withdrawals beside a real Redis and the counting job: they take room before they are written, and count once.

See docs/reference/money.md#balances.
"""

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal

import pytest

from control.edges.redis.spend.spend_hashes import SpendHashes
from control.edges.sql.store import WriteTx, now_ms
from control.errors import DatabaseUnavailableError, IngestTooSlowError, NotEnoughCreditError, SpendNotCountedError
from control.records.spend import BalanceReading, Withdrawal
from control.resources.billing_events import EventReader
from control.resources.spend import counting, rebuilds
from control.resources.spend.balance_source import BalanceSource
from control.resources.spend.balances import (
    BalanceFigures,
    Ledger,
    MadeCredit,
    NewCredit,
    credit_group,
    read_balance,
    read_entries,
)
from control.resources.spend.counting import SpendCounting
from control.resources.spend.sweep import sweep_tree
from tests.control.resources.spend.spend_world import HOUR_MS, SpendWorld

HOLDBACK_S = 60.0


class Interrupted(BalanceSource):
    """The hashes, with something that happens just after a withdrawal took its room."""

    def __init__(self, hashes: SpendHashes, then: Callable[[], Awaitable[None]]) -> None:
        self._hashes = hashes
        self._then = then
        self.given_back: list[str] = []

    async def balance_of(self, tree_key: str, currency: str, group_id: str) -> BalanceReading:
        return await self._hashes.balance_of(tree_key, currency, group_id)

    async def withdraw(self, withdrawal: Withdrawal) -> bool:
        is_taken = await self._hashes.withdraw(withdrawal)
        await self._then()
        return is_taken

    async def give_back_withdrawal(self, tree_key: str, key: str) -> None:
        self.given_back.append(key)
        await self._hashes.give_back_withdrawal(tree_key, key)


@pytest.fixture
async def job(cascading: SpendWorld, monkeypatch: pytest.MonkeyPatch) -> SpendCounting:
    """The counting of a tree whose root has 10 EUR, all of whose reservations are known."""
    monkeypatch.setattr(rebuilds, "MACHINES_TOLD_S", 0.0)
    monkeypatch.setattr(counting, "IDLE_TURNS", 1)
    await credit(cascading, "10", "first")
    reader = EventReader(cascading.store, HOLDBACK_S, cascading.clock)
    job = SpendCounting(cascading.store, reader, cascading.hashes, lambda _places: None, cascading.overruns.append)
    for _ in range(3):
        await job.count_all()
    return job


async def credit(
    world: SpendWorld, amount: str, reference: str, source: BalanceSource | None = None, holdback_s: float = HOLDBACK_S
) -> MadeCredit:
    ledger = Ledger(world.store, source or world.hashes, world.clock, holdback_s)
    new = NewCredit(Decimal(amount), "EUR", reference)
    return await credit_group(ledger, world.plane.workspace_id, world.tree.root_id, new)


async def figures(world: SpendWorld) -> BalanceFigures:
    return await read_balance(world.store, world.hashes, world.plane.workspace_id, world.tree.root_id)


async def references(world: SpendWorld) -> list[str]:
    entries = await read_entries(world.store, world.plane.workspace_id, world.tree.root_id, None, 100)
    return [getattr(one.entry, "reference", "") for one in entries]


async def count_later(world: SpendWorld, job: SpendCounting) -> None:
    await world.pass_time(2 * int(HOLDBACK_S * 1000))
    await job.count_all()


async def test_withdrawals_at_once_take_no_more_than_there_is(cascading: SpendWorld, job: SpendCounting) -> None:
    results = await asyncio.gather(
        *(credit(cascading, "-3", f"w{number}") for number in range(6)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in results) == ["MadeCredit"] * 3 + ["NotEnoughCreditError"] * 3
    expected = BalanceFigures("EUR", Decimal(1), Decimal(0), Decimal(0), Decimal(1))
    assert await figures(cascading) == expected
    await count_later(cascading, job)
    assert await figures(cascading) == expected, "counted"
    reading = await cascading.hashes.balance_of(cascading.tree.key, "EUR", cascading.tree.root_id)
    assert (reading.drawn, reading.reserved) == (9 * 10**22, 0)
    with pytest.raises(NotEnoughCreditError, match=r"only 1\.00 EUR"):
        await credit(cascading, "-1.000000000001", "more")
    await credit(cascading, "-1", "rest")
    assert (await figures(cascading)).available == 0


async def test_a_withdrawal_is_decided_with_all_reservations_alone(cascading: SpendWorld, job: SpendCounting) -> None:
    cascading.client.hdel(cascading.tree.key, "h")
    with pytest.raises(SpendNotCountedError):
        await credit(cascading, "-1", "w")
    cascading.client.flushall()
    with pytest.raises(SpendNotCountedError):
        await credit(cascading, "-1", "w")
    for _ in range(3):
        await job.count_all()
    await credit(cascading, "-1", "w")
    assert await references(cascading) == ["w", "first"]


async def test_a_withdrawal_under_way_is_not_swept_whatever_this_process_takes_for_the_time(
    cascading: SpendWorld, job: SpendCounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks of the database, and of the process that sweeps, are an hour ahead of this process's."""
    await cascading.pass_time(HOUR_MS)
    monkeypatch.setattr("control.resources.spend.sweep.now_ms", lambda: now_ms() + HOUR_MS)
    await job.count_all()
    ended: list[int] = []

    async def sweep() -> None:
        await job.count_all()
        ended.append(await sweep_tree(cascading.store, cascading.hashes, cascading.tree, are_machines_known=True))

    await credit(cascading, "-4", "w", Interrupted(cascading.hashes, sweep))
    assert ended == [0]
    with pytest.raises(NotEnoughCreditError, match=r"only 6\.00 EUR"):
        await credit(cascading, "-7", "more")


async def test_a_withdrawal_that_is_too_slow_is_given_back(cascading: SpendWorld, job: SpendCounting) -> None:
    async def pause() -> None:
        await asyncio.sleep(0.2)

    source = Interrupted(cascading.hashes, pause)
    with pytest.raises(IngestTooSlowError):
        await credit(cascading, "-1", "w", source, holdback_s=0.4)
    assert len(source.given_back) == 1
    assert not (await cascading.hashes.reserves(cascading.tree)).reservations
    assert (await figures(cascading)).available == 10
    assert await references(cascading) == ["first"]


async def test_one_that_is_cancelled_is_given_back(cascading: SpendWorld, job: SpendCounting) -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await credit(cascading, "-1", "w", Interrupted(cascading.hashes, cancel))
    assert not (await cascading.hashes.reserves(cascading.tree)).reservations
    await credit(cascading, "-10", "w")


async def test_one_that_may_be_committed_is_not_given_back(
    cascading: SpendWorld, job: SpendCounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_tx: WriteTx) -> None:
        raise DatabaseUnavailableError("connection lost")

    async def nothing() -> None:
        pass

    source = Interrupted(cascading.hashes, nothing)
    with monkeypatch.context() as patch:
        patch.setattr(WriteTx, "finish", fail)
        with pytest.raises(DatabaseUnavailableError):
            await credit(cascading, "-1", "w", source)
    assert source.given_back == []
    assert len((await cascading.hashes.reserves(cascading.tree)).reservations) == 1, "the sweep looks it up"
    assert (await figures(cascading)).available == 9


async def test_redis_may_be_lost_within_a_withdrawal(cascading: SpendWorld, job: SpendCounting) -> None:
    """The tree then waits until it is committed, and has its reservation again before calls are admitted."""
    counting_jobs: list[asyncio.Task[None]] = []

    async def lose() -> None:
        cascading.client.flushall()
        counting_jobs.append(asyncio.create_task(job.count_all()))
        await asyncio.wait(counting_jobs, timeout=0.5)
        assert not counting_jobs[0].done(), "it waits to write down that the tree waits"

    await credit(cascading, "-4", "w", Interrupted(cascading.hashes, lose))
    await asyncio.gather(*counting_jobs)
    for _ in range(2):
        await job.count_all()
    reading = await cascading.hashes.balance_of(cascading.tree.key, "EUR", cascading.tree.root_id)
    assert (reading.drawn, reading.reserved) == (0, 4 * 10**12)
    with pytest.raises(NotEnoughCreditError, match=r"only 6\.00 EUR"):
        await credit(cascading, "-7", "more")
    await count_later(cascading, job)
    assert (await figures(cascading)).available == 6
