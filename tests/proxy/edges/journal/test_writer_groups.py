"""The records of one tick of the event loop: one write, and what becomes of each call when the disk refuses a part."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policy.billing import Tokens
from proxy.accounting.journal_records import Kind, frames
from proxy.accounting.recovery import Ledger
from proxy.edges.journal import writer
from proxy.edges.journal.supervisor.journal_reader import JournalReader
from proxy.edges.journal.writer import JournalWriter
from proxy.errors import JournalUnavailableError
from tests.fakes.journal import progress_of, written
from tests.proxy.edges.journal.journals import BEGUN, SMALL, begin_answer, call, end, finish, key, start

FIRST = 0
OTHERS = range(1, 9)


@pytest.fixture
def journal(tmp_path: Path) -> JournalWriter:
    """A journal with one open call, so that others have somebody to share a write with."""
    journal = JournalWriter(tmp_path, "w1", SMALL)
    assert start(journal, FIRST).is_written
    return journal


def kinds(directory: Path) -> list[Kind]:
    """The records in the file, without the open of the first call."""
    paths = sorted((directory / "w1").glob("*.journal"))
    read: list[Kind] = []
    for path in paths:
        read += [kind for kind, _, _ in frames(path.read_bytes())]
    read.remove(Kind.OPEN)
    return [kind for kind in read if kind != Kind.END]


def failing_after(count: int) -> Callable[..., int]:
    """A disk that takes `count` more bytes."""
    real = os.pwrite
    room = [count]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if not room[0]:
            raise OSError(errno.EIO, "Input/output error")
        length = real(fd, data[: room[0]], offset)
        room[0] -= length
        return length

    return pwrite


def open_all(journal: JournalWriter, *numbers: int) -> list[asyncio.Future[None]]:
    return [written(start(journal, number)) for number in numbers]


def close_all(journal: JournalWriter, *numbers: int) -> list[asyncio.Future[None]]:
    records = [finish(journal, number) for number in numbers]
    return [written(record) for record in records if record is not None]


async def outcomes(futures: list[asyncio.Future[None]]) -> list[type[BaseException] | None]:
    ended = await asyncio.gather(*futures, return_exceptions=True)
    return [None if one is None else type(one) for one in ended]


async def test_opens_and_closes_of_a_tick_are_one_write(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    real = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        writes.append(len(data))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    futures = open_all(journal, *OTHERS)
    assert len(futures) == len(OTHERS)
    assert not writes
    assert not any(future.done() for future in futures)
    await asyncio.gather(*futures)
    assert kinds(tmp_path) == [Kind.OPEN] * 8
    ends = close_all(journal, *OTHERS)
    assert len(writes) == 1
    await asyncio.gather(*ends)
    assert kinds(tmp_path) == [Kind.OPEN] * 8 + [Kind.CLOSE] * 8
    assert writes == [
        sum(len(call(number).record) for number in OTHERS),
        sum(len(end(number).record) for number in OTHERS),
    ]


async def test_lone_call_is_written_at_once(tmp_path: Path, journal: JournalWriter) -> None:
    assert finish(journal, FIRST) is None
    assert kinds(tmp_path) == [Kind.CLOSE]
    assert journal.pending == 0


async def test_records_that_must_not_wait_pass_those_that_do(tmp_path: Path, journal: JournalWriter) -> None:
    futures = open_all(journal, 1)
    begin_answer(journal, FIRST)
    assert kinds(tmp_path) == [Kind.PROGRESS]
    await asyncio.gather(*futures)
    assert kinds(tmp_path) == [Kind.PROGRESS, Kind.OPEN]


async def test_cancelled_caller_disturbs_no_other_and_loses_no_close(tmp_path: Path, journal: JournalWriter) -> None:
    leaver, *others = open_all(journal, *OTHERS)
    leaver.cancel()
    close_all(journal, OTHERS[0])
    assert await outcomes(others) == [None] * 7
    assert kinds(tmp_path) == [Kind.OPEN] * 8 + [Kind.CLOSE]
    assert journal.pending == 8


@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.99])
async def test_disk_that_takes_part_of_a_group_refuses_the_other_opens(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    """Bytes that the disk took stay where they are: the supervisor may have read them."""
    sizes = [len(call(number).record) for number in OTHERS]
    written_bytes = int(sum(sizes) * part)
    whole = next(count for count in range(8, -1, -1) if sum(sizes[:count]) <= written_bytes)
    futures = open_all(journal, *OTHERS)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", failing_after(written_bytes))
        assert await outcomes(futures) == [None] * whole + [JournalUnavailableError] * (8 - whole)
    assert journal.pending == 1 + whole
    assert kinds(tmp_path) == [Kind.OPEN] * whole
    journal._retry_write_at = 0.0
    await asyncio.gather(*close_all(journal, *OTHERS))
    assert kinds(tmp_path) == [Kind.OPEN] * whole + [Kind.CLOSE] * whole
    await asyncio.gather(*open_all(journal, 20))
    assert journal.troubles == ()
    assert kinds(tmp_path)[-1] is Kind.OPEN
    assert journal.pending == 2


async def test_call_whose_open_was_refused_has_no_close(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call may end before its open was refused, or after that."""
    futures = open_all(journal, 1, 2)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", failing_after(0))
        assert finish(journal, 1) is None
        assert await outcomes(futures) == [JournalUnavailableError] * 2
    assert finish(journal, 2) is None
    assert kinds(tmp_path) == []
    assert journal.pending == 1


async def test_call_that_ends_before_its_open_is_written_has_both(tmp_path: Path, journal: JournalWriter) -> None:
    futures = open_all(journal, 1)
    futures += close_all(journal, 1)
    assert kinds(tmp_path) == [Kind.OPEN]
    assert await outcomes(futures) == [None, None]
    assert kinds(tmp_path) == [Kind.OPEN, Kind.CLOSE]
    assert journal.pending == 1


async def test_close_that_fails_with_its_group_is_written_alone(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*open_all(journal, 1, 2))
    real = os.pwrite
    calls = [0]

    def once(fd: int, data: bytes, offset: int) -> Any:
        calls[0] += 1
        return real(fd, data, offset) if calls[0] > 1 else failing_after(0)(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", once)
    futures = [*close_all(journal, 1), *open_all(journal, 3), *close_all(journal, 2)]
    assert await outcomes(futures) == [None, JournalUnavailableError, None]
    assert kinds(tmp_path) == [Kind.OPEN, Kind.OPEN, Kind.CLOSE, Kind.CLOSE]


async def test_close_that_the_disk_refuses_is_told_to_its_call(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.gather(*open_all(journal, 1))
    monkeypatch.setattr(os, "pwrite", failing_after(0))
    assert await outcomes(close_all(journal, 1)) == [OSError]
    assert "cannot be written: Input/output error" in caplog.text


async def test_place_is_the_end_of_what_is_written(tmp_path: Path, journal: JournalWriter) -> None:
    reader = JournalReader(tmp_path / "w1")
    for first in range(1, 200, 20):
        numbers = range(first, first + 20)
        await asyncio.gather(*open_all(journal, *numbers))
        close_all(journal, *numbers)
        place_before = journal.place
        journal.write_now()
        assert place_before is not None
        assert journal.place is not None
        assert journal.place > place_before, "closes that were in the group"
        reader.read(1000)
        assert reader.place == journal.place
    assert reader.place[0] > 1
    reader.release()


async def test_journal_that_could_allocate_nothing_begins_with_its_first_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(writer, "new_segment", failing_after(0))
        journal = JournalWriter(tmp_path, "w1", SMALL)
    assert journal.place == (0, 0)
    journal._make_spare()
    await asyncio.gather(*open_all(journal, 1))
    assert journal.place == (1, len(call(1).record))


async def test_journal_that_lost_the_end_of_a_call_has_no_place(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*open_all(journal, 1))
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", failing_after(0))
        futures = open_all(journal, 2)
        journal.progress([progress_of(key(1), BEGUN, 1)])
        assert await outcomes(futures) == [JournalUnavailableError]
    assert journal.place is not None, "the ends may still come"
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", failing_after(0))
        close_all(journal, 1)
        assert journal.place is not None
        journal.write_now()
        assert journal.place is None


async def test_end_of_a_lone_call_that_the_disk_refuses_is_lost_too(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", failing_after(0))
    with pytest.raises(OSError, match="Input/output error"):
        finish(journal, FIRST)
    assert journal.place is None


async def test_groups_never_cross_the_end_of_a_segment(tmp_path: Path, journal: JournalWriter) -> None:
    for first in range(1, 400, 20):
        numbers = range(first, first + 20)
        await asyncio.gather(*open_all(journal, *numbers))
        await asyncio.gather(*close_all(journal, *numbers))
    ledger = Ledger()
    ended = list[tuple[bytes, bytes]]()
    paths = sorted((tmp_path / "w1").glob("*.journal"))
    assert len(paths) > 5
    for path in paths:
        ledger.feed(path.read_bytes(), ended, 1000)
    assert len(ended) == 400
    assert ledger.unmatched == 0
    assert list(ledger.open) == [key(FIRST).encode()]


async def test_call_is_refused_if_its_new_segment_cannot_be_begun(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group before it is refused, too. Nothing is lost when the disk is back."""
    number = 1
    while journal._room >= 4 * len(call(number).record):  # enough for one more call
        await asyncio.gather(*open_all(journal, number), *close_all(journal, number))
        number += 1
    futures = open_all(journal, number)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", failing_after(0))
        with pytest.raises(JournalUnavailableError, match="Input/output"):
            start(journal, number + 1, metadata={"m": "x" * journal._room})
        assert await outcomes(futures) == [JournalUnavailableError]
    assert journal.pending == 1
    journal._retry_write_at = 0.0
    again = range(number + 10, number + 20)
    await asyncio.gather(*open_all(journal, *again))
    await asyncio.gather(*close_all(journal, number, *again))
    assert kinds(tmp_path) == [Kind.OPEN, Kind.CLOSE] * (number - 1) + [Kind.OPEN] * 10 + [Kind.CLOSE] * 10
    ledger = Ledger()
    ended = list[tuple[bytes, bytes]]()
    for path in sorted((tmp_path / "w1").glob("*.journal")):
        ledger.feed(path.read_bytes(), ended, 1000)
    assert len(ended) == number - 1 + 10
    assert list(ledger.open) == [key(FIRST).encode()]
    assert journal.pending == 1


async def test_stop_writes_what_waits(tmp_path: Path, journal: JournalWriter) -> None:
    futures = open_all(journal, 1)
    journal.stop()
    assert kinds(tmp_path) == [Kind.OPEN]
    assert await outcomes(futures) == [None]


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
async def test_disk_that_takes_part_of_the_progress_of_many_keeps_whole_records(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    """The records share a write. Bytes that the disk took stay: the supervisor may have read them."""
    await asyncio.gather(*open_all(journal, *OTHERS))
    records = [progress_of(key(number), Tokens(input=1, output=number), 1) for number in OTHERS]
    written_bytes = int(len(records[0]) * len(records) * part)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", failing_after(written_bytes))
        journal.progress(records)
        journal.write_now()
    whole = written_bytes // len(records[0])
    assert kinds(tmp_path) == [Kind.OPEN] * 8 + [Kind.PROGRESS] * whole
    assert journal.troubles
    await asyncio.gather(*close_all(journal, *OTHERS))
    assert kinds(tmp_path) == [Kind.OPEN] * 8 + [Kind.PROGRESS] * whole + [Kind.CLOSE] * 8
    assert journal.troubles == ()
