"""A wait for control to commit what is journaled ends when it has, whoever dies or starts meanwhile."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.edges.journal.supervisor.shipper import Shipper
from proxy.edges.journal.writer import JournalWriter
from tests.proxy.edges.journal.journals import (
    EAGER,
    KEEPING,
    SMALL,
    FakeCounters,
    FakeIngest,
    all_settled,
    key,
    kill,
    open_call,
    silent,
    write_calls,
)
from tests.waiting import PATIENCE_S, until_still


async def soon(wait: Awaitable[None]) -> None:
    """Wait, with a limit: a wait that never ends must fail."""
    await asyncio.wait_for(wait, PATIENCE_S)


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_living_workers_journal_is_committed_through_its_place(tmp_path: Path, in_memory: bool) -> None:
    ingest = FakeIngest()
    ingest.away = True
    root = tmp_path / "memory"
    root.mkdir()
    tmp_path = tmp_path / "journal"
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: {"w1"}, silent)
    journal = JournalWriter(tmp_path, "w1", replace(SMALL, memory_root=root if in_memory else None))
    write_calls(journal, *range(300))  # over several segments
    assert journal.place is not None
    wait = asyncio.ensure_future(shipper.committed({"w1": journal.place}))
    await until_still(lambda: shipper.pending)
    assert not wait.done()
    ingest.away = False
    await soon(wait)
    assert len(ingest.events) == 300
    open_call(journal, 300)
    await soon(shipper.committed({"w1": journal.place}))
    journal.stop()
    assert await shipper.drain(10)


async def test_a_wait_ends_while_the_journal_grows(tmp_path: Path) -> None:
    """Control that falls behind takes what was written when the wait began, and does not have to catch up first."""
    ingest = FakeIngest()
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(100))
    assert journal.place is not None
    count = 100

    class Slow(FakeIngest):
        async def post(self, body: bytes) -> None:
            nonlocal count
            await super().post(body)
            write_calls(journal, *range(count, count + 40))
            count += 40

    ingest = Slow()
    shipper = Shipper(tmp_path, ingest, FakeCounters(), replace(EAGER, round_events=20))
    wait = asyncio.ensure_future(shipper.committed({"w1": journal.place}))
    shipper.start(lambda: {"w1"}, all_settled)
    await soon(wait)
    assert {key(number) for number in range(100)} <= set(ingest.events)
    assert len(ingest.events) < count
    await shipper.drain(0)
    journal.stop()


async def test_a_dead_workers_journal_is_committed_whole(tmp_path: Path) -> None:
    """Calls that were open are billed too, and settlements may still wait for Redis."""
    ingest = FakeIngest()
    ingest.away = True
    counters = FakeCounters()
    counters.away = True
    dead = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(dead, *range(120))
    open_call(dead, 500)
    kill(dead)
    shipper = Shipper(tmp_path, ingest, counters, EAGER)
    shipper.start(lambda: {"w2"}, silent)
    wait = asyncio.ensure_future(shipper.committed({}))
    await until_still(lambda: shipper.pending)
    assert not wait.done()
    ingest.away = False
    await soon(wait)
    assert len(ingest.events) == 121
    assert (tmp_path / "w1").exists()
    counters.away = False
    assert await shipper.drain(10)


async def test_a_worker_that_dies_during_the_wait_is_waited_for_through_its_place(tmp_path: Path) -> None:
    """The open calls were reserved again, so their events may come later."""
    ingest = FakeIngest()
    ingest.away = True
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(10))
    live = {"w1"}
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: live, silent)
    assert journal.place is not None
    wait = asyncio.ensure_future(shipper.committed({"w1": journal.place}))
    await until_still(lambda: shipper.pending)
    open_call(journal, 10)
    kill(journal)
    live.clear()
    ingest.away = False
    await soon(wait)
    assert len(ingest.events) >= 10
    assert await shipper.drain(10)


async def test_a_worker_that_starts_during_the_wait_is_passed_over(tmp_path: Path) -> None:
    ingest = FakeIngest()
    ingest.away = True
    live = {"w1", "w2"}
    first = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(first, *range(10))
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: live, silent)
    assert first.place is not None
    wait = asyncio.ensure_future(shipper.committed({"w1": first.place}))
    second = JournalWriter(tmp_path, "w2", SMALL)
    open_call(second, 20)
    ingest.away = False
    await soon(wait)
    first.stop()
    second.stop()
    assert await shipper.drain(10)


async def test_without_records_a_wait_ends_at_once_and_one_that_is_cancelled_is_forgotten(tmp_path: Path) -> None:
    ingest = FakeIngest()
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: {"w1", "w2"}, silent)
    await soon(shipper.committed({"w1": (0, 0)}))
    empty = JournalWriter(tmp_path, "w2", SMALL)
    assert empty.place is not None
    await soon(shipper.committed({"w2": empty.place}))
    ingest.away = True
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, 1)
    assert journal.place is not None
    wait = asyncio.ensure_future(shipper.committed({"w1": journal.place}))
    await until_still(lambda: shipper.pending)
    wait.cancel()
    await asyncio.wait([wait])
    assert shipper._waits == []
    journal.stop()
    await shipper.drain(0)


async def test_events_that_a_restored_control_lacks_are_waited_for(tmp_path: Path) -> None:
    ingest = FakeIngest()
    options = replace(EAGER, batch_events=10, round_events=10, shipped=KEEPING)
    shipper = Shipper(tmp_path, ingest, FakeCounters(), options)
    shipper.start(lambda: {"w1"}, silent)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(60))
    assert journal.place is not None
    await soon(shipper.committed({"w1": journal.place}))
    ingest.events.clear()
    write_calls(journal, 60)
    await soon(shipper.committed({"w1": journal.place}))
    assert len(ingest.events) == 61
    journal.stop()
    assert await shipper.drain(10)
