"""One clock looks at all streams once a second; the records of one look are one write."""

import asyncio
from collections.abc import Sequence
from time import perf_counter

import pytest

from proxy import progress_clock
from proxy.progress_clock import LOOKS, ProgressClock

INTERVAL_S = 0.1


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_clock, "PROGRESS_INTERVAL_S", INTERVAL_S)


class Stream:
    """Notes when it is looked at. `record`: what it answers."""

    def __init__(self, record: bytes | None = None) -> None:
        self.record = record
        self.looks: list[float] = []

    def progress(self, now_ms: int) -> bytes | None:
        self.looks.append(perf_counter())
        return self.record


class BrokenStream(Stream):
    def progress(self, now_ms: int) -> bytes | None:
        raise ValueError("a bug")


def no_write(records: Sequence[bytes]) -> None:
    raise AssertionError(f"nothing was to be written, but {records} was")


async def test_streams_that_begin_at_different_times_are_all_looked_at_once_an_interval() -> None:
    clock, streams = ProgressClock(no_write), []
    for _ in range(2 * LOOKS):
        streams.append((Stream(), perf_counter()))
        clock.add(streams[-1][0])
        await asyncio.sleep(INTERVAL_S / LOOKS / 2)
    await asyncio.sleep(3 * INTERVAL_S)
    for stream, added_at in streams:
        assert len(stream.looks) >= 3
        gaps = [later - earlier for earlier, later in zip([added_at, *stream.looks], stream.looks, strict=False)]
        assert sum(gaps) / len(gaps) <= 1.2 * INTERVAL_S  # a machine that is busy makes single looks late
    assert len({round(stream.looks[0] / INTERVAL_S * LOOKS) for stream, _ in streams}) > LOOKS / 2, "all at one time"


async def test_records_of_one_look_are_one_write() -> None:
    writes: list[Sequence[bytes]] = []
    clock = ProgressClock(writes.append)
    for record in (b"a", None, b"b"):
        clock.add(Stream(record))
    await asyncio.sleep(1.5 * INTERVAL_S)
    assert [sorted(written) for written in writes] == [[b"a", b"b"]]


async def test_discarded_stream_is_not_looked_at_and_an_idle_clock_sets_no_timer() -> None:
    clock, stream = ProgressClock(no_write), Stream()
    clock.add(stream).discard(stream)
    await asyncio.sleep(1.5 * INTERVAL_S)
    assert not stream.looks
    assert clock._timer is None
    clock.add(stream)
    await asyncio.sleep(1.5 * INTERVAL_S)
    assert stream.looks


async def test_a_bug_in_one_stream_does_not_keep_others_from_being_journaled(caplog: pytest.LogCaptureFixture) -> None:
    writes: list[Sequence[bytes]] = []
    clock = ProgressClock(writes.append)
    for stream in (BrokenStream(), Stream(b"a"), BrokenStream(), Stream(b"b")):
        clock.add(stream)
    await asyncio.sleep(2.5 * INTERVAL_S)
    assert [sorted(written) for written in writes] == [[b"a", b"b"]] * 2
    assert "bug" in caplog.text
