"""From journals to the books: each call once, whoever dies when."""

import asyncio
import errno
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.billing import Tokens
from policy.limits.settlement import Settlement
from proxy.accounting.journal_records import Kind, frames
from proxy.accounting.recovery import Halves
from proxy.edges.journal.supervisor import journal_reader as journal_reader
from proxy.edges.journal.supervisor.delivery import in_thread
from proxy.edges.journal.supervisor.journal_reader import JournalReader
from proxy.edges.journal.supervisor.shipped_events import DIRECTORY_NAME
from proxy.edges.journal.supervisor.shipper import RESERVE_NAME, Shipper, ShipperOptions
from proxy.edges.journal.writer import JournalWriter
from tests.proxy.edges.journal.journals import (
    EAGER,
    OPENED_AT_MS,
    SMALL,
    Books,
    Marks,
    all_settled,
    begin,
    call,
    end,
    key,
    kill,
    reservation,
    ship_all,
    silent,
    whole,
)
from tests.waiting import eventually


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name not in (RESERVE_NAME, DIRECTORY_NAME))


async def test_living_workers_events_are_shipped_as_calls_end(tmp_path: Path) -> None:
    books, marks = Books(), Marks()
    shipper = Shipper(tmp_path, books, marks, EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(300))
    journal.open(call(300))
    await eventually(lambda: len(books.events) == 300)
    assert books.events[key(7)]["tokens"] == [11, 7, 3]
    await eventually(lambda: shipper.pending == 0)
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 3)
    journal.close(end(300))
    await eventually(lambda: key(300) in books.events)
    journal.stop()
    assert await shipper.drain(10)
    assert names(tmp_path) == []


async def test_single_events_are_batched_and_a_backlog_is_sent_at_once(tmp_path: Path) -> None:
    """A batch costs control as much as a hundred events, so there are no more of them than intervals."""
    books, interval_s, time_s = Books(), 0.1, asyncio.get_running_loop().time
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(500))
    piled_up = Shipper(tmp_path, books, Marks(), ShipperOptions(batch_events=10, poll_interval_s=1000))
    piled_up.start(lambda: {"w1"}, all_settled)
    await eventually(lambda: len(books.events) == 500)
    await piled_up.drain(0)

    books.posts = 0
    began_s = time_s()
    shipper = Shipper(tmp_path, books, Marks(), ShipperOptions(poll_interval_s=interval_s))
    shipper.start(lambda: {"w1"}, all_settled)
    for number in range(500, 600):
        whole(journal, number)
        await asyncio.sleep(0.004)
    await eventually(lambda: len(books.events) == 600)
    assert books.posts <= (time_s() - began_s) / interval_s + 2
    journal.stop()
    assert await shipper.drain(10)


async def test_dead_workers_calls_are_billed_settled_and_removed(tmp_path: Path) -> None:
    books, marks = Books(), Marks()
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(120))
    journal.open(call(500))
    journal.open(call(501))
    begin(journal, 501)
    journal.progress(key(501), Tokens(input=90, output=33), OPENED_AT_MS + 9000)
    kill(journal)
    await ship_all(tmp_path, books, marks)
    assert len(books.events) == 122
    assert books.events[key(500)]["tokens"] == [0, 0, 0]
    assert books.events[key(501)]["tokens"] == [90, 33, 0]
    assert books.events[key(501)]["ended_at_ms"] == OPENED_AT_MS + 9000
    assert len(marks.applied) == 122
    assert names(tmp_path) == []


async def test_events_wait_and_are_counted_while_control_is_unreachable(tmp_path: Path) -> None:
    books = Books()
    books.away = True
    journal = JournalWriter(tmp_path, "w1", SMALL)
    shipper = Shipper(tmp_path, books, Marks(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    whole(journal, *range(250))
    await eventually(lambda: shipper.pending == 250)
    assert books.events == {}
    books.away = False
    await eventually(lambda: len(books.events) == 250 and shipper.pending == 0)
    journal.stop()
    assert await shipper.drain(10)


async def test_pending_is_zero_only_after_a_round_found_no_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while what was written during a post is being read: it is in no batch yet, and no longer unread."""
    told: list[int] = []
    books, read = Books(), JournalReader.read

    def slow_read(reader: JournalReader, limit: int) -> list[Halves]:
        ended = read(reader, limit)
        told.append(shipper.pending)
        return ended

    async def post(body: bytes) -> None:
        await Books.post(books, body)
        if len(books.events) == 10:
            whole(journal, *range(10, 20))

    monkeypatch.setattr(JournalReader, "read", slow_read)
    monkeypatch.setattr(books, "post", post)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(10))
    shipper = Shipper(tmp_path, books, Marks(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    await eventually(lambda: len(books.events) == 20)
    await eventually(lambda: shipper.pending == 0)
    assert told[:3] == [0, 10, 10]
    journal.stop()
    assert await shipper.drain(10)


async def test_dead_workers_reservations_are_settled_while_control_is_unreachable(tmp_path: Path) -> None:
    books, marks = Books(), Marks()
    books.away = True
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, 1)
    journal.open(call(2))
    kill(journal)
    shipper = Shipper(tmp_path, books, marks, EAGER)
    shipper.start(tuple, silent)
    await eventually(lambda: len(marks.applied) == 2)
    assert not await shipper.drain(0.05)
    books.away = False
    await ship_all(tmp_path, books, marks)
    assert len(books.events) == 2
    assert len(marks.applied) == 2


@pytest.mark.parametrize("raises", [False, True])
async def test_without_redis_a_dead_workers_events_are_shipped_and_its_settlements_wait(
    tmp_path: Path, raises: bool
) -> None:
    books, marks = Books(), Marks()
    marks.away, marks.raises = True, raises
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(200))
    kill(journal)
    shipper = Shipper(tmp_path, books, marks, EAGER)
    shipper.start(tuple, silent)
    await eventually(lambda: len(books.events) == 200)
    assert names(tmp_path) == ["w1"]
    assert not await shipper.drain(0.01)
    marks.away = False
    await ship_all(tmp_path, books, marks)
    assert len(marks.applied) == 200
    assert names(tmp_path) == []


class SettlingWorker:
    """A worker that settles for itself, as far as it comes; what it `says` may be behind that."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.says = 0

    def settle(self, numbers: Iterable[int]) -> None:
        self.marks.apply(
            "w1",
            [Settlement(reservation=reservation(number), number=number + 1, actual_tokens=18) for number in numbers],
        )

    async def settled(self, incarnation: str) -> int:
        assert incarnation == "w1"
        return self.says


async def test_living_workers_journal_stays_until_it_reports_its_settlements(tmp_path: Path) -> None:
    books, marks = Books(), Marks()
    worker, journal = SettlingWorker(marks), JournalWriter(tmp_path, "w1", SMALL)
    shipper = Shipper(tmp_path, books, marks, EAGER)
    shipper.start(lambda: {"w1"}, worker.settled)
    whole(journal, *range(200))
    await eventually(lambda: len(books.events) == 200)
    posts, segments = books.posts, len(list((tmp_path / "w1").glob("*.journal")))
    assert segments > 3
    for number in range(200, 203):
        whole(journal, number)
        await eventually(lambda: len(books.events) == number + 1)  # noqa: B023 (used within the iteration)
    assert len(list((tmp_path / "w1").glob("*.journal"))) >= segments, "what may be unsettled is gone"
    assert books.posts > posts
    worker.settle(range(203))
    worker.says = 203
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 3)
    assert len(marks.applied) == 203, "the worker settles for itself"
    journal.stop()
    assert await shipper.drain(10)
    assert len(marks.applied) == 203


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_each_settlement_is_made_once_wherever_a_worker_dies(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """It has settled some of what its journal holds, and said so of some of these."""
    directory = tmp_path_factory.mktemp("settled")
    books, marks = Books(), Marks()
    worker, journal = SettlingWorker(marks), JournalWriter(directory, "w1", SMALL)
    settled = data.draw(st.integers(0, 100))
    worker.says = data.draw(st.integers(0, settled))
    worker.settle(range(settled))
    shipper = Shipper(directory, books, marks, EAGER)
    shipper.start(lambda: {"w1"}, worker.settled)
    whole(journal, *range(100))
    journal.open(call(100))
    await eventually(lambda: len(books.events) == 100)
    for _ in range(data.draw(st.integers(0, 3))):
        await asyncio.sleep(0.01)
    await shipper.drain(0)
    kill(journal)
    await ship_all(directory, books, marks)
    assert len(books.events) == 101
    assert [one.number for one in marks.applied[:100]] == list(range(1, 101))
    assert len(marks.applied) == 101


async def test_lost_answer_from_control_duplicates_no_event(tmp_path: Path) -> None:
    books = Books()
    books.lose_acks = 3
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(50))
    kill(journal)
    await ship_all(tmp_path, books)
    assert len(books.events) == 50
    assert books.posts > 3


async def test_rejected_event_is_moved_to_a_file_and_blocks_no_other(tmp_path: Path) -> None:
    books = Books()
    books.poison = key(13)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(40))
    kill(journal)
    shipper = await ship_all(tmp_path, books)
    assert len(books.events) == 39
    assert shipper.rejected == 1
    assert names(tmp_path) == ["rejected.jsonl"]
    assert key(13) in (tmp_path / "rejected.jsonl").read_text()


async def test_a_call_that_outlives_many_segments_is_billed_as_it_ended(tmp_path: Path) -> None:
    books, marks = Books(), Marks()
    journal = JournalWriter(tmp_path, "w1", SMALL)
    journal.open(call(9000))
    shipper = Shipper(tmp_path, books, marks, EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    whole(journal, *range(300))
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 3 and len(books.events) == 300)
    assert not await shipper.drain(0.01)  # the supervisor dies; its successor finds the call in the place
    journal.close(end(9000))
    kill(journal)
    await ship_all(tmp_path, books, marks)
    assert books.events[key(9000)]["status"] == 200
    assert len(books.events) == 301


class FullDisk:
    """Nothing can be written but what the reserve, or somebody, makes room for."""

    def __init__(self, reserve: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reserve = reserve
        self._real = journal_reader.replace_durably
        self.asked = 0
        monkeypatch.setattr(journal_reader, "replace_durably", self._replace)

    def _replace(self, path: Path, data: bytes) -> None:
        self.asked += 1
        if self._reserve is None or self._reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        self._real(path, data)


async def test_segments_are_deleted_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(tmp_path / RESERVE_NAME, monkeypatch)
    books = Books()
    shipper = Shipper(tmp_path, books, Marks(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    await eventually((tmp_path / RESERVE_NAME).exists)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(300))
    await eventually(lambda: len(list((tmp_path / "w1").glob("*.journal"))) <= 2)
    await eventually((tmp_path / RESERVE_NAME).exists)  # there is room again, and it must be held for the next time
    journal.stop()
    assert await shipper.drain(10)


async def test_position_that_cannot_be_saved_blocks_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk(None, monkeypatch)
    books = Books()
    shipper = Shipper(tmp_path, books, Marks(), EAGER)
    shipper.start(lambda: {"w1"}, all_settled)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(300))
    await eventually(lambda: len(books.events) == 300 and disk.asked > 2)
    posts = books.posts
    whole(journal, *range(300, 310))
    await eventually(lambda: len(books.events) == 310)
    assert books.posts <= posts + 10, "everything is sent again and again"
    assert caplog.text.count("its position cannot be saved (No space left") == 1
    journal.stop()
    assert await shipper.drain(10), "a dead worker's journal goes without a place"


async def test_damage_in_a_segment_loses_only_the_damaged_records(tmp_path: Path) -> None:
    books = Books()
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, *range(100))
    kill(journal)
    first = sorted((tmp_path / "w1").glob("*.journal"))[0]
    data = bytearray(first.read_bytes())
    data[5000:5100] = b"\xff" * 100
    first.write_bytes(data)
    shipper = await ship_all(tmp_path, books)
    assert 97 <= len(books.events) <= 100
    assert shipper.damaged == 1


async def test_two_supervisors_do_not_recover_one_journal_twice(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "w1", SMALL)
    whole(journal, 1)
    kill(journal)
    first, second = JournalReader(tmp_path / "w1"), JournalReader(tmp_path / "w1")
    assert first.check_dead()
    assert not second.check_dead()
    first.release()
    assert second.check_dead()
    second.release()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of three segments, and for each byte that was written, when: the bytes in the order of writing."""
    directory = tmp_path_factory.mktemp("written")
    journal = JournalWriter(directory, "w1", SMALL)
    for number in range(60):
        journal.open(call(number))
        if number % 2:
            begin(journal, number)
        if number % 3:
            journal.close(end(number))
    kill(journal)
    return directory / "w1"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
async def test_killed_at_any_byte_each_call_is_billed_once(
    written: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    """The directory as it is when the kernel had taken any prefix of what was written."""
    directory = tmp_path_factory.mktemp("cut")
    shutil.copytree(written, directory / "w1")
    cut_at(directory / "w1", share)
    opened, answered, closed = truth(directory / "w1")
    books, marks = Books(), Marks()
    await ship_all(directory, books, marks)
    assert books.events.keys() == opened
    for name, event in books.events.items():
        if name in closed:
            assert event["tokens"] == [11, 7, 3]
        else:
            assert event["tokens"] == ([90, 0, 0] if name in answered else [0, 0, 0])
    assert len(marks.applied) == len(opened)


def cut_at(directory: Path, share: float) -> None:
    paths = sorted(directory.glob("*.journal"))
    used = [len(path.read_bytes().rstrip(b"\0")) for path in paths]
    left = int(sum(used) * share)
    for path, size in zip(paths, used, strict=True):
        kept = min(left, size)
        left -= kept
        data = path.read_bytes()
        path.write_bytes(data[:kept] + bytes(len(data) - kept))


def truth(directory: Path) -> tuple[set[str], set[str], set[str]]:
    """By another reading than the product's: look for whole records by their text."""
    found: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for path in sorted(directory.glob("*.journal")):
        for kind, payload, _ in frames(path.read_bytes()):
            if kind is not Kind.END:
                found[kind].add(payload[payload.index(b"01JD") :][:26].decode())
    return found[Kind.OPEN], found[Kind.PROGRESS], found[Kind.CLOSE]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.integers(1, 12), min_size=1, max_size=6))
async def test_shipper_that_dies_anywhere_loses_and_duplicates_no_event(
    written: Path, tmp_path_factory: pytest.TempPathFactory, crashes: list[int]
) -> None:
    """It dies in the middle of its n-th act (a post, a replay, a place written, a removal); the next one goes on."""
    directory = tmp_path_factory.mktemp("crash")
    shutil.copytree(written, directory / "w1")
    books, marks = Books(), Marks()
    for acts in crashes:
        fuse = Fuse(acts)
        shipper = Shipper(directory, Dying(books, fuse), DyingMarks(marks, fuse), EAGER)
        shipper.start(tuple, silent)
        await eventually(lambda: fuse.blown or not (directory / "w1").exists())  # noqa: B023 (used within the iteration)
        await shipper.drain(0)
    await ship_all(directory, books, marks)
    assert len(books.events) == 60
    assert len(marks.applied) == 60


async def test_cancelled_disk_work_is_awaited() -> None:
    """Else a journal's descriptors are closed under the thread that reads it, and may by then be another's."""
    at_work, go_on = threading.Event(), threading.Event()
    done: list[bool] = []

    def work() -> None:
        at_work.set()
        go_on.wait(10)
        done.append(True)

    working = asyncio.create_task(in_thread(work))
    await eventually(at_work.is_set)
    working.cancel()
    await asyncio.sleep(0)
    assert not working.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert done


class Fuse:
    def __init__(self, acts: int) -> None:
        self.left = acts
        self.blown = False

    async def burn(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.blown = True
            await asyncio.Event().wait()  # until the shipper is killed


class Dying:
    def __init__(self, books: Books, fuse: Fuse) -> None:
        self.books, self.fuse = books, fuse

    async def post(self, body: bytes) -> None:
        await self.books.post(body)
        await self.fuse.burn()


class DyingMarks:
    def __init__(self, marks: Marks, fuse: Fuse) -> None:
        self.marks, self.fuse = marks, fuse

    async def replay(self, incarnation: str, settlements: list[Settlement]) -> None:
        await self.marks.replay(incarnation, settlements)
        await self.fuse.burn()
