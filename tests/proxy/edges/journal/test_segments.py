"""Segments with a file in memory: calls do not wait for the disk, and what was not copied outlives the worker."""

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.accounting.journal_records import Kind, frames
from proxy.edges.journal import disk_watch
from proxy.edges.journal.segments import memory_directory, remove_strays, restore_segments
from proxy.edges.journal.supervisor.journal_reader import JournalReader
from proxy.edges.journal.writer import JournalWriter
from proxy.errors import JournalUnavailableError
from tests.proxy.edges.journal.journals import SMALL, finish, key, start, write_calls
from tests.waiting import eventually

CALL = [Kind.OPEN, Kind.PROGRESS, Kind.CLOSE]


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    root = tmp_path / "memory"
    root.mkdir()
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Yield an event; as long as it is not set, the disk does not answer the journal's thread."""
    answers = threading.Event()
    answers.set()
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        answers.wait()
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    yield answers
    answers.set()


def kinds(folder: Path) -> list[Kind]:
    """The kinds of the records on disk, without the ends of segments."""
    segments = sorted(folder.glob("*.journal"))
    record_kinds = [kind for path in segments for kind, _, _ in frames(path.read_bytes())]
    return [kind for kind in record_kinds if kind is not Kind.END]


def write_until_refused(journal: JournalWriter) -> int:
    """Return how many more calls the journal takes."""
    for number in range(10_000):
        try:
            write_calls(journal, 2 + number)
        except JournalUnavailableError:
            return number
    raise AssertionError("the journal takes any number of calls")


def test_call_is_recorded_in_memory_and_copied_to_disk_by_the_thread(folder: Path, memory: Path) -> None:
    journal = JournalWriter(folder, "w1", replace(SMALL, memory_root=memory))
    write_calls(journal, 1)
    assert kinds(folder / "w1") == []
    assert kinds(memory_directory("w1", memory)) == CALL
    journal.start()
    journal.stop()
    assert kinds(folder / "w1") == CALL
    assert list(memory.iterdir()) == []


async def test_calls_go_on_in_the_next_segment_while_the_disk_stalls(
    folder: Path, memory: Path, disk: threading.Event
) -> None:
    journal = JournalWriter(folder, "w1", replace(SMALL, memory_root=memory, sync_interval_s=0.0))
    journal.start()
    await eventually(lambda: journal._spare is not None)
    disk.clear()
    write_calls(journal, 1)
    await eventually(lambda: journal._disk.is_slow)
    call_count = write_until_refused(journal)
    assert call_count > 20, "both segments were used"
    assert journal.troubles == ()
    disk.set()
    journal.stop()
    assert kinds(folder / "w1") == CALL * (1 + call_count)


async def test_disk_that_stalls_for_long_refuses_new_calls_until_it_answers(
    folder: Path, memory: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "STALLED_S", 0.2)
    journal = JournalWriter(folder, "w1", replace(SMALL, memory_root=memory))
    journal.start()
    disk.clear()
    start(journal, 1)
    await eventually(lambda: any("answered nothing" in text for text in journal.troubles))
    with pytest.raises(JournalUnavailableError, match="answered nothing"):
        start(journal, 2)
    finish(journal, 1)
    disk.set()
    await eventually(lambda: journal.troubles == ())
    write_calls(journal, 3)
    journal.stop()


def test_records_in_memory_of_a_dead_worker_are_read(folder: Path, memory: Path) -> None:
    incarnation = "w1"
    journal = JournalWriter(folder, incarnation, replace(SMALL, memory_root=memory))
    write_calls(journal, *range(60))  # over several segments, none of them on disk
    start(journal, 100)
    assert kinds(folder / incarnation) == []
    os.close(journal._lock_fd)  # as the kernel does when it dies
    reader = JournalReader(folder / incarnation)
    assert reader.check_dead()
    assert len(reader.read(1000)) == 60
    assert list(reader.ledger.open) == [key(100).encode()]
    assert not memory_directory(incarnation, memory).exists()
    reader.release()


def test_records_in_memory_of_a_living_worker_are_read_at_once(folder: Path, memory: Path) -> None:
    incarnation = "w1"
    journal = JournalWriter(folder, incarnation, replace(SMALL, memory_root=memory))
    reader = JournalReader(folder / incarnation)
    write_calls(journal, *range(40))
    assert not reader.check_dead()
    assert len(reader.read(1000)) == 40
    write_calls(journal, *range(40, 80))
    assert len(reader.read(1000)) == 40
    reader.release()
    journal.stop()
    assert not memory_directory(incarnation, memory).exists()


def test_records_that_a_stopping_worker_cannot_copy_stay_in_memory(
    folder: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(folder, "w1", replace(SMALL, memory_root=memory))
    write_calls(journal, 1)

    def broken(*_arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", broken)
        journal.stop()
    assert kinds(folder / "w1") == []
    restore_segments(folder / "w1")
    assert kinds(folder / "w1") == CALL
    assert list(memory.iterdir()) == []


def test_segment_is_on_disk_alone_where_memory_has_no_room(folder: Path, tmp_path: Path) -> None:
    journal = JournalWriter(folder, "w1", replace(SMALL, memory_root=tmp_path / "missing"))
    write_calls(journal, 1)
    assert kinds(folder / "w1") == CALL
    journal.stop()


def test_segment_in_memory_whose_events_are_committed_is_only_removed(folder: Path, memory: Path) -> None:
    journal = JournalWriter(folder, "w1", replace(SMALL, memory_root=memory))
    write_calls(journal, 1)
    (segment,) = (folder / "w1").glob("*.journal")
    segment.unlink()
    restore_segments(folder / "w1")
    assert list(memory.iterdir()) == []
    assert not segment.exists()


def test_directory_of_another_user_is_neither_written_nor_read(
    folder: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(folder, "w1", replace(SMALL, memory_root=memory))
    write_calls(journal, 1)
    memory_directory("w2", memory).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    restore_segments(folder / "w1")
    assert kinds(folder / "w1") == []
    write_calls(JournalWriter(folder, "w2", replace(SMALL, memory_root=memory)), 1)
    assert kinds(folder / "w2") == CALL
    assert list(memory_directory("w2", memory).iterdir()) == []


def test_memory_of_dead_workers_is_given_back_once_their_journals_are_gone(folder: Path, memory: Path) -> None:
    for incarnation in ("gone", "kept"):
        write_calls(JournalWriter(folder, incarnation, replace(SMALL, memory_root=memory)), 1)
    shutil.rmtree(folder / "gone")
    remove_strays(3600, memory)
    assert len(list(memory.iterdir())) == 2, "its disk may not be mounted at the moment"
    remove_strays(-1, memory)
    assert list(memory.iterdir()) == [memory_directory("kept", memory)]
