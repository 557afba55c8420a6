"""One clock looks at all streams once a second; the records of one look are one write."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from proxy.progress_clock import LOOKS, PROGRESS_INTERVAL_S, ProgressClock

SKIPS_IDLE_TIME = True


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Stream:
    """Notes when it is looked at. `record`: what it answers."""

    def __init__(self, record: bytes | None = None) -> None:
        self.record = record
        self.looks: list[float] = []

    def progress(self, now_ms: int) -> bytes | None:
        self.looks.append(now_s())
        return self.record


class BrokenStream(Stream):
    def progress(self, now_ms: int) -> bytes | None:
        raise ValueError("a bug")


def no_write(records: Sequence[bytes]) -> None:
    raise AssertionError(f"nothing was to be written, but {records} was")


async def test_streams_that_begin_at_different_times_are_all_looked_at_once_an_interval() -> None:
    clock = ProgressClock(no_write)
    streams: list[Stream] = []
    for _ in range(2 * LOOKS):
        streams.append(Stream())
        streams[-1].looks.append(now_s())
        clock.add(streams[-1])
        await asyncio.sleep(PROGRESS_INTERVAL_S / LOOKS / 2)
    await asyncio.sleep(3 * PROGRESS_INTERVAL_S)
    for stream in streams:
        began_s, *looks = stream.looks
        assert len(looks) >= 3
        assert 0 < looks[0] - began_s <= PROGRESS_INTERVAL_S + 1e-6
        assert all(later - earlier == pytest.approx(PROGRESS_INTERVAL_S) for earlier, later in pairwise(looks))
    turns = {round(stream.looks[1] / PROGRESS_INTERVAL_S * LOOKS) % LOOKS for stream in streams}
    assert len(turns) == LOOKS, "several at one time"


async def test_records_of_one_look_are_one_write() -> None:
    writes: list[Sequence[bytes]] = []
    clock = ProgressClock(writes.append)
    for record in (b"a", None, b"b"):
        clock.add(Stream(record))
    await asyncio.sleep(1.5 * PROGRESS_INTERVAL_S)
    assert [sorted(records) for records in writes] == [[b"a", b"b"]]


async def test_discarded_stream_is_not_looked_at_and_an_idle_clock_sets_no_timer() -> None:
    clock = ProgressClock(no_write)
    stream = Stream()
    clock.add(stream).discard(stream)
    await asyncio.sleep(1.5 * PROGRESS_INTERVAL_S)
    assert not stream.looks
    assert clock._timer is None
    clock.add(stream)
    await asyncio.sleep(1.5 * PROGRESS_INTERVAL_S)
    assert stream.looks


async def test_a_bug_in_one_stream_does_not_keep_others_from_being_journaled(caplog: pytest.LogCaptureFixture) -> None:
    writes: list[Sequence[bytes]] = []
    clock = ProgressClock(writes.append)
    for stream in (BrokenStream(), Stream(b"a"), BrokenStream(), Stream(b"b")):
        clock.add(stream)
    await asyncio.sleep(2.5 * PROGRESS_INTERVAL_S)
    assert [sorted(records) for records in writes] == [[b"a", b"b"]] * 2
    assert "bug" in caplog.text
