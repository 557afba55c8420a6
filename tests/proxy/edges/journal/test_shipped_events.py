"""Shipped events are kept and sent again when control's database has lost them; nothing is settled twice."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from proxy.edges.journal.supervisor.delivery import Delivery
from proxy.edges.journal.supervisor.shipped_events import (
    DIRECTORY_NAME,
    FILE_SUFFIX,
    RESEND_NAME,
    ShippedEvents,
    ShippedOptions,
)
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
    ship_all,
    silent,
    write_calls,
)
from tests.waiting import eventually

ALWAYS_ASKING = replace(EAGER, look_back_interval_s=0.0, shipped=KEEPING)


def lose(ingest: FakeIngest, *numbers: int) -> None:
    """The database is restored from a backup that lacks these."""
    for number in numbers:
        del ingest.events[key(number)]


async def shipped_and_dead(
    directory: Path, ingest: FakeIngest, *numbers: int, counters: FakeCounters | None = None
) -> None:
    """Run a worker that writes these calls and dies, and a shipper that ships them."""
    journal = JournalWriter(directory, f"w{numbers[0]}", SMALL)
    write_calls(journal, *numbers)
    kill(journal)
    await ship_all(directory, ingest, counters)


async def test_events_lost_by_a_restore_are_sent_again_and_not_settled_again(tmp_path: Path) -> None:
    ingest = FakeIngest()
    counters = FakeCounters()
    await shipped_and_dead(tmp_path, ingest, *range(50), counters=counters)
    await shipped_and_dead(tmp_path, ingest, *range(50, 120), counters=counters)
    before = dict(ingest.events)
    settled = len(counters.applied)
    lose(ingest, *range(60, 120))
    shipper = Shipper(tmp_path, ingest, counters, EAGER)
    shipper.start(tuple, silent)
    await eventually(lambda: len(ingest.events) == 120)
    await eventually(lambda: shipper.resent == 120)
    assert shipper.pending == 0
    assert await shipper.drain(10)
    assert ingest.events == before
    assert len(counters.applied) == settled == 120


async def test_resend_of_a_living_workers_events_does_not_stop_new_ones(tmp_path: Path) -> None:
    ingest = FakeIngest()
    shipper = Shipper(tmp_path, ingest, FakeCounters(), ALWAYS_ASKING)
    shipper.start(lambda: {"w1"}, all_settled)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(100))
    await eventually(lambda: len(ingest.events) == 100)
    lose(ingest, *range(30, 100))
    write_calls(journal, *range(100, 130))
    await eventually(lambda: len(ingest.events) == 130)
    journal.stop()
    assert await shipper.drain(10)


async def test_new_events_do_not_hide_that_control_lost_older_ones(tmp_path: Path) -> None:
    """The first batch after a restore is refused: once committed, it would hide that older events are missing."""
    ingest = FakeIngest()
    await shipped_and_dead(tmp_path, ingest, *range(40))
    lose(ingest, *range(10, 40))
    ingest.predecessors.clear()
    await shipped_and_dead(tmp_path, ingest, 900)
    assert ingest.predecessors[0] == key(39)
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(tuple, silent)
    await eventually(lambda: len(ingest.events) == 41)
    assert await shipper.drain(10)


async def test_control_is_checked_without_calls_and_at_once_on_request(tmp_path: Path) -> None:
    ingest = FakeIngest()
    await shipped_and_dead(tmp_path, ingest, *range(10))
    options = replace(EAGER, look_back_interval_s=1000, shipped=KEEPING)
    shipper = Shipper(tmp_path, ingest, FakeCounters(), options)
    shipper.start(tuple, silent)
    await eventually(lambda: ingest.predecessors[-1] == key(9))
    lose(ingest, 9)
    question_count = len(ingest.predecessors)
    await asyncio.sleep(0.05)
    assert len(ingest.predecessors) == question_count, "it was asked a moment ago"
    shipper.check_control()
    await eventually(lambda: key(9) in ingest.events)
    assert await shipper.drain(10)


async def test_resend_continues_after_a_restart(tmp_path: Path) -> None:
    """Events shipped meanwhile are newer than the missing ones and must not hide them."""
    ingest = FakeIngest()
    for first in range(0, 50, 10):
        await shipped_and_dead(tmp_path, ingest, *range(first, first + 10))
    lose(ingest, *range(5, 50))
    shipped = ShippedEvents(tmp_path / DIRECTORY_NAME, KEEPING)
    delivery = Delivery(tmp_path, ingest, shipped, (1000, 1_000_000))
    await delivery.open()
    await delivery.look_back(0.0)
    shipped.close()
    assert delivery.resent, "asked, refused, and the first of them sent again"
    assert (tmp_path / DIRECTORY_NAME / RESEND_NAME).exists()
    assert len(ingest.events) < 50
    await shipped_and_dead(tmp_path, ingest, 900)
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(tuple, silent)
    await eventually(lambda: len(ingest.events) == 51)
    await eventually(lambda: not (tmp_path / DIRECTORY_NAME / RESEND_NAME).exists())
    assert await shipper.drain(10)


async def test_events_are_sent_again_after_each_of_two_restores(tmp_path: Path) -> None:
    ingest = FakeIngest()
    await shipped_and_dead(tmp_path, ingest, *range(20))
    for _ in range(2):
        lose(ingest, *range(8, 20))
        shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
        shipper.start(tuple, silent)
        await eventually(lambda: len(ingest.events) == 20)
        await eventually(lambda: not (tmp_path / DIRECTORY_NAME / RESEND_NAME).exists())
        assert await shipper.drain(10)


async def test_rejected_event_is_neither_kept_nor_expected(tmp_path: Path) -> None:
    ingest = FakeIngest()
    ingest.poison = key(9)
    await shipped_and_dead(tmp_path, ingest, *range(10))
    shipped = ShippedEvents(tmp_path / DIRECTORY_NAME, KEEPING)
    shipped.open()
    assert shipped.last_key == key(8)
    assert key(9) not in {orjson.loads(event)["idempotency_key"] for event in everything(shipped)}


def everything(shipped: ShippedEvents) -> list[bytes]:
    """All that would be sent again."""
    shipped.begin_resend()
    events: list[bytes] = []
    while (batch := shipped.next_to_resend()) is not None:
        events += batch.events
        shipped.resent(batch)
    return events


def event(number: int, pad: str = "") -> bytes:
    return orjson.dumps({"idempotency_key": key(number), "pad": pad})


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*" + FILE_SUFFIX))


def opened(directory: Path, options: ShippedOptions = KEEPING) -> ShippedEvents:
    shipped = ShippedEvents(directory, options)
    shipped.open()
    return shipped


def test_torn_file_keeps_its_complete_records(tmp_path: Path) -> None:
    shipped = opened(tmp_path)
    for number in range(5):
        shipped.keep([event(number)])
    shipped.close()
    (only,) = files(tmp_path)
    whole_size = only.stat().st_size
    for size in (whole_size - 1, whole_size - 40):
        os.truncate(only, size)
        again = opened(tmp_path)
        assert again.last_key == key(3)
    again.keep([event(9)])
    assert everything(again)[:5] == [event(0), event(1), event(2), event(3), event(9)]
    again.close()


def test_files_older_than_the_retention_are_deleted(tmp_path: Path) -> None:
    shipped = opened(tmp_path)
    shipped.keep([event(1)])
    shipped.close()
    os.utime(files(tmp_path)[0], (0, 0))
    shipped = opened(tmp_path)
    assert files(tmp_path) == []
    assert (shipped.last_key, shipped.bytes) == (None, 0)


def test_oldest_files_are_deleted_above_the_size_bound(tmp_path: Path) -> None:
    options = ShippedOptions(file_bytes=1, max_bytes=3_000, keep_free_bytes=0)
    shipped = opened(tmp_path, options)
    for number in range(10):
        shipped.keep([event(number, os.urandom(400).hex())])
    shipped.close()
    assert len(files(tmp_path)) == 10
    shipped = opened(tmp_path, options)
    total = sum(path.stat().st_size for path in files(tmp_path))
    assert 0 < total <= 3_000
    assert shipped.bytes == total
    assert shipped.last_key == key(9)


def test_files_to_be_sent_again_are_not_deleted_by_age(tmp_path: Path) -> None:
    shipped = opened(tmp_path)
    shipped.keep([event(1)])
    shipped.begin_resend()
    os.utime(files(tmp_path)[0], (0, 0))
    again = opened(tmp_path)
    batch = again.next_to_resend()
    assert batch is not None
    assert batch.events == [event(1)]


def test_full_disk_deletes_shipped_events_and_logs_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shipped = opened(tmp_path)
    shipped.keep([event(1)])
    shipped.close()
    full = opened(tmp_path, ShippedOptions(keep_free_bytes=1 << 62))
    for number in range(2, 5):
        full.keep([event(number)])
    assert files(tmp_path) == []
    assert full.last_key == key(4), "this process can still ask; it only has nothing to send again"
    assert caplog.text.count("shipped events are dropped, oldest first") == 1


def test_without_retention_nothing_is_kept_or_checked(tmp_path: Path) -> None:
    earlier = opened(tmp_path / DIRECTORY_NAME)
    earlier.keep([event(0)])
    earlier.close()
    shipped = opened(tmp_path / DIRECTORY_NAME, ShippedOptions(retention_s=0))
    shipped.keep([event(1)])
    shipped.make_room()
    assert shipped.last_key is None
    assert shipped.next_to_resend() is None
    assert not (tmp_path / DIRECTORY_NAME).exists()
