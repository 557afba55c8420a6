"""The shipper delivers each journaled call to control once, whenever a process dies."""

import asyncio
import errno
import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.billing import Tokens
from policy.limits.settlement import Settlement
from proxy.accounting.journal_records import Kind, frames
from proxy.accounting.recovery import Halves
from proxy.edges.journal.supervisor import journal_reader as journal_reader
from proxy.edges.journal.supervisor.delivery import IngestUnavailableError, in_thread
from proxy.edges.journal.supervisor.journal_reader import JournalReader
from proxy.edges.journal.supervisor.shipped_events import DIRECTORY_NAME, events_of, names_in, records_in
from proxy.edges.journal.supervisor.shipper import RESERVE_NAME, Shipper, ShipperOptions
from proxy.edges.journal.writer import JournalWriter
from tests.fakes.journal import progress_of
from tests.proxy.edges.journal.journals import (
    EAGER,
    KEEPING,
    OPENED_AT_MS,
    SMALL,
    FakeCounters,
    FakeIngest,
    all_settled,
    begin_answer,
    end_call,
    key,
    kill,
    open_call,
    reservation,
    ship_all,
    silent,
    write_calls,
)
from tests.waiting import eventually


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name not in (RESERVE_NAME, DIRECTORY_NAME))


async def test_living_workers_events_are_shipped_as_calls_end(tmp_path: Path) -> None:
    ingest = FakeIngest()
    counters = FakeCounters()
    shipper = Shipper(tmp_path, ingest, counters, EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(300))
    open_call(journal, 300)
    await eventually(lambda: len(ingest.events) == 300)
    assert ingest.events[key(7)]["tokens"] == [11, 7, 3]
    await eventually(lambda: shipper.pending == 0)
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 3)
    end_call(journal, 300)
    await eventually(lambda: key(300) in ingest.events)
    journal.stop()
    assert await shipper.drain(10)
    assert names(tmp_path) == []


async def test_round_of_several_requests_continues_after_a_failure(tmp_path: Path) -> None:
    """The events that control has committed are neither sent nor kept again."""
    sizes: list[int] = []

    class Ingest(FakeIngest):
        async def post(self, body: bytes) -> None:
            sizes.append(body.count(b'"idempotency_key"'))
            if len(sizes) == 2:
                raise IngestUnavailableError("away")
            await super().post(body)

    journal = JournalWriter(tmp_path, "w1", SMALL)
    ingest = Ingest()
    write_calls(journal, *range(80))
    options = replace(EAGER, batch_events=20, round_events=50, shipped=KEEPING)
    shipper = Shipper(tmp_path, ingest, FakeCounters(), options)
    shipper.start(lambda: {"w1"}, all_settled)
    await eventually(lambda: len(ingest.events) == 80)
    journal.stop()
    assert await shipper.drain(10)
    assert [size for size in sizes if size] == [20, 20, 20, 10, 20, 10]
    files = [tmp_path / DIRECTORY_NAME / name for name in names_in(tmp_path / DIRECTORY_NAME)]
    shipped = [event for file in files for record in records_in(file) for event in events_of(record)]
    assert len(shipped) == len(set(shipped)) == 80


async def test_single_events_are_batched_and_a_backlog_is_sent_at_once(tmp_path: Path) -> None:
    """A batch costs control as much as a hundred events, so there is at most one per interval."""
    ingest = FakeIngest()
    interval_s = 0.1
    time_s = asyncio.get_running_loop().time
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(500))
    piled_up = Shipper(tmp_path, ingest, FakeCounters(), ShipperOptions(round_events=10, poll_interval_s=1000))
    piled_up.start(lambda: {"w1"}, all_settled)
    await eventually(lambda: len(ingest.events) == 500)
    await piled_up.drain(0)

    ingest.posts = 0
    began_s = time_s()
    shipper = Shipper(tmp_path, ingest, FakeCounters(), ShipperOptions(poll_interval_s=interval_s))
    shipper.start(lambda: {"w1"}, all_settled)
    for number in range(500, 600):
        write_calls(journal, number)
        shipper.calls_ended()
        await asyncio.sleep(0.004)
    await eventually(lambda: len(ingest.events) == 600)
    assert ingest.posts <= (time_s() - began_s) / interval_s + 2
    journal.stop()
    assert await shipper.drain(10)


async def test_idle_shipper_waits_for_calls_to_end(tmp_path: Path) -> None:
    """It reads no journal meanwhile. A call that ends while a round is under way is found by the next one."""
    ingest = FakeIngest()
    shipper = Shipper(tmp_path, ingest, FakeCounters(), replace(EAGER, idle_interval_s=1000))
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, 1)
    shipper.start(lambda: {"w1"}, all_settled)
    await eventually(lambda: key(1) in ingest.events and shipper._is_idle)
    write_calls(journal, 2)
    await asyncio.sleep(0.05)
    assert key(2) not in ingest.events
    shipper.calls_ended()
    shipper.calls_ended()
    await eventually(lambda: key(2) in ingest.events and shipper._is_idle)
    kill(journal)
    shipper.worker_died("w1")
    assert await shipper.drain(10)
    assert names(tmp_path) == []


async def test_shipper_is_not_idle_while_control_takes_nothing(tmp_path: Path) -> None:
    ingest = FakeIngest()
    ingest.away = True
    shipper = Shipper(tmp_path, ingest, FakeCounters(), replace(EAGER, idle_interval_s=1000))
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, 1)
    shipper.start(lambda: {"w1"}, all_settled)
    await eventually(lambda: shipper.pending == 1)
    ingest.away = False
    await eventually(lambda: key(1) in ingest.events)
    journal.stop()
    assert await shipper.drain(10)


async def test_dead_workers_calls_are_billed_settled_and_removed(tmp_path: Path) -> None:
    ingest = FakeIngest()
    counters = FakeCounters()
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(120))
    open_call(journal, 500)
    open_call(journal, 501)
    begin_answer(journal, 501)
    journal.progress([progress_of(key(501), Tokens(input=90, output=33), OPENED_AT_MS + 9000)])
    kill(journal)
    await ship_all(tmp_path, ingest, counters)
    assert len(ingest.events) == 122
    assert ingest.events[key(500)]["tokens"] == [0, 0, 0]
    assert ingest.events[key(501)]["tokens"] == [90, 33, 0]
    assert ingest.events[key(501)]["ended_at_ms"] == OPENED_AT_MS + 9000
    assert len(counters.applied) == 122
    assert names(tmp_path) == []


async def test_a_journal_that_is_removed_is_told_once(tmp_path: Path) -> None:
    shipper = Shipper(tmp_path, FakeIngest(), FakeCounters())
    removed: list[list[str]] = []
    shipper.on_removed = lambda: removed.append(names(tmp_path))
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(3))
    kill(journal)
    shipper.start(tuple, all_settled)
    assert await shipper.drain(10)
    assert removed == [[]]


async def test_drain_does_not_wait_for_the_next_interval_when_a_dead_workers_calls_are_settled(tmp_path: Path) -> None:
    counters = FakeCounters()
    shipper = Shipper(tmp_path, FakeIngest(), counters, ShipperOptions(poll_interval_s=1000))
    shipper.start(lambda: {"w1"}, all_settled)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(3))
    kill(journal)
    counters.away = True
    draining = asyncio.create_task(shipper.drain(10))
    await asyncio.sleep(0.2)  # every round that the drain asks for has ended
    counters.away = False
    assert await draining
    assert len(counters.applied) == 3
    assert names(tmp_path) == []


async def test_events_wait_and_are_counted_while_control_is_unreachable(tmp_path: Path) -> None:
    ingest = FakeIngest()
    ingest.away = True
    journal = JournalWriter(tmp_path, "w1", SMALL)
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    write_calls(journal, *range(250))
    await eventually(lambda: shipper.pending == 250)
    assert ingest.events == {}
    ingest.away = False
    await eventually(lambda: len(ingest.events) == 250 and shipper.pending == 0)
    journal.stop()
    assert await shipper.drain(10)


async def test_pause_is_told_unless_control_is_still_starting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ingest = FakeIngest()
    ingest.away = True
    journal = JournalWriter(tmp_path, "w1", SMALL)
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    write_calls(journal, 1)
    await eventually(lambda: shipper.pending == 1)
    ingest.away = False
    await eventually(lambda: shipper.pending == 0)
    assert "Event shipping" not in caplog.text
    ingest.away = True
    write_calls(journal, 2)
    await eventually(lambda: caplog.text.count("Event shipping paused") == 1)
    ingest.away = False
    await eventually(lambda: caplog.text.count("Event shipping resumed") == 1)
    journal.stop()
    assert await shipper.drain(10)


async def test_pending_is_zero_only_after_a_round_found_no_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are being read during a post are pending: they are in no batch yet, and no longer unread."""
    pending_counts: list[int] = []
    ingest = FakeIngest()
    read = JournalReader.read

    def slow_read(reader: JournalReader, limit: int) -> list[Halves]:
        ended = read(reader, limit)
        pending_counts.append(shipper.pending)
        return ended

    async def post(body: bytes) -> None:
        await FakeIngest.post(ingest, body)
        if len(ingest.events) == 10:
            write_calls(journal, *range(10, 20))

    monkeypatch.setattr(JournalReader, "read", slow_read)
    monkeypatch.setattr(ingest, "post", post)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(10))
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    await eventually(lambda: len(ingest.events) == 20)
    await eventually(lambda: shipper.pending == 0)
    assert pending_counts[:3] == [0, 10, 10]
    journal.stop()
    assert await shipper.drain(10)


async def test_dead_workers_reservations_are_settled_while_control_is_unreachable(tmp_path: Path) -> None:
    ingest = FakeIngest()
    counters = FakeCounters()
    ingest.away = True
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, 1)
    open_call(journal, 2)
    kill(journal)
    shipper = Shipper(tmp_path, ingest, counters, EAGER)
    shipper.start(tuple, silent)
    await eventually(lambda: len(counters.applied) == 2)
    assert not await shipper.drain(0.05)
    ingest.away = False
    await ship_all(tmp_path, ingest, counters)
    assert len(ingest.events) == 2
    assert len(counters.applied) == 2


@pytest.mark.parametrize("raises", [False, True])
async def test_without_redis_a_dead_workers_events_are_shipped_and_its_settlements_wait(
    tmp_path: Path, raises: bool
) -> None:
    ingest = FakeIngest()
    counters = FakeCounters()
    counters.away = True
    counters.raises = raises
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(200))
    kill(journal)
    shipper = Shipper(tmp_path, ingest, counters, EAGER)
    shipper.start(tuple, silent)
    await eventually(lambda: len(ingest.events) == 200)
    assert names(tmp_path) == ["w1"]
    assert not await shipper.drain(0.01)
    counters.away = False
    await ship_all(tmp_path, ingest, counters)
    assert len(counters.applied) == 200
    assert names(tmp_path) == []


class SettlingWorker:
    """A worker that settles its own calls. The number it reports may lag behind."""

    def __init__(self, counters: FakeCounters) -> None:
        self.counters = counters
        self.says = 0

    def settle(self, numbers: Iterable[int]) -> None:
        self.counters.apply(
            "w1",
            [Settlement(reservation=reservation(number), number=number + 1, actual_tokens=18) for number in numbers],
        )

    async def settled(self, incarnation: str) -> int:
        assert incarnation == "w1"
        return self.says


async def test_living_workers_journal_stays_until_it_reports_its_settlements(tmp_path: Path) -> None:
    ingest = FakeIngest()
    counters = FakeCounters()
    worker = SettlingWorker(counters)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    shipper = Shipper(tmp_path, ingest, counters, EAGER)
    shipper.start(lambda: {"w1"}, worker.settled)
    write_calls(journal, *range(200))
    await eventually(lambda: len(ingest.events) == 200)
    posts = ingest.posts
    segments = len(list((tmp_path / "w1").glob("*.journal")))
    assert segments > 3
    for number in range(200, 203):
        write_calls(journal, number)
        await eventually(lambda: len(ingest.events) == number + 1)  # noqa: B023 (used within the iteration)
    assert len(list((tmp_path / "w1").glob("*.journal"))) >= segments, "what may be unsettled is gone"
    assert ingest.posts > posts
    worker.settle(range(203))
    worker.says = 203
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 3)
    assert len(counters.applied) == 203, "the worker settles for itself"
    journal.stop()
    assert await shipper.drain(10)
    assert len(counters.applied) == 203


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_each_settlement_is_made_once_wherever_a_worker_dies(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The dead worker has settled some of the calls in its journal, and reported some of those."""
    directory = tmp_path_factory.mktemp("settled")
    ingest = FakeIngest()
    counters = FakeCounters()
    worker = SettlingWorker(counters)
    journal = JournalWriter(directory, "w1", SMALL)
    settled = data.draw(st.integers(0, 100))
    worker.says = data.draw(st.integers(0, settled))
    worker.settle(range(settled))
    shipper = Shipper(directory, ingest, counters, EAGER)
    shipper.start(lambda: {"w1"}, worker.settled)
    write_calls(journal, *range(100))
    open_call(journal, 100)
    await eventually(lambda: len(ingest.events) == 100)
    for _ in range(data.draw(st.integers(0, 3))):
        await asyncio.sleep(0.01)
    await shipper.drain(0)
    kill(journal)
    await ship_all(directory, ingest, counters)
    assert len(ingest.events) == 101
    assert [one.number for one in counters.applied[:100]] == list(range(1, 101))
    assert len(counters.applied) == 101


async def test_lost_answer_from_control_duplicates_no_event(tmp_path: Path) -> None:
    ingest = FakeIngest()
    ingest.lose_acks = 3
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(50))
    kill(journal)
    await ship_all(tmp_path, ingest)
    assert len(ingest.events) == 50
    assert ingest.posts > 3


async def test_rejected_event_is_moved_to_a_file_and_blocks_no_other(tmp_path: Path) -> None:
    ingest = FakeIngest()
    ingest.poison = key(13)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(40))
    kill(journal)
    shipper = await ship_all(tmp_path, ingest)
    assert len(ingest.events) == 39
    assert shipper.rejected == 1
    assert names(tmp_path) == ["rejected.jsonl"]
    assert key(13) in (tmp_path / "rejected.jsonl").read_text()


async def test_call_that_spans_many_segments_is_billed_by_its_close(tmp_path: Path) -> None:
    ingest = FakeIngest()
    counters = FakeCounters()
    journal = JournalWriter(tmp_path, "w1", SMALL)
    open_call(journal, 9000)
    shipper = Shipper(tmp_path, ingest, counters, EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    write_calls(journal, *range(300))
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 3 and len(ingest.events) == 300)
    assert not await shipper.drain(0.01)  # the supervisor dies; its successor finds the call in the saved position
    end_call(journal, 9000)
    kill(journal)
    await ship_all(tmp_path, ingest, counters)
    assert ingest.events[key(9000)]["status"] == 200
    assert len(ingest.events) == 301


class FullDisk:
    """A full disk. A write succeeds only if the reserve or a deletion made room for it."""

    def __init__(self, reserve: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reserve = reserve
        self._real = journal_reader.replace_durably
        self.writes = 0
        monkeypatch.setattr(journal_reader, "replace_durably", self._replace)

    def _replace(self, path: Path, data: bytes) -> None:
        self.writes += 1
        if self._reserve is None or self._reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        self._real(path, data)


async def test_segments_are_deleted_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(tmp_path / RESERVE_NAME, monkeypatch)
    ingest = FakeIngest()
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    await eventually((tmp_path / RESERVE_NAME).exists)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(300))
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 2)
    await eventually((tmp_path / RESERVE_NAME).exists)  # the reserve is created again
    journal.stop()
    assert await shipper.drain(10)


async def test_position_that_cannot_be_saved_blocks_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk(None, monkeypatch)
    ingest = FakeIngest()
    shipper = Shipper(tmp_path, ingest, FakeCounters(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(300))
    await eventually(lambda: len(ingest.events) == 300 and disk.writes > 2)
    posts = ingest.posts
    write_calls(journal, *range(300, 310))
    await eventually(lambda: len(ingest.events) == 310)
    assert ingest.posts <= posts + 10, "everything is sent again and again"
    assert caplog.text.count("its position cannot be saved (No space left") == 1
    journal.stop()
    assert await shipper.drain(10), "a dead worker's journal is removed without a saved position"


async def test_damage_in_a_segment_loses_only_the_damaged_records(tmp_path: Path) -> None:
    ingest = FakeIngest()
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, *range(100))
    kill(journal)
    first = sorted((tmp_path / "w1").glob("*.journal"))[0]
    data = bytearray(first.read_bytes())
    data[5000:5100] = b"\xff" * 100
    first.write_bytes(data)
    shipper = await ship_all(tmp_path, ingest)
    assert 97 <= len(ingest.events) <= 100
    assert shipper.damaged == 1


async def test_two_supervisors_do_not_recover_one_journal_twice(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "w1", SMALL)
    write_calls(journal, 1)
    kill(journal)
    first = JournalReader(tmp_path / "w1")
    second = JournalReader(tmp_path / "w1")
    assert first.check_dead()
    assert not second.check_dead()
    first.release()
    assert second.check_dead()
    second.release()


@pytest.fixture(scope="module")
def journal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of several segments, of a worker that was killed with calls open."""
    directory = tmp_path_factory.mktemp("written")

    async def write() -> None:
        journal = JournalWriter(directory, "w1", SMALL)
        for number in range(60):
            open_call(journal, number)
            if number % 2:
                begin_answer(journal, number)
            if number % 3:
                end_call(journal, number)
        kill(journal)

    asyncio.run(write())
    return directory / "w1"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
async def test_killed_at_any_byte_each_call_is_billed_once(
    journal_folder: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    """The directory contains any prefix of the written bytes."""
    directory = tmp_path_factory.mktemp("cut")
    shutil.copytree(journal_folder, directory / "w1")
    cut_at(directory / "w1", share)
    opened, answered, closed = truth(directory / "w1")
    ingest = FakeIngest()
    counters = FakeCounters()
    await ship_all(directory, ingest, counters)
    assert ingest.events.keys() == opened
    for name, event in ingest.events.items():
        if name in closed:
            assert event["tokens"] == [11, 7, 3]
        else:
            assert event["tokens"] == ([90, 0, 0] if name in answered else [0, 0, 0])
    assert len(counters.applied) == len(opened)


def cut_at(directory: Path, share: float) -> None:
    paths = sorted(directory.glob("*.journal"))
    used_bytes = [len(path.read_bytes().rstrip(b"\0")) for path in paths]
    budget = int(sum(used_bytes) * share)
    for path, size in zip(paths, used_bytes, strict=True):
        prefix_bytes = min(budget, size)
        budget -= prefix_bytes
        data = path.read_bytes()
        path.write_bytes(data[:prefix_bytes] + bytes(len(data) - prefix_bytes))


def truth(directory: Path) -> tuple[set[str], set[str], set[str]]:
    """The event keys of the open, progress and close records."""
    keys: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for path in sorted(directory.glob("*.journal")):
        for kind, payload, _ in frames(path.read_bytes()):
            if kind is not Kind.END:
                keys[kind].add(payload[payload.index(b"01JD") :][:26].decode())
    return keys[Kind.OPEN], keys[Kind.PROGRESS], keys[Kind.CLOSE]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.integers(1, 12), min_size=1, max_size=6))
async def test_shipper_that_dies_anywhere_loses_and_duplicates_no_event(
    journal_folder: Path, tmp_path_factory: pytest.TempPathFactory, crashes: list[int]
) -> None:
    """The shipper dies in the middle of its n-th step (a post or a replay); the next shipper continues."""
    directory = tmp_path_factory.mktemp("crash")
    shutil.copytree(journal_folder, directory / "w1")
    ingest = FakeIngest()
    counters = FakeCounters()
    for acts in crashes:
        fuse = Fuse(acts)
        shipper = Shipper(directory, DyingIngest(ingest, fuse), DyingCounters(counters, fuse), EAGER)
        shipper.start(tuple, silent)
        await eventually(lambda: fuse.blown or not (directory / "w1").exists())  # noqa: B023 (used within the iteration)
        await shipper.drain(0)
    await ship_all(directory, ingest, counters)
    assert len(ingest.events) == 60
    assert len(counters.applied) == 60


async def test_cancelled_disk_work_is_awaited() -> None:
    """A journal's file descriptor must not be closed while the thread reads from it."""
    at_work = threading.Event()
    go_on = threading.Event()
    results: list[bool] = []

    def work() -> None:
        at_work.set()
        go_on.wait(10)
        results.append(True)

    working = asyncio.create_task(in_thread(work))
    await eventually(at_work.is_set)
    working.cancel()
    await asyncio.sleep(0)
    assert not working.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert results


class Fuse:
    def __init__(self, acts: int) -> None:
        self.acts = acts
        self.blown = False

    async def burn(self) -> None:
        self.acts -= 1
        if self.acts <= 0:
            self.blown = True
            await asyncio.Event().wait()  # until the shipper is killed


class DyingIngest:
    def __init__(self, ingest: FakeIngest, fuse: Fuse) -> None:
        self.ingest = ingest
        self.fuse = fuse

    async def post(self, body: bytes) -> None:
        await self.ingest.post(body)
        await self.fuse.burn()


class DyingCounters:
    def __init__(self, counters: FakeCounters, fuse: Fuse) -> None:
        self.counters = counters
        self.fuse = fuse

    async def replay(self, incarnation: str, settlements: list[Settlement]) -> None:
        await self.counters.replay(incarnation, settlements)
        await self.fuse.burn()
