"""The journal on a real disk: what each method writes before it returns, and what a full disk and backlog do."""

import errno
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policy.billing import MAX_COUNT, MAX_TIER_CHARS, NO_DETAILS, REPORTED, Details, Tokens
from proxy.accounting.journal_records import Kind, frames
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.dialects.usage.details import MAX_DETAIL
from proxy.edges.journal.writer import (
    END_ROOM_BYTES,
    IncarnationUsedError,
    JournalOptions,
    JournalWriter,
    RecordTooLargeError,
)
from proxy.errors import JournalUnavailableError
from tests.fakes.journal import ClosedCall, progress_of
from tests.proxy.edges.journal.journals import (
    OPENED_AT_MS,
    SMALL,
    begin_answer,
    end_call,
    finish,
    key,
    open_call,
    start,
    write_calls,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    writer = JournalWriter(tmp_path, "w1", SMALL)
    yield writer
    writer.stop()


def segments(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((directory / "w1").glob("*.journal"))]


def kinds(data: bytes) -> list[Kind]:
    return [kind for kind, _, _ in frames(data)]


def raise_disk_full(*_arguments: Any, **_options: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def open_until_refused(journal: JournalWriter, why: str) -> list[int]:
    """Open calls of many sizes. Return the numbers of those that were accepted."""
    for number in range(10_000):
        try:
            open_call(journal, number, metadata={"m": "x" * (number * 37 % 700)})
        except (JournalUnavailableError, OSError) as refusal:
            reason = str(refusal)
            break
    assert re.search(why, reason)
    return list(range(number))


def test_each_record_is_in_the_file_when_the_method_returns(tmp_path: Path, journal: JournalWriter) -> None:
    start(journal, 1)
    assert kinds(segments(tmp_path)[0]) == [Kind.OPEN]
    begin_answer(journal, 1)
    assert kinds(segments(tmp_path)[0]) == [Kind.OPEN, Kind.PROGRESS]
    assert journal.pending == 1
    finish(journal, 1)
    assert kinds(segments(tmp_path)[0]) == [Kind.OPEN, Kind.PROGRESS, Kind.CLOSE]
    assert journal.pending == 0


def test_records_are_synced_off_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    threads = []

    def fdatasync(fd: int) -> None:
        threads.append(threading.current_thread())
        synced.set()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    journal.start()
    start(journal, 1)
    assert synced.wait(5)
    assert threading.main_thread() not in threads
    journal.stop()


def test_segments_are_bounded_and_follow_each_other(tmp_path: Path, journal: JournalWriter) -> None:
    write_calls(journal, *range(200))
    contents = segments(tmp_path)
    assert len(contents) > 3
    assert {len(data) for data in contents} == {SMALL.segment_bytes}
    read = [list(frames(data)) for data in contents]
    assert all(records[-1][0] is Kind.END for records in read[:-1] if records[0][0] is not Kind.END)
    closes = [kind for records in read for kind, _, _ in records if kind is Kind.CLOSE]
    assert len(closes) == 200


async def test_full_disk_refuses_new_calls_and_loses_no_close(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalWriter, "_new_segment", raise_disk_full)
    opened = open_until_refused(journal, "No space left")
    assert len(opened) > 5
    for number in opened:
        begin_answer(journal, number)
        end_call(journal, number)
    assert kinds(segments(tmp_path)[0]).count(Kind.CLOSE) == len(opened)
    monkeypatch.undo()
    journal._make_spare()  # the thread calls this every second
    write_calls(journal, *range(10_000, 10_050))
    assert journal.troubles == ()


async def test_segment_without_a_descriptor_sheds_calls_and_makes_no_machine_unready(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_no_descriptor(*_arguments: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(JournalWriter, "_new_segment", raise_no_descriptor)
    opened = open_until_refused(journal, "Too many open files")
    assert journal.troubles == ()
    assert not caplog.records, "whoever answers the calls logs it"
    for number in opened:
        end_call(journal, number)
    monkeypatch.undo()
    journal._make_spare()  # the thread calls this every second
    write_calls(journal, *range(10_000, 10_050))


async def test_ends_of_open_calls_fit_with_and_without_a_spare_segment(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open calls until the journal refuses, with nothing left to allocate; then end all of them."""
    journal._make_spare()
    monkeypatch.setattr(JournalWriter, "_new_segment", raise_disk_full)
    opened = open_until_refused(journal, "No space left|more calls are open")
    assert len(opened) > 25  # the spare segment was used
    for number in opened:
        begin_answer(journal, number)
        end_call(journal, number)
    assert sum(kinds(data).count(Kind.CLOSE) for data in segments(tmp_path)) == len(opened)


async def test_progress_never_uses_the_room_reserved_for_closes(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is skipped instead, so that all calls can end, with a full disk and with a spare segment."""
    journal._make_spare()
    monkeypatch.setattr(JournalWriter, "_new_segment", raise_disk_full)
    for number in range(20):
        open_call(journal, number)
        begin_answer(journal, number)
    for count in range(2000):
        journal.progress([progress_of(key(count % 20), Tokens(input=90, output=count), OPENED_AT_MS)])
    for number in range(20):
        end_call(journal, number)
    record_kinds = [kind for data in segments(tmp_path) for kind in kinds(data)]
    assert record_kinds.count(Kind.CLOSE) == 20
    assert 20 < record_kinds.count(Kind.PROGRESS) < 2000


def test_largest_close_fits_the_room_reserved_for_it() -> None:
    tokens = Tokens(input=MAX_COUNT, output=MAX_COUNT, cached_input=MAX_COUNT)
    details = Details._make((*(2 * MAX_DETAIL for _ in NO_DETAILS.figures), "t" * MAX_TIER_CHARS))
    end_ms = 10**13 - 1
    close = ClosedCall(
        event_key="0" * 26,
        status=599,
        tokens=tokens,
        ended_at_ms=end_ms,
        numbers=(MAX_COUNT,) * 5,
        details=details,
        source=REPORTED,
        is_count=True,
    ).record
    assert len(close) + len(progress_of("0" * 26, tokens, end_ms, details)) <= END_ROOM_BYTES


def test_a_segment_has_room_for_the_ends_of_all_calls_that_a_worker_takes() -> None:
    assert CapacityLimits().max_in_flight * END_ROOM_BYTES < JournalOptions().segment_bytes


def test_full_backlog_refuses_calls_until_it_is_shipped(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "w1", JournalOptions(segment_bytes=16 * 1024, max_backlog_bytes=40 * 1024))
    write_calls(journal, *range(100))
    start(journal, 200)
    journal._measure_backlog()
    with pytest.raises(JournalUnavailableError, match="backlog"):
        start(journal, 201)
    finish(journal, 200)
    for path in sorted((tmp_path / "w1").glob("*.journal"))[:-1]:
        path.unlink()
    journal._measure_backlog()
    write_calls(journal, 201)
    journal.stop()


def test_failed_sync_refuses_calls_until_a_sync_succeeds(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    journal._sync()
    with pytest.raises(JournalUnavailableError, match="Input/output"):
        start(journal, 1)
    monkeypatch.undo()
    journal._sync()
    write_calls(journal, 1)


def test_failed_write_refuses_calls_and_is_logged_once_per_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = JournalWriter(tmp_path, "w1", replace(SMALL, log_interval_s=60))
    write_calls(journal, 1)
    monkeypatch.setattr(os, "pwrite", raise_disk_full)
    for number in range(500):
        with pytest.raises(JournalUnavailableError, match="No space left"):
            start(journal, number + 10)
    assert len(caplog.records) == 1
    assert journal.pending == 0
    monkeypatch.undo()
    with pytest.raises(JournalUnavailableError, match="No space left"):
        start(journal, 600)
    journal._retry_write_at = 0.0  # the interval is over
    write_calls(journal, 601)
    assert journal.troubles == ()
    assert kinds(segments(tmp_path)[0]) == [Kind.OPEN, Kind.PROGRESS, Kind.CLOSE] * 2
    journal.stop()


def test_partly_written_record_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalWriter(tmp_path, "w1", replace(SMALL, log_interval_s=0))
    write_calls(journal, 1)
    real = os.pwrite
    write_sizes: list[int] = []

    def half(fd: int, data: bytes, offset: int) -> int:
        if write_sizes:
            raise_disk_full()
        write_sizes.append(real(fd, data[:20], offset))
        return 20

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(JournalUnavailableError):
        start(journal, 2)
    monkeypatch.undo()
    write_calls(journal, 3)
    assert kinds(segments(tmp_path)[0]) == [Kind.OPEN, Kind.PROGRESS, Kind.CLOSE] * 2
    journal.stop()


def test_alternating_failure_and_recovery_is_logged_once_per_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = JournalWriter(tmp_path, "w1", replace(SMALL, log_interval_s=60))
    write_calls(journal, 1)
    for _ in range(200):
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", raise_disk_full)
            journal._sync()
        with pytest.raises(JournalUnavailableError, match="No space left"):
            start(journal, 2)
        journal._sync()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    journal.stop()


def test_too_large_record_is_refused(tmp_path: Path, journal: JournalWriter) -> None:
    with pytest.raises(RecordTooLargeError):
        start(journal, 1, metadata={"m": "x" * 300_000})
    assert kinds(segments(tmp_path)[0]) == []


def test_used_incarnation_is_refused(tmp_path: Path, journal: JournalWriter) -> None:
    with pytest.raises(IncarnationUsedError, match="w1"):
        JournalWriter(tmp_path, "w1", SMALL)


@pytest.mark.parametrize("at", ["mkdir", "lock", "allocate"])
def test_disk_that_is_full_at_start_refuses_calls_until_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    real = os.open

    def no_lock(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        return int(raise_disk_full() if str(path).endswith("lock") else real(path, flags, mode, **options))

    if at == "mkdir":
        monkeypatch.setattr(Path, "mkdir", raise_disk_full)
    elif at == "lock":
        monkeypatch.setattr(os, "open", no_lock)
    else:
        monkeypatch.setattr(os, "posix_fallocate", raise_disk_full)
    journal = JournalWriter(tmp_path, "w1", SMALL)
    with pytest.raises(JournalUnavailableError, match="No space left"):
        start(journal, 1)
    assert journal.troubles
    journal._sync()
    monkeypatch.undo()
    journal._make_spare()
    write_calls(journal, *range(50))
    journal.stop()
    assert sum(kinds(data).count(Kind.CLOSE) for data in segments(tmp_path)) == 50
    assert [path.name for path in tmp_path.iterdir()] == ["w1"]


def test_journal_without_a_segment_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalWriter, "_new_segment", raise_disk_full)
    JournalWriter(tmp_path, "w1", SMALL).stop()


def test_short_write_is_completed(tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:7], offset))
    write_calls(journal, 1)
    assert kinds(segments(tmp_path)[0]) == [Kind.OPEN, Kind.PROGRESS, Kind.CLOSE]
